// SPDX-License-Identifier: MIT
#include "resolver/build/view_names.hpp"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "resolver/map/served_names.hpp"

namespace heddle {
namespace {

/// What may stand as an entry of the flat directory. A soname is bytes from a file: it may be
/// empty,
/// "..", or a path.
bool is_entry_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kOwnFolder &&
         name.find('/') == std::string::npos && name.size() <= 255;
}

std::string unused_name(const std::map<std::string, ObjectId>& view, const std::string& wish) {
  for (int n = 2;; ++n) {
    std::string name = wish + "~" + std::to_string(n);
    if (!view.contains(name)) return name;
  }
}

void add_to_view(ViewNames& names, const ObjectTable& objects, const Closure& closure,
                 const std::vector<ObjectId>& ids, std::size_t first) {
  auto& view = names.view;
  for (std::size_t i = first; i < ids.size(); ++i)
    for (const auto& name : closure.objects[i].names)
      if (is_entry_name(name)) view.emplace(name, ids[i]);
  for (std::size_t i = first; i < ids.size(); ++i)
    if (is_entry_name(objects[ids[i]].soname)) view.emplace(objects[ids[i]].soname, ids[i]);
  for (std::size_t i = first; i < ids.size(); ++i)
    for (const auto& name : objects.file_names(ids[i]))
      if (is_entry_name(name)) view.emplace(name, ids[i]);

  // Two files of one closure that have only one name between them, both asked for by path.
  std::unordered_set<ObjectId> named;
  for (const auto& [name, id] : view) named.insert(id);
  for (std::size_t i = first; i < ids.size(); ++i) {
    if (named.insert(ids[i]).second) {
      const auto file = std::filesystem::path(objects[ids[i]].path).filename().string();
      view.emplace(unused_name(view, file), ids[i]);
    }
  }
}

}  // namespace

void add_closure(ViewNames& names, const ObjectTable& objects, const Closure& closure,
                 const std::vector<ObjectId>& ids, RootIs root) {
  const std::size_t first = root == RootIs::program ? 1 : 0;
  add_to_view(names, objects, closure, ids, first);
  for (std::size_t i = first; i < ids.size(); ++i) {
    const LoadedObject& object = closure.objects[i];
    if (object.found_by == FoundBy::interpreter) continue;
    for (const auto& name : object.names) names.guided.emplace(name, ids[i]);
    if (!objects[ids[i]].soname.empty()) names.guided.emplace(objects[ids[i]].soname, ids[i]);
    for (const auto& path : objects.paths(ids[i])) names.guided.emplace(path, ids[i]);
  }
}

void add_library(ViewNames& names, const ObjectTable& objects, const std::string& name,
                 ObjectId id) {
  bool named = false;
  const auto show = [&](const std::string& as) {
    if (is_entry_name(as)) named |= names.view.emplace(as, id).first->second == id;
  };
  show(name);
  show(objects[id].soname);
  for (const auto& file_name : objects.file_names(id)) show(file_name);
  if (!named) {
    const auto file = std::filesystem::path(objects[id].path).filename().string();
    names.view.emplace(unused_name(names.view, file), id);
  }
  names.guided.emplace(name, id);
  for (const auto& path : objects.paths(id)) names.guided.emplace(path, id);
}

void add_plugin_file(ViewNames& names, const ObjectTable& objects, const std::string& relative,
                     ObjectId id) {
  names.view.emplace(relative, id);
  for (const auto& path : objects.paths(id)) names.guided.emplace(path, id);
}

}  // namespace heddle
