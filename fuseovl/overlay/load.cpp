// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/load.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <ctime>
#include <map>

#include "base/log.hpp"
#include "base/try.hpp"
#include "resolver/map/served_names.hpp"

namespace heddle {
namespace {

/// Whether the node itself holds files, going by statfs(2)'s magic: unknown ones count as remote,
/// which costs a copy in the page cache and is right everywhere. Each file system is asked once,
/// and none whose files could not be looked at.
class NodeLocal {
 public:
  bool has(const Origin& origin, const std::string& path) {
    if (!origin.usable) return false;
    const auto [entry, is_new] = by_device_.try_emplace(origin.stamp.id.dev);
    if (is_new) entry->second = ask(origin, path);
    return entry->second;
  }

 private:
  static bool ask(const Origin& origin, const std::string& path) {
    struct statfs status {};
    const int rc =
        origin.fd ? ::fstatfs(origin.fd.get(), &status) : ::statfs(path.c_str(), &status);
    if (rc != 0) return false;
    constexpr std::uint32_t local[] = {
        0xEF53,      // ext2, ext3, ext4
        0x58465342,  // xfs
        0x9123683E,  // btrfs
        0x2FC12FC1,  // zfs
        0xF2F52010,  // f2fs
        0x01021994,  // tmpfs
        0x858458F6,  // ramfs
        0x794C7630,  // overlayfs: its layers are the container engine's, on the node
        0x73717368,  // squashfs
        0xE0F5E1E2,  // erofs
    };
    return std::ranges::find(local, static_cast<std::uint32_t>(status.f_type)) != std::end(local);
  }
  std::map<std::uint64_t, bool> by_device_;
};

void leave_out(MapContent& content, const Origins& origins) {
  const auto gone = [&](const auto& entry) { return !origins.files[entry.second].usable; };
  for (auto& view : content.views) std::erase_if(view.names, gone);
  for (auto& program : content.programs) std::erase_if(program.guided, gone);
  std::erase_if(content.paths, gone);
}

Result<std::string> index_of(const MapContent& content, const Origins& origins,
                             const LoadOptions& options, const std::string& map_id) {
  const auto root = fmt::format("{}/{}/{}", options.mount_point, kMapsFolder, map_folder(map_id));
  IndexInput input{content, root, {}, std::vector<bool>(content.objects.size())};
  for (const auto& program : content.programs) {
    const Origin& origin = origins.files[program.object];
    input.programs.push_back(origin.as_mapped ? std::optional(origin.stamp) : std::nullopt);
  }
  for (const Origin& origin : origins.files)
    input.objects.push_back(origin.usable ? std::optional(origin.stamp) : std::nullopt);
  NodeLocal local;
  if (options.serve == ServePolicy::remote)
    for (ObjectId id = 0; id < content.objects.size(); ++id)
      input.direct[id] = local.has(origins.files[id], content.objects[id].path);
  return make_index(input);
}

std::string utc_text(const timespec& time) {
  std::tm parts{};
  ::gmtime_r(&time.tv_sec, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

void stage(OverlayContent& out, const StageOptions& options) {
  auto folder = StageFolder::open(options.directory);
  if (!folder) {
    warn(folder.error());
    return;
  }
  if (auto staged =
          out.files.stage(std::make_shared<const StageFolder>(std::move(*folder)), options.budget);
      !staged)
    warn(staged.error());
}

}  // namespace

Result<OverlayContent> load_overlay(const LoadOptions& options, std::vector<Drift>& drifts) {
  auto map = options.map_fd >= 0 ? MapFile::of(options.map_fd, options.origin_timeout)
                                 : MapFile::find(options.map_path, options.origin_timeout);
  if (!map) return fail(std::move(map.error()));
  if (auto ours = check_map_owner(map->status(), options.map_path); !ours)
    return fail(std::move(ours.error()));
  if (options.map_fd < 0) TRY(check_map_path(options.map_path));
  OverlayContent out;
  MapContent content;
  {
    auto reader = map->read();
    if (!reader) return fail(std::move(reader.error()));
    auto all = reader->read_all();
    if (!all) return fail(std::move(all.error()));
    content = std::move(*all);
    out.facts.map_id = reader->id().hex();
  }
  out.map_status = map->status();
  out.map_file = map->take_file();

  Origins origins = open_origins(content, raise_fd_limit(),
                                 {options.origin_timeout, options.on_drift == OnDrift::warn});
  if (origins.silent && options.on_drift == OnDrift::refuse)
    return fail(Error::with_code(
        ETIMEDOUT, content.objects[*origins.silent].path, "cannot be checked",
        not_answered_for(options.origin_timeout),
        "--on-drift warn mounts without the files of such a file system, --origin-timeout says how "
        "long to wait"));
  drifts = origins.drifts;
  if (!drifts.empty() && options.on_drift == OnDrift::refuse)
    return fail(
        map->path(), "does not fit this node",
        std::to_string(drifts.size()) + (drifts.size() == 1 ? " file differs" : " files differ"),
        "build the map again (fs-resolve build), or mount with --on-drift warn");
  leave_out(content, origins);

  auto tree = Tree::build(content, {std::string(map_folder(out.facts.map_id)), options.previous});
  if (!tree) return fail(std::move(tree.error()));
  out.tree = std::move(*tree);
  auto index = index_of(content, origins, options, out.facts.map_id);
  if (!index) return fail(std::move(index.error()));
  out.index = std::move(*index);
  for (auto& [name, bytes] : content.generated) out.generated.push_back(std::move(bytes));
  std::vector<std::string> paths;
  paths.reserve(content.objects.size());
  for (auto& object : content.objects) paths.push_back(std::move(object.path));
  out.facts.map_path = map->path();
  out.facts.mount_point = options.mount_point;
  for (const auto& before : options.previous) out.facts.previous_maps.push_back(before.id);
  out.facts.views = content.views.size();
  for (const auto& view : content.views) out.facts.names += view.names.size();
  out.facts.index_bytes = out.index.size();
  ::clock_gettime(CLOCK_REALTIME, &out.made);
  out.facts.start_time = utc_text(out.made);
  out.files = ObjectFiles(std::move(origins), std::move(paths));
  out.origin_timeout = options.origin_timeout;
  out.files.on_change(options.on_change);
  if (!options.stage.directory.empty()) stage(out, options.stage);
  content = MapContent();
  ::malloc_trim(0);  // the map's strings are gone: the daemon lives long and is small
  return out;
}

}  // namespace heddle
