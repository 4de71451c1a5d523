// SPDX-License-Identifier: MIT
#include "base/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <charconv>
#include <cstdio>
#include <filesystem>

namespace heddle {

AtomicFile::AtomicFile(std::string path, std::string temp_path, Fd fd)
    : path_(std::move(path)), temp_path_(std::move(temp_path)), fd_(std::move(fd)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temp_path_(std::exchange(other.temp_path_, {})),
      fd_(std::move(other.fd_)) {}

AtomicFile::~AtomicFile() {
  if (!temp_path_.empty()) ::unlink(temp_path_.c_str());
}

namespace {

bool is_special(const std::string& path) {
  if (path.starts_with("/dev/") || path.starts_with("/proc/"))
    // Shared memory is files as others are.
    return !path.starts_with("/dev/shm/");
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode);
}

/// /dev/stdout and its like are the descriptor itself: a file that is appended to stays so, and a
/// socket cannot be opened by name.
int own_descriptor(const std::string& path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  int fd = -1;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    const char* end = path.data() + path.size();
    const auto read = std::from_chars(path.data() + folder.size(), end, fd);
    if (read.ec != std::errc() || read.ptr != end) fd = -1;
  }
  return fd;
}

Result<Fd> open_special(const std::string& path) {
  const int own = own_descriptor(path);
  Fd fd(own >= 0 ? ::fcntl(own, F_DUPFD_CLOEXEC, 0)
                 : ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  if (!fd) return fail_errno(path, "cannot write");
  return fd;
}

}  // namespace

Result<AtomicFile> AtomicFile::create(std::string path, Special special) {
  if (is_special(path)) {
    if (special == Special::refuse)
      return fail_errno(path, "cannot write: it is no regular file", EINVAL);
    auto fd = open_special(path);
    if (!fd) return fail(std::move(fd.error()));
    return AtomicFile(std::move(path), {}, std::move(*fd));
  }
  static std::atomic<unsigned> counter{0};
  // O_EXCL, not mkstemp: mkstemp gives mode 0600 whatever the umask says, and the published file is
  // for others to read.
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string temp =
        path + ".new-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
    const int fd = ::open(temp.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd >= 0) return AtomicFile(std::move(path), std::move(temp), Fd(fd));
    if (errno != EEXIST) break;
  }
  return fail_errno(path, "cannot write");
}

Result<void> AtomicFile::commit() {
  if (temp_path_.empty()) return {};  // written through
  if (::fsync(fd_.get()) != 0) return fail_errno(path_, "cannot write");
  if (::rename(temp_path_.c_str(), path_.c_str()) != 0) return fail_errno(path_, "cannot write");
  temp_path_.clear();
  const auto folder = std::filesystem::path(path_).parent_path();
  auto dir = open_file(folder.empty() ? "." : folder.string(), O_RDONLY | O_DIRECTORY);
  // The file stands already; a file system that cannot sync folders (EINVAL) takes nothing from
  // that.
  if (dir) ::fsync(dir->get());
  return {};
}

}  // namespace heddle
