// SPDX-License-Identifier: MIT
#include "record/native_folders.hpp"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "base/fd.hpp"

namespace heddle {
namespace {

std::string real_path(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  std::string out = resolved ? resolved : "";
  std::free(resolved);
  return out;
}

bool is_at_or_below(const std::string& path, const std::string& folder) {
  return path == folder || folder == "/" || path.starts_with(folder + "/");
}

std::string parent_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

class Finder {
 public:
  explicit Finder(const std::string& cwd) : cwd_(cwd) {
    const char* home = std::getenv("HOME");
    if (home) home_ = real_path(home);
  }

  /// A folder that much else lies in: it must be recorded.
  bool is_shared(const std::string& folder) const {
    static const std::set<std::string> kShared = {"/",        "/tmp",  "/var/tmp", "/var",
                                                  "/var/lib", "/usr",  "/etc",     "/opt",
                                                  "/home",    "/root", "/srv",     "/mnt"};
    return kShared.contains(folder) || folder == home_ || is_at_or_below(cwd_, folder) ||
           (!home_.empty() && is_at_or_below(home_, folder));
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

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

/// Where further procfs are mounted: what they show depends on who asks.
std::vector<std::string> proc_mounts() {
  std::vector<std::string> out;
  std::istringstream lines(read_file("/proc/self/mountinfo").value_or(""));
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string id, parent, device, root, at;
    fields >> id >> parent >> device >> root >> at;
    struct statfs st {};
    if (line.find(" - proc ") != std::string::npos && ::statfs(at.c_str(), &st) == 0 &&
        st.f_type == PROC_SUPER_MAGIC)
      out.push_back(real_path(at));
  }
  return out;
}

bool is_folder(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

/// The folder that a launcher's variable means: itself, or that of the file it names.
std::string folder_of_value(const std::string& value) {
  if (value.size() < 2 || value[0] != '/') return {};
  const std::string path = is_folder(value) ? real_path(value) : real_path(parent_of(value));
  return is_folder(path) ? path : std::string();
}

}  // namespace

std::vector<std::string> served_sockets(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    // Num RefCount Protocol Flags Type St Inode Path; a listener has __SO_ACCEPTCON, and a bound
    // datagram socket (type 2: syslog) answers as well.
    std::istringstream fields(line);
    std::string number, count, protocol, flags, type, state, inode;
    fields >> number >> count >> protocol >> flags >> type >> state >> inode;
    const bool listens = (std::strtoul(flags.c_str(), nullptr, 16) & 0x10000U) != 0;
    std::string path;
    std::getline(fields, path);
    const auto slash = path.find('/');
    if ((!listens && type != "0002") || slash == std::string::npos) continue;
    path.erase(0, slash);
    if (slash == 1) found.push_back(path);  // else an abstract name with a slash in it
  }
  return found;
}

NativeFolders find_native_folders(const std::string& cwd,
                                  const std::vector<std::string>& environment) {
  Finder finder(cwd);
  NativeFolders out;
  std::vector<std::string> names;
  for (const char* path : {"/proc", "/sys", "/dev", "/run", "/var/run"})
    if (is_folder(path) && finder.add(real_path(path))) names.push_back(real_path(path));
  for (const auto& path : proc_mounts())
    if (finder.add(path)) names.push_back(path);
  out.notes.push_back("native: " + joined(names));

  names.clear();
  if (const auto text = read_file("/proc/net/unix")) {
    for (const auto& socket : served_sockets(*text)) {
      struct stat st {};
      const std::string path = real_path(socket);
      if (path.empty() || ::stat(path.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) continue;
      const std::string folder = parent_of(path);
      const std::string& kept = finder.is_shared(folder) ? path : folder;
      if (finder.add(kept)) names.push_back(kept);
    }
  }
  if (!names.empty()) out.notes.push_back("native, sockets answered outside: " + joined(names));

  names.clear();
  for (const auto& variable : environment) {
    const auto equals = variable.find('=');
    const std::string name = variable.substr(0, equals);
    if (equals == std::string::npos ||
        (!name.starts_with("PMIX_") && !name.starts_with("OMPI_") && !name.starts_with("PMI_")))
      continue;
    const std::string folder = folder_of_value(variable.substr(equals + 1));
    if (folder.empty() || finder.is_shared(folder) || folder.starts_with("/usr/")) continue;
    if (finder.add(folder)) names.push_back(folder);
  }
  if (!names.empty()) out.notes.push_back("native, folders of the MPI launcher: " + joined(names));
  out.paths = finder.take();
  return out;
}

}  // namespace heddle
