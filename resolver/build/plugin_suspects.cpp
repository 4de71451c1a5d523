// SPDX-License-Identifier: MIT
#include "resolver/build/map_builder.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>

namespace heddle {
namespace {

namespace fs = std::filesystem;
using Name = std::pair<std::string, ObjectId>;

bool is_library_name(const std::string& name) {
  const auto at = name.find(".so");
  return at != std::string::npos && at > 0 && (at + 3 == name.size() || name[at + 3] == '.');
}

struct Listing {
  std::vector<std::string> libraries;
  std::vector<std::string> directories;
};

Listing list(const std::string& directory) {
  Listing out;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    const auto name = at->path().filename().string();
    if (at->is_directory(ignored))
      out.directories.push_back(name);
    else if (is_library_name(name))
      out.libraries.push_back(name);
  }
  std::ranges::sort(out.libraries);
  std::ranges::sort(out.directories);
  return out;
}

bool is_system_directory(const std::string& directory) {
  for (const std::string_view system : {"/lib", "/lib64", "/usr/lib", "/usr/lib64"})
    if (directory == system ||
        (directory.starts_with(system) && directory.find("-linux-") != directory.npos))
      return true;
  return false;
}

/// As libucs.so.0 and ucx/.
bool are_related(const std::string& library, const std::string& directory) {
  const auto stem = [](std::string name) {
    if (name.starts_with("lib")) name.erase(0, 3);
    return name.substr(0, 2);
  };
  return stem(fs::path(library).filename().string()) == stem(directory);
}

std::optional<PluginSuspect> suspect(const MapObject& library, const MapView& view) {
  const auto has = [&view](const std::string& name) {
    const auto at = std::ranges::lower_bound(view.names, name, {}, &Name::first);
    return at != view.names.end() && at->first.starts_with(name);
  };
  const auto directory = fs::path(library.path).parent_path().string();
  const auto listing = list(directory);
  const bool system = is_system_directory(directory);
  for (const auto& name : listing.directories) {
    if (system && !are_related(library.path, name)) continue;
    if (!list(directory + "/" + name).libraries.empty() && !has(name + "/"))
      return PluginSuspect{library.path, directory + "/" + name, false};
  }
  if (system) return std::nullopt;
  for (const auto& name : listing.libraries)
    if (!has(name)) return PluginSuspect{library.path, directory, true};
  return std::nullopt;
}

}  // namespace

std::vector<PluginSuspect> find_plugin_suspects(const MapContent& content,
                                                const MapProgram& program) {
  std::vector<PluginSuspect> out;
  for (const auto& loaded : program.libraries) {
    const MapObject& library = content.objects[loaded.object];
    if (!library.imports_dladdr || !library.imports_dlopen) continue;
    if (auto found = suspect(library, content.views[program.view])) out.push_back(*found);
  }
  return out;
}

}  // namespace heddle
