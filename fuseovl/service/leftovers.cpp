// SPDX-License-Identifier: MIT
#include "fuseovl/service/leftovers.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "base/run_directory.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/mount/kernel_mount.hpp"

namespace heddle {
namespace {

/// Calls `work` for each name but `.` and `..`, also when it removes them.
void each_name(int directory, const std::function<void(const std::string&)>& work) {
  const int again = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* listing = again < 0 ? nullptr : ::fdopendir(again);
  if (!listing) return;
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(listing)) names.emplace_back(entry->d_name);
  ::closedir(listing);
  for (const auto& name : names)
    if (name != "." && name != "..") work(name);
}

/// Whether flock(2) of a directory there holds for all who use it: on network file systems it holds
/// on one node only, and another's directories would seem to be nobody's.
bool locks_are_true(const Fd& directory) {
  constexpr std::uint32_t kF2fs = 0xF2F5'2010;
  constexpr std::uint32_t kZfs = 0x2FC1'2FC1;
  struct statfs fs {};
  if (::fstatfs(directory.get(), &fs) != 0) return false;
  switch (static_cast<std::uint32_t>(fs.f_type)) {
    case EXT4_SUPER_MAGIC:
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case TMPFS_MAGIC:
    case RAMFS_MAGIC:
    case OVERLAYFS_SUPER_MAGIC:
    case kF2fs:
    case kZfs:
      return true;
    default:
      return false;
  }
}

enum class Sweep : std::uint8_t { done, too_young };

/// Removes the directory `name` when it is one of ours that nobody has locked: what lies in it, not
/// deeper, below a descriptor. No name comes from anybody else.
Sweep sweep_directory(int parent, const std::string& name) {
  constexpr std::int64_t kYoungNs = 1'000'000'000;
  const Fd directory(
      ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat st {};
  if (!directory || ::fstat(directory.get(), &st) != 0 || st.st_uid != ::geteuid())
    return Sweep::done;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const auto age = (now.tv_sec - st.st_ctim.tv_sec) * kYoungNs + now.tv_nsec - st.st_ctim.tv_nsec;
  // It may be about to be locked.
  if (age >= 0 && age < kYoungNs) return Sweep::too_young;
  if (::flock(directory.get(), LOCK_EX | LOCK_NB) != 0) return Sweep::done;
  each_name(directory.get(), [&](const std::string& file) {
    if (::unlinkat(directory.get(), file.c_str(), 0) != 0)
      (void)::unlinkat(directory.get(), file.c_str(), AT_REMOVEDIR);
  });
  (void)::unlinkat(parent, name.c_str(), AT_REMOVEDIR);
  return Sweep::done;
}

/// Mounts of this user's that nobody serves any more: a job's end kills a daemon together with its
/// service (cgroups), and the next service to end tidies up after them.
void sweep_mounts() {
  const std::string ours = "user_id=" + std::to_string(::geteuid());
  for (const auto& mount : list_mounts().value_or(std::vector<MountEntry>())) {
    const auto slash = mount.point.rfind("/hd-");
    struct stat st {};
    if (mount.type != kMountType || !mount.has_option(ours) || slash == mount.point.npos ||
        !mount.point.ends_with("/m") ||
        mount.point.find('/', slash + 1) != mount.point.size() - 2 ||
        ::stat(mount.point.c_str(), &st) == 0 || errno != ENOTCONN)
      continue;
    (void)unmount_fuse(mount.point, Unmount::detach);
    (void)remove_tree(mount.point.substr(0, mount.point.size() - 2));
  }
}

/// The sockets of services that were killed.
void sweep_sockets() {
  const auto directory = RunDirectory::open();
  if (!directory) return;
  for (const auto& name : directory->names()) {
    if (!name.starts_with(kLeasePrefix)) continue;
    const auto lock = directory->lock(name, std::chrono::milliseconds(0));
    if (lock && directory->is_dead(name)) directory->remove(name);
  }
}

/// May take a second: young ones may be about to be locked.
void sweep_directories(const std::string& parent) {
  const Fd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory || !locks_are_true(directory)) return;
  for (int tries = 0; tries < 2; ++tries) {
    bool again = false;
    each_name(directory.get(), [&](const std::string& name) {
      if (name.size() == 9 && name.starts_with("hd-"))  // base/temp_dir.cpp
        again = sweep_directory(directory.get(), name) == Sweep::too_young || again;
    });
    if (!again) return;
    if (tries == 0) (void)::poll(nullptr, 0, 1100);
  }
}

}  // namespace

void sweep_leftovers(const std::string& parent) {
  sweep_mounts();
  sweep_sockets();
  sweep_directories(parent);
}

Result<Fd> lock_directory(const std::string& path) {
  auto directory = open_file(path, O_RDONLY | O_DIRECTORY);
  if (directory && ::flock(directory->get(), LOCK_EX | LOCK_NB) != 0)
    return fail_errno(path, "cannot lock");
  return directory;
}

}  // namespace heddle
