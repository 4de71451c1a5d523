// SPDX-License-Identifier: MIT
#include "resolver/build/container_map.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/open_regular.hpp"
#include "resolver/build/object_table.hpp"
#include "resolver/map/served_names.hpp"

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

}  // namespace

Result<MapContent> build_container_map(World& host, const Decision& decision,
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
  // The original of a changed copy is an object without a name: drift is told by it.
  for (const auto& [name, id] : names)
    if (!decision.made.contains(name)) out.views[0].names.emplace_back(name, rank[id]);
  out.objects.resize(objects.size());
  std::map<std::string, ObjectId> paths;
  for (ObjectId id = 0; id < objects.size(); ++id) {
    out.objects[rank[id]] = objects[id];
    for (const auto& path : objects.paths(id)) paths.emplace(path, rank[id]);
  }
  out.paths.assign(paths.begin(), paths.end());
  auto generated = decision.made;
  const std::string own(kOwnPrefix);
  generated[own + "container.json"] = container_json;
  generated[own + "ld.so.cache"] = decision.ld_so_cache;
  out.generated.assign(generated.begin(), generated.end());
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) == 0) out.host = name;
  return out;
}

}  // namespace heddle
