// SPDX-License-Identifier: MIT
#include "record/native_paths.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/fd.hpp"
#include "base/mounts.hpp"
#include "base/paths.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// Empty when the file does not exist.
std::string real_path(const std::string& path) {
  std::error_code error;
  return fs::canonical(path, error).string();
}

std::string parent_of(const std::string& path) { return fs::path(path).parent_path().string(); }

class Finder {
 public:
  explicit Finder(const std::string& cwd) : cwd_(cwd) {
    const char* home = std::getenv("HOME");
    if (home) home_ = real_path(home);
  }

  /// Whether the directory holds unrelated files too, so that it must be recorded.
  bool is_shared(const std::string& directory) const {
    static const std::set<std::string> kShared = {"/",        "/tmp",  "/var/tmp", "/var",
                                                  "/var/lib", "/usr",  "/etc",     "/opt",
                                                  "/home",    "/root", "/srv",     "/mnt"};
    return kShared.contains(directory) || directory == home_ || is_at_or_below(cwd_, directory) ||
           (!home_.empty() && is_at_or_below(home_, directory));
  }
  bool covered(const std::string& path) const {
    return std::any_of(paths_.begin(), paths_.end(),
                       [&](const std::string& p) { return is_at_or_below(path, p); });
  }
  bool add(const std::string& path) {
    if (path.empty() || covered(path)) return false;
    std::erase_if(paths_, [&](const std::string& p) { return is_at_or_below(p, path); });
    paths_.push_back(path);
    return true;
  }
  std::vector<std::string> take() {
    std::sort(paths_.begin(), paths_.end());
    return std::move(paths_);
  }

 private:
  std::string cwd_, home_;
  std::vector<std::string> paths_;
};

/// The mount points of further procfs, whose contents depend on the reader.
std::vector<std::string> proc_mounts() {
  std::vector<std::string> out;
  for (const auto& mount : list_mounts().value_or(std::vector<MountEntry>())) {
    struct statfs st {};
    if (mount.type == "proc" && ::statfs(mount.point.c_str(), &st) == 0 &&
        st.f_type == PROC_SUPER_MAGIC)
      out.push_back(real_path(mount.point));
  }
  return out;
}

bool is_directory(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// The directory in a launcher's variable, or the one of the file in it; empty: neither.
std::string directory_of_value(const std::string& value) {
  if (value.size() < 2 || value[0] != '/') return {};
  const std::string path = is_directory(value) ? real_path(value) : real_path(parent_of(value));
  return is_directory(path) ? path : std::string();
}

}  // namespace

std::vector<std::string> served_sockets(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // Num RefCount Protocol Flags Type St Inode Path. Listeners have __SO_ACCEPTCON; a bound
    // datagram socket (type 2, as syslog's) has no such flag.
    unsigned long flags = 0, type = 0;
    int at = 0;
    if (std::sscanf(line.c_str(), "%*s %*s %*s %lx %lx %*s %*s %n", &flags, &type, &at) != 2)
      continue;
    const std::string path = line.substr(static_cast<std::size_t>(at));
    if (((flags & 0x10000U) != 0 || type == 2) && path.starts_with('/')) found.push_back(path);
  }
  return found;
}

NativePaths find_native_paths(const std::string& cwd, const std::vector<std::string>& environment) {
  Finder finder(cwd);
  NativePaths out;
  std::vector<std::string> names;
  const auto keep = [&](const std::string& path) {
    if (finder.add(path)) names.push_back(path);
  };
  const auto note = [&](const char* what) {
    if (!names.empty()) out.notes.push_back(fmt::format("{}: {}", what, fmt::join(names, " ")));
    names.clear();
  };
  for (const char* path : {"/proc", "/sys", "/dev", "/run", "/var/run"})
    if (is_directory(path)) keep(real_path(path));
  for (const auto& path : proc_mounts()) keep(path);
  note("native");

  if (const auto text = read_file("/proc/net/unix")) {
    for (const auto& socket : served_sockets(*text)) {
      struct stat st {};
      const std::string path = real_path(socket);
      if (path.empty() || ::stat(path.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) continue;
      const std::string directory = parent_of(path);
      keep(finder.is_shared(directory) ? path : directory);
    }
  }
  note("native, sockets answered outside");

  for (const auto& variable : environment) {
    const auto equals = variable.find('=');
    const std::string name = variable.substr(0, equals);
    if (equals == std::string::npos ||
        (!name.starts_with("PMIX_") && !name.starts_with("OMPI_") && !name.starts_with("PMI_")))
      continue;
    const std::string directory = directory_of_value(variable.substr(equals + 1));
    if (directory.empty() || finder.is_shared(directory) || directory.starts_with("/usr/"))
      continue;
    keep(directory);
  }
  note("native, directories of the MPI launcher");
  out.paths = finder.take();
  return out;
}

}  // namespace heddle
