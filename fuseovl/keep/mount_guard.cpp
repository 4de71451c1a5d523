// SPDX-License-Identifier: MIT
#include "fuseovl/keep/mount_guard.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include "base/temp_dir.hpp"
#include "fuseovl/keep/leftovers.hpp"
#include "fuseovl/mount/fusermount.hpp"
#include "fuseovl/mount/kernel_mount.hpp"

namespace heddle {
namespace {

void unmount_and_remove(const std::string& folder) {
  const std::string mount_point = folder + "/m";
  if (const auto mounted = find_mount(mount_point);
      mounted && *mounted && (*mounted)->type == kMountType)
    (void)unmount_fuse(mount_point, Unmount::detach);
  (void)remove_tree(folder);
}

/// Mounts of this user's that nobody serves any more: a job's end kills a daemon together with its
/// guard (cgroups), and the next one to end tidies up after them.
void sweep_mounts() {
  const std::string ours = "user_id=" + std::to_string(::geteuid());
  for (const auto& mount : list_mounts().value_or(std::vector<MountEntry>())) {
    if (mount.type != kMountType || !mount.has_option(ours)) continue;
    const std::string& point = mount.point;
    const auto slash = point.rfind("/hd-");
    if (slash == std::string::npos || !point.ends_with("/m") ||
        point.find('/', slash + 1) != point.size() - 2)
      continue;
    struct stat st {};
    if (::stat(point.c_str(), &st) != 0 && errno == ENOTCONN)
      unmount_and_remove(point.substr(0, point.size() - 2));
  }
}

}  // namespace

Result<MountGuard> MountGuard::start(const std::string& folder) {
  auto alive = delegate_unmounting(folder + "/m", [folder] {
    unmount_and_remove(folder);
    sweep_mounts();
    sweep_sockets();
    sweep_folders(folder.substr(0, folder.rfind('/')));
  });
  if (!alive) return fail(std::move(alive.error()));
  return MountGuard(std::move(*alive));
}

}  // namespace heddle
