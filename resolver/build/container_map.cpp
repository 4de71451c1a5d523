// SPDX-License-Identifier: MIT
#include "resolver/build/container_map.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/open_regular.hpp"
#include "resolver/build/object_table.hpp"

namespace heddle {
namespace {

Result<ObjectId> add_file(World& host, ObjectTable& objects, const std::string& path) {
  auto file = host.facts(path);
  if (file) return objects.add(path, *file);
  if (file.error().code() != ENOEXEC) return fail(std::move(file.error()));
  auto fd = open_regular(path);
  if (!fd) return fail(std::move(fd.error()));
  struct stat st {};
  if (::fstat(fd->get(), &st) != 0) return fail_errno(path, "cannot stat");
  auto hash = hash_file(fd->get(), path);
  if (!hash) return fail(std::move(hash.error()));
  return objects.add_data(path, file_stamp(st), st.st_mode, *hash);
}

/// Behind the host's objects, as a map has them.
Result<void> add_served(World& inside, const Decision& decision, MapContent& out) {
  auto& names = out.views[0].names;
  for (const auto& file : decision.served) {
    auto facts = inside.facts(file.target);
    if (!facts) return fail(std::move(facts.error()));
    auto object = object_of(*facts);
    object.path = file.target;
    object.in_image = true;
    object.owner = file.owner;
    object.group = file.group;
    for (const auto& patch : file.patches)
      object.patches.push_back({patch.offset, patch.before, patch.after});
    names.emplace_back(served_as(file), static_cast<ObjectId>(out.objects.size()));
    out.objects.push_back(std::move(object));
  }
  std::sort(names.begin(), names.end());
  return {};
}

/// With the bytes that `decision` puts in place of theirs.
void change_objects(const Decision& decision, std::vector<MapObject>& objects) {
  for (const auto& file : decision.changed)
    for (auto& object : objects)
      if (object.path == file.path) {
        const auto before = file.was + '\0';
        auto after = file.now;
        after.resize(before.size());
        object.patches.push_back({file.offset, before, after});
      }
}

}  // namespace

Result<MapContent> build_container_map(World& host, World& inside, const Decision& decision,
                                       const std::string& container_json) {
  ObjectTable objects;
  std::map<std::string, ObjectId> names;
  for (const auto& [name, path] : decision.names) {
    auto id = add_file(host, objects, path);
    if (!id) return fail(std::move(id.error()));
    names[name] = *id;
  }
  MapContent out;
  const auto rank = objects.ranks();
  // Its files stand in the root beside it: none may have its name.
  std::string view = "host";
  const auto taken = [&] {
    const auto at = names.lower_bound(view);
    return at != names.end() && (at->first == view || at->first.starts_with(view + "/"));
  };
  while (taken()) view += '~';
  out.views.push_back({view, {}});
  for (const auto& [name, id] : names) out.views[0].names.emplace_back(name, rank[id]);
  out.objects.resize(objects.size());
  std::map<std::string, ObjectId> paths;
  for (ObjectId id = 0; id < objects.size(); ++id) {
    out.objects[rank[id]] = objects[id];
    for (const auto& path : objects.paths(id)) paths.emplace(path, rank[id]);
  }
  out.paths.assign(paths.begin(), paths.end());
  change_objects(decision, out.objects);
  if (auto added = add_served(inside, decision, out); !added) return fail(std::move(added.error()));
  auto generated = decision.made;
  generated["container.json"] = container_json;
  generated["ld.so.cache"] = decision.ld_so_cache;
  out.generated.assign(generated.begin(), generated.end());
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) == 0) out.host = name;
  return out;
}

}  // namespace heddle
