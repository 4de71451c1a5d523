// SPDX-License-Identifier: MIT
#include "container-hooks/inside_files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/open_regular.hpp"
#include "base/script_interpreter.hpp"
#include "container-hooks/mount_calls.hpp"
#include "container-hooks/verify.hpp"

namespace heddle {
namespace {

constexpr int kFolderDepth = 4;  // share/openmpi/...
constexpr std::size_t kMaxPlugins = 1000;

}  // namespace

Result<InsideFiles> InsideFiles::open(pid_t pid, const std::string& rootfs) {
  const auto process = "/proc/" + std::to_string(pid);
  auto root = open_file(process + "/root" + rootfs, O_PATH | O_DIRECTORY);
  if (!root) return fail(std::move(root.error()));
  const auto mounts = read_file(process + "/mountinfo");
  if (!mounts) return fail(mounts.error());
  InsideFiles out(std::move(*root));
  out.devices_ = heddle_devices(*mounts);
  return out;
}

bool InsideFiles::is_from_host(const std::string& path) const {
  struct stat status {};
  return stat(path, status) && devices_.contains(std::to_string(major(status.st_dev)) + ":" +
                                                 std::to_string(minor(status.st_dev)));
}

std::string InsideFiles::started_by(const std::string& program) const {
  auto out = program;
  for (int depth = 0; depth < kMostScripts; ++depth) {
    const auto place = find_in_root(root_.get(), out, 0);
    if (!place) break;
    const auto file = open_regular_at(place->get(), out);
    char text[kFirstLine];
    const ssize_t n = file ? ::pread(file->get(), text, sizeof(text), 0) : -1;
    if (n <= 0) break;
    const auto next = script_interpreter({text, static_cast<std::size_t>(n)});
    if (!next.starts_with('/')) break;
    out = next;
  }
  return out;
}

std::vector<std::string> InsideFiles::plugins(const std::string& folder) const {
  std::map<ino_t, std::string> found;
  walk(folder, 0, found);
  std::vector<std::string> out;
  for (auto& [ino, path] : found) out.push_back(std::move(path));
  std::sort(out.begin(), out.end());
  return out;
}

bool InsideFiles::stat(const std::string& path, struct stat& status) const {
  const auto file = find_in_root(root_.get(), path, 0);
  return file && ::fstat(file->get(), &status) == 0;
}

std::vector<std::string> InsideFiles::names_in(const std::string& folder) const {
  std::vector<std::string> out;
  const auto fd = find_in_root(root_.get(), folder, O_DIRECTORY);
  if (!fd) return out;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(
      ::opendir(("/proc/self/fd/" + std::to_string(fd->get())).c_str()), &::closedir);
  while (const dirent* entry = list ? ::readdir(list.get()) : nullptr)
    if (entry->d_name[0] != '.') out.emplace_back(entry->d_name);
  return out;
}

/// A view has all of the root's files a second time; of a plugin folder some may be there too.
bool InsideFiles::is_view(const std::string& root, const std::string& name) const {
  for (const auto& file : names_in(root)) {
    struct stat here {};
    struct stat there {};
    if (stat(root + "/" + file, here) && S_ISREG(here.st_mode))
      return stat(root + "/" + name + "/" + file, there) && here.st_ino == there.st_ino;
  }
  return false;
}

void InsideFiles::walk(const std::string& folder, int depth,
                       std::map<ino_t, std::string>& found) const {
  if (depth > kFolderDepth) return;
  for (const auto& name : names_in(folder)) {
    const auto path = folder + "/" + name;
    struct stat status {};
    if (!stat(path, status)) continue;
    if (S_ISDIR(status.st_mode)) {
      if (depth > 0 || !is_view(folder, name)) walk(path, depth + 1, found);
    } else if (depth > 0 && name.find(".so") != std::string::npos && path.find(':') == path.npos &&
               path.find(' ') == path.npos && found.size() < kMaxPlugins) {
      found.emplace(status.st_ino, path);
    }
  }
}

}  // namespace heddle
