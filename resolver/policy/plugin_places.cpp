// SPDX-License-Identifier: MIT
#include "resolver/policy/plugin_places.hpp"

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "base/fd.hpp"

namespace heddle::policy {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxDirectoryFiles = 10'000;

void take_directory(const PluginDirectory& directory, ServedNames& out) {
  std::error_code error;
  std::size_t count = 0;
  for (fs::recursive_directory_iterator walk(directory.path, error), end; !error && walk != end;
       walk.increment(error)) {
    std::error_code none;
    if (!walk->is_regular_file(none) || ++count > kMaxDirectoryFiles) continue;
    const auto below = walk->path().lexically_relative(directory.path).string();
    const auto real = fs::canonical(walk->path(), none).string();
    if (!none) out.files.emplace(directory.view_name + "/" + below, real);
  }
}

void take_file(const HostFile& file, const std::vector<std::string>& asked_for, ServedNames& out) {
  for (const auto& name : asked_for) {
    if (name.empty() || name.find('/') != name.npos) continue;
    out.files[name] = file.path;
    out.sonames[name] = file.soname;
  }
}

/// Where `start` is a string of its own in a file, or the start of one with `more`, which is a path
/// below it. (A linker may have another string end in the same bytes, "openmpi" of
/// "${libdir}/openmpi": a label at most.)
std::size_t find_string(const std::string& bytes, const std::string& start, bool more,
                        std::size_t from) {
  const auto wanted = '\0' + start;
  for (auto at = bytes.find(wanted, from); at != bytes.npos; at = bytes.find(wanted, at + 1)) {
    const auto end = at + wanted.size();
    if (end < bytes.size() && (bytes[end] == '\0' || (more && bytes[end] == '/'))) return at + 1;
  }
  return bytes.npos;
}

/// Below its short name, or with `only` in the mount's root: nothing else of a directory that
/// others have their files in, too (/usr/local/etc).
void shorten(const PluginDirectory& directory, std::map<std::string, std::string>& names) {
  const auto prefix = directory.view_name + "/";
  for (auto it = names.lower_bound(prefix); it != names.end() && it->first.starts_with(prefix);) {
    auto name = it->first.substr(prefix.size());
    const auto path = it->second;
    it = names.erase(it);
    if (!directory.short_name->empty())
      names.emplace(*directory.short_name + "/" + name, path);
    else if (name.starts_with(directory.only) && name.find('/') == name.npos)
      names.emplace(name, path);
  }
}

/// Changes the library's own strings for the directory to the mount's, in the copy that is served.
/// False: it has none, no room for the mount's, or several names, which must stay one inode.
bool lead_to_mount(const PluginDirectory& directory, OsWorld& inside, OsWorld& host,
                   const std::string& mount_point, PluginPlaces& out) {
  if (!directory.is_data && !inside.real_path(directory.path).empty()) return false;
  std::vector<std::string> served_as;
  for (const auto& [name, path] : out.names)
    if (path == directory.wanted_by && name.find('/') == name.npos) served_as.push_back(name);
  if (served_as.size() != 1) return false;
  auto bytes = host.read(directory.wanted_by);
  if (!bytes) return false;
  const auto known = out.made.find(served_as[0]);
  auto copy = known == out.made.end() ? *bytes : known->second;
  const auto name = directory.short_name.value_or(directory.view_name);
  const auto now = name.empty() ? mount_point : mount_point + "/" + name;
  bool any = false;
  for (const auto& start : directory.built_in) {
    if (now.size() > start.size()) continue;
    // libibverbs has "DIRECTORY/lib%s-rdmav34.so".
    const bool more = !directory.is_data && start == directory.path;
    for (auto at = find_string(*bytes, start, more, 0); at != bytes->npos;
         at = find_string(*bytes, start, more, at)) {
      const std::string was = bytes->c_str() + at;
      auto text = now + was.substr(start.size());
      out.changed.push_back({directory.wanted_by, was, text});
      text.resize(was.size());
      copy.replace(at, was.size(), text);
      any = true;
    }
  }
  if (!any) return false;
  out.made[served_as[0]] = std::move(copy);
  if (directory.short_name) shorten(directory, out.names);
  return true;
}

}  // namespace

ServedNames served_names(const SideChoice& sides, const GlibcChoice& glibc,
                         const GlibcFamily& family) {
  ServedNames out;
  for (const auto* pick : sides.picks())
    if (pick->taken == Side::host) take_file(pick->host, pick->names, out);
  if (glibc.taken == Side::host)
    for (const auto& [soname, file] : family.files) take_file(file, {soname}, out);
  for (const auto& directory : sides.directories()) take_directory(directory, out);
  return out;
}

bool is_plugin_name(const std::string& name) {
  return name.find('/') != name.npos && name.find(".so") != name.npos;
}

PluginPlaces find_plugin_places(const std::vector<PluginDirectory>& directories,
                                const std::map<std::string, FileBind>& binds,
                                const ServedNames& names, OsWorld& inside, OsWorld& host,
                                const std::string& mount_point) {
  PluginPlaces out;
  out.names = names.files;
  for (const auto& directory : directories) {
    std::vector<std::string> targets;
    if (directory.beside) {
      // Beside the library as ld.so names it: below the mount it is there already.
      for (const auto& [target, bind] : binds)
        if (const auto at = names.files.find(bind.source);
            at != names.files.end() && at->second == directory.wanted_by)
          targets.push_back(directory_of(target) + "/" + directory.view_name);
    } else {
      if (lead_to_mount(directory, inside, host, mount_point, out)) continue;
      targets.push_back(directory.path);
    }
    for (const auto& target : targets) {
      const auto real = inside.real_path(target);
      out.directories.push_back({directory.view_name, real.empty() ? target : real, !real.empty(),
                                 fs::path(directory.wanted_by).filename().string() +
                                     " looks there for its plugins and data"});
    }
    if (!targets.empty())
      for (const auto& variable : directory.environment)
        out.environment[variable] = mount_point + "/" + directory.view_name;
  }
  std::sort(out.changed.begin(), out.changed.end(), [](const auto& a, const auto& b) {
    return std::tie(a.library, a.was) < std::tie(b.library, b.was);
  });
  return out;
}

}  // namespace heddle::policy
