// SPDX-License-Identifier: MIT
#include "resolver/policy/plugin_places.hpp"

#include <filesystem>

#include "base/folder_of.hpp"
#include "resolver/policy/closure_checks.hpp"
#include "resolver/policy/container_stack.hpp"
#include "resolver/search/search.hpp"

namespace heddle {

namespace fs = std::filesystem;

namespace {

/// The library's own string for the folder, made the mount's. A linker may have another string end
/// in the same bytes ("openmpi" of "${libdir}/openmpi"): a label at most. Empty: there is none, or
/// no room.
std::vector<ChangedFile> lead_to_mount(const PluginFolder& folder, OsWorld& host,
                                       const std::string& now) {
  std::vector<ChangedFile> out;
  if (folder.built_in.empty() || now.size() > folder.built_in.size()) return out;
  const auto bytes = host.read(folder.wanted_by);
  if (!bytes) return out;
  const auto whole = '\0' + folder.built_in + '\0';
  for (auto at = bytes->find(whole); at != bytes->npos; at = bytes->find(whole, at + 1))
    out.push_back({folder.wanted_by, at + 1, folder.built_in, now});
  return out;
}

}  // namespace

PluginPlaces find_plugin_places(const std::vector<PluginFolder>& folders,
                                const std::map<std::string, FileBind>& binds,
                                const ServedNames& names, OsWorld& inside, OsWorld& host,
                                const std::string& mount_point) {
  PluginPlaces out;
  for (const auto& folder : folders) {
    std::vector<std::string> targets;
    if (folder.beside) {
      // Beside the library as ld.so names it: below the mount it is there already.
      for (const auto& [target, bind] : binds)
        if (const auto at = names.files.find(bind.source);
            at != names.files.end() && at->second == folder.wanted_by)
          targets.push_back(folder_of(target) + "/" + folder.view_name);
    } else {
      if (inside.real_path(folder.path).empty())
        if (auto changed = lead_to_mount(folder, host, mount_point + "/" + folder.view_name);
            !changed.empty()) {
          out.changed.insert(out.changed.end(), changed.begin(), changed.end());
          continue;
        }
      targets.push_back(folder.path);
    }
    for (const auto& target : targets) {
      const auto real = inside.real_path(target);
      out.folders.push_back({folder.view_name, real.empty() ? target : real, !real.empty(),
                             fs::path(folder.wanted_by).filename().string() +
                                 " looks there for its plugins and data"});
    }
    if (!targets.empty())
      for (const auto& variable : folder.environment)
        out.environment[variable] = mount_point + "/" + folder.view_name;
  }
  return out;
}

std::vector<std::string> plugins_that_fail(const ServedNames& names, SwappedWorld& world,
                                           const LoaderProfile& loader, const SearchOptions& search,
                                           const std::string& mount_point) {
  std::vector<std::string> out;
  for (const auto& [name, path] : names.files) {
    if (!is_plugin_name(name)) continue;
    const auto closure = resolve(world, loader, mount_point + "/" + name, search);
    if (!closure) continue;
    for (const auto& missing : closure->missing)
      out.push_back(path +
                    ": this plugin will not load: " + closure->objects[missing.needed_by].path +
                    " needs " + missing.name + ": " + missing.reason);
    for (const auto& need : unmet_needs(*closure))
      out.push_back(path + ": this plugin will not load: " + need.line);
  }
  return out;
}

}  // namespace heddle
