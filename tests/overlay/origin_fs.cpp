// SPDX-License-Identifier: MIT
// origin_fs SOURCE DIR: serves SOURCE at DIR like a network file system, uncached. Each read is
// logged in SOURCE/.reads as a line `offset size path`. While SOURCE/.hang exists reads get no
// answer; while .hang-all exists no request does.

#define FUSE_USE_VERSION 312
#include <fcntl.h>
#include <fuse.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>

namespace {

std::string g_source;  // NOLINT: one program, one file system

void append(const char* name, const std::string& text) {
  const int fd = ::open((g_source + name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  (void)!::write(fd, text.data(), text.size());
  ::close(fd);
}

void hold_while(std::initializer_list<const char*> names) {
  bool said = false;
  for (const char* name : names)
    while (::access((g_source + name).c_str(), F_OK) == 0) {
      if (!std::exchange(said, true)) append("/.held", "x");
      ::usleep(2000);
    }
}

int get_attributes(const char* path, struct stat* out, fuse_file_info*) {
  hold_while({"/.hang-all"});
  return ::lstat((g_source + path).c_str(), out) == 0 ? 0 : -errno;
}

int open_origin(const char* path, fuse_file_info* info) {
  hold_while({"/.hang-all"});
  const int fd = ::open((g_source + path).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  info->fh = static_cast<std::uint64_t>(fd);
  info->direct_io = 1;
  return 0;
}

int release_origin(const char*, fuse_file_info* info) {
  return ::close(static_cast<int>(info->fh));
}

int read_origin(const char* path, char* buffer, std::size_t size, off_t offset,
                fuse_file_info* info) {
  hold_while({"/.hang", "/.hang-all"});
  const ssize_t n = ::pread(static_cast<int>(info->fh), buffer, size, offset);
  if (n < 0) return -errno;
  append("/.reads", std::to_string(offset) + " " + std::to_string(n) + " " + path + "\n");
  return static_cast<int>(n);
}

int list_directory(const char* path, void* buffer, fuse_fill_dir_t fill, off_t, fuse_file_info*,
                   fuse_readdir_flags) {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(g_source + path, failed))
    fill(buffer, entry.path().filename().c_str(), nullptr, 0, fuse_fill_dir_flags{});
  return -failed.value();
}

int describe(const char*, struct statvfs* out) {
  hold_while({"/.hang-all"});
  return ::statvfs(g_source.c_str(), out) == 0 ? 0 : -errno;
}

void* start(fuse_conn_info*, fuse_config* config) {
  config->use_ino = 1;
  config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  g_source = argv[1];
  fuse_operations operations{};
  operations.init = start;
  operations.getattr = get_attributes;
  operations.open = open_origin;
  operations.release = release_origin;
  operations.read = read_origin;
  operations.readdir = list_directory;
  operations.statfs = describe;
  std::string options = "-ofsname=origin,allow_other,exec";
  char* arguments[] = {argv[0], options.data(), argv[2], nullptr};
  return fuse_main(3, arguments, &operations, nullptr);
}
