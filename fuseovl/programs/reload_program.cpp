// SPDX-License-Identifier: MIT
// fs-mount --reload: replaces a mount in use by one of another map, or of this fs-mount. The kernel
// exchanges the mounts (fuseovl/mount/kernel_mount.hpp); no daemon takes part. A program that is
// starting with the old map finds that map's names in the new mount too, as links to the original
// files: one start never sees names of two maps.

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/mount_service.hpp"
#include "base/run_directory.hpp"
#include "base/sandbox/privileges.hpp"
#include "fuseovl/files/map_file.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/warm_up.hpp"
#include "fuseovl/programs/programs.hpp"
#include "resolver/map/served_names.hpp"

namespace heddle {
namespace {

constexpr const char* kWhat = "cannot reload";
/// Of earlier maps. In a start with an older one ld.so finds none of its names and searches as
/// usual.
constexpr std::size_t kMostPrevious = 16;

/// Whether this process may exchange the mount at `path`.
Result<void> check_mount(const std::string& path, const std::string& directory) {
  const auto mounted = TRY(find_mount(path));
  if (!mounted || mounted->type != kMountType)
    return fail(directory, kWhat, "no heddle mount is here");
  if (!mounted->has_option("user_id=" + std::to_string(::geteuid())))
    return fail(directory, kWhat, "the mount belongs to another user");
  if (is_dead(path))
    return fail(directory, kWhat, "its daemon has died", "unmount it with fs-mount -u");
  // Before Linux 5.2 mount_stacking() does not see a missing right.
  const auto stacking = mount_stacking();
  if (!stacking || !has_capability(CAP_SYS_ADMIN))
    return fail_errno(directory, kWhat, EPERM,
                      "it takes the right to mount here (CAP_SYS_ADMIN): fs-mount -u DIR, and "
                      "fs-mount MAP DIR once it is not in use");
  // Completes an exchange whose process was killed between its two steps.
  const auto mounts = TRY(list_mounts());
  auto left = std::ranges::count_if(mounts, [&](const MountEntry& mount) {
    return mount.point == path && mount.type == kMountType;
  });
  for (; *stacking == Stacking::beneath && left > 1; --left)
    if (::umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0)
      return fail_errno(directory, kWhat);
  return {};
}

/// The names of the map that the mount at `path` serves now.
Result<PreviousMap> names_of_current(const std::string& path, const std::string& id,
                                     std::chrono::milliseconds limit) {
  const auto map = TRY(MapFile::find(path + "/" + std::string(kOwnDirectory) + "/map", limit));
  const auto content = TRY(map.read_all());
  PreviousMap out{std::string(map_directory(id)), {}};
  for (const auto& view : content.views) {
    const auto prefix = content.views.size() > 1 ? view.name + "/" : "";
    for (const auto& [name, object] : view.names)
      out.names.emplace_back(prefix + name, content.objects.at(object).path);
  }
  return out;
}

/// The links that the mount at `path` has for an earlier map.
PreviousMap names_of_previous(const std::string& path, const std::string& id) {
  PreviousMap out{id, {}};
  const auto directory = path + "/" + std::string(kMapsDirectory) + "/" + id;
  const Fd root(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root) return out;
  (void)walk_tree(root.get(), [&](const std::string& name, const DirectoryEntry& entry) {
    std::error_code error;
    if (entry.type != DT_LNK) return;
    const auto target = std::filesystem::read_symlink(directory + "/" + name, error);
    if (!error) out.names.emplace_back(name, target.string());
  });
  return out;
}

bool is_map_directory(const std::string& id) {
  return id.size() == 12 && id.find_first_not_of("0123456789abcdef") == id.npos;
}

Result<std::string> id_of_map(const std::string& path, std::chrono::milliseconds limit) {
  const auto map = TRY(MapFile::find(path, limit));
  auto reader = TRY(map.read());
  return reader.id().hex();
}

/// Fills in the map and the earlier maps of the new mount.
Result<void> look_at(const std::string& path, const std::string& directory,
                     MountSettings& settings) {
  auto& load = settings.load;
  const auto stats = TRY(read_stats(path, kWhat));
  const auto old_id = stats.value("map_id", "");
  const bool same_map = load.map_path.empty();
  if (same_map) load.map_path = stats.value("map", "");
  const std::string new_id = TRY(id_of_map(load.map_path, load.origin_timeout));
  if (same_map && new_id != old_id)
    return fail(directory, kWhat, load.map_path + " is now another map",
                "fs-mount --reload MAP DIR");
  if (is_map_hash(path.substr(path.rfind('/') + 1)) && new_id != old_id)
    return fail(directory, kWhat, "it is the node's mount of this map",
                "the service makes one for each requested map");
  auto previous = stats.value("previous_maps", std::vector<std::string>());
  std::erase_if(previous, [&](const std::string& id) {
    return !is_map_directory(id) || id == map_directory(new_id);
  });
  if (new_id != old_id)
    load.previous.push_back(TRY(names_of_current(path, old_id, load.origin_timeout)));
  for (const auto& id : previous)
    if (load.previous.size() < kMostPrevious) load.previous.push_back(names_of_previous(path, id));
  return {};
}

}  // namespace

Result<void> reload_mount(MountSettings settings) {
  const std::string& directory = settings.mount_point;
  const std::string path = TRY(resolve_mount_point(directory));
  TRY(check_mount(path, directory));
  const auto run_directory = TRY(RunDirectory::open());
  // What the last one has just started may hold its lock for a moment more.
  const auto lock = run_directory.lock("reload " + path, std::chrono::seconds(1));
  if (!lock && lock.error().code() == ETIMEDOUT)
    return fail(directory, kWhat, "another --reload is at work here");
  if (!lock) return fail(lock.error());
  TRY(look_at(path, directory, settings));
  settings.exchange = true;
  return start_daemon(settings);
}

}  // namespace heddle
