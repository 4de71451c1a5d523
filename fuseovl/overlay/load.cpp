// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/load.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/stat.h>

#include <ctime>

#include "base/log.hpp"
#include "base/try.hpp"
#include "resolver/map/served_names.hpp"

namespace heddle {
namespace {

void leave_out(MapContent& content, const Origins& origins) {
  const auto gone = [&](const auto& entry) { return !origins.files[entry.second].usable; };
  for (auto& view : content.views) std::erase_if(view.names, gone);
  for (auto& program : content.programs) std::erase_if(program.guided, gone);
  std::erase_if(content.paths, gone);
}

Result<std::string> index_of(const MapContent& content, const Origins& origins,
                             const LoadOptions& options, const std::string& map_id) {
  const auto root =
      fmt::format("{}/{}/{}", options.mount_point, kMapsDirectory, map_directory(map_id));
  IndexInput input{content, root, {}, std::vector<bool>(content.objects.size())};
  for (const auto& program : content.programs) {
    const Origin& origin = origins.files[program.object];
    input.programs.push_back(origin.as_mapped ? std::optional(origin.stamp) : std::nullopt);
  }
  for (const Origin& origin : origins.files)
    input.objects.push_back(origin.usable ? std::optional(origin.stamp) : std::nullopt);
  if (options.serve == ServePolicy::remote)
    for (ObjectId id = 0; id < content.objects.size(); ++id)
      input.direct[id] = origins.files[id].usable && origins.files[id].locality != Locality::remote;
  return make_index(input);
}

std::string utc_text(const timespec& time) {
  std::tm parts{};
  ::gmtime_r(&time.tv_sec, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Result<void> stage(OverlayContent& out, const StageOptions& options) {
  return out.files.stage(TRY(StageDirectory::open(options.directory)), options.budget);
}

}  // namespace

Result<OverlayContent> load_overlay(const LoadOptions& options, std::vector<Drift>& drifts) {
  auto map = TRY(options.map_fd >= 0 ? MapFile::of(options.map_fd, options.origin_timeout)
                                     : MapFile::find(options.map_path, options.origin_timeout));
  TRY(check_map_owner(map.status, options.map_path));
  if (options.map_fd < 0) TRY(check_map_path(options.map_path));
  OverlayContent out;
  MapContent content;
  {
    auto reader = TRY(map.read());
    content = TRY(reader.read_all());
    out.facts.map_id = reader.id().hex();
  }

  Origins origins = open_origins(content, raise_fd_limit(), options.origin_timeout);
  if (origins.silent && options.on_drift == OnDrift::refuse)
    return fail(Error(origins.silent->path, "cannot be checked", origins.silent->what,
                      "--on-drift warn mounts without the files of such a file system, "
                      "--origin-timeout says how long to wait")
                    .because(Cause::silent));
  drifts = origins.drifts;
  if (!drifts.empty() && options.on_drift == OnDrift::refuse)
    return fail(
        map.path, "does not fit this node",
        std::to_string(drifts.size()) + (drifts.size() == 1 ? " file differs" : " files differ"),
        "build the map again (fs-resolve build), or mount with --on-drift warn");
  leave_out(content, origins);

  out.tree =
      TRY(Tree::build(content, {std::string(map_directory(out.facts.map_id)), options.previous}));
  ::clock_gettime(CLOCK_REALTIME, &out.made);
  auto index = TRY(index_of(content, origins, options, out.facts.map_id));
  auto map_bytes = TRY(map.bytes());
  out.facts.index_bytes = index.size();
  out.own.push_back({std::move(index), out.made});
  out.own.push_back({std::move(map_bytes), map.status.st_mtim});
  for (auto& [name, bytes] : content.generated) out.own.push_back({std::move(bytes), out.made});
  std::vector<std::string> paths;
  paths.reserve(content.objects.size());
  for (auto& object : content.objects) paths.push_back(std::move(object.path));
  out.facts.map_path = map.path;
  out.facts.mount_point = options.mount_point;
  for (const auto& before : options.previous) out.facts.previous_maps.push_back(before.id);
  out.facts.views = content.views.size();
  for (const auto& view : content.views) out.facts.names += view.names.size();
  out.facts.start_time = utc_text(out.made);
  out.files = ObjectFiles(std::move(origins), std::move(paths));
  out.origin_timeout = options.origin_timeout;
  out.files.on_change(options.on_change);
  if (!options.stage.directory.empty())
    if (const auto staged = stage(out, options.stage); !staged) warn(staged.error());
  content = MapContent();
  ::malloc_trim(0);  // the daemon lives long
  return out;
}

}  // namespace heddle
