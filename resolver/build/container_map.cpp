// SPDX-License-Identifier: MIT
#include "resolver/build/container_map.hpp"

#include <algorithm>
#include <map>

#include "base/try.hpp"
#include "resolver/build/object_table.hpp"
#include "resolver/map/served_names.hpp"

namespace heddle {
namespace {

Result<ObjectId> add_file(World& host, ObjectTable& objects, const std::string& path) {
  auto file = host.facts(path);
  if (file) return objects.add(path, *file);
  if (file.error().code() != ENOEXEC) return fail(std::move(file.error()));
  return objects.add_data(path);
}

}  // namespace

Result<MapContent> build_container_map(World& host, const policy::Decision& decision,
                                       const std::string& container_json) {
  ObjectTable objects;
  std::map<std::string, ObjectId> names;
  for (const auto& [name, path] : decision.names) names[name] = TRY(add_file(host, objects, path));
  MapContent out;
  const auto rank = objects.put_into(out);
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
  auto generated = decision.made;
  const std::string own(kOwnPrefix);
  generated[own + "container.json"] = container_json;
  generated[own + "ld.so.cache"] = decision.ld_so_cache;
  out.generated.assign(generated.begin(), generated.end());
  return out;
}

}  // namespace heddle
