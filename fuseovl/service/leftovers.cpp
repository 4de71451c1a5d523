// SPDX-License-Identifier: MIT
#include "fuseovl/service/leftovers.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "base/child.hpp"
#include "base/file_systems.hpp"
#include "base/run_directory.hpp"
#include "base/try.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/warm_up.hpp"

namespace heddle {
namespace {

/// Prefix of a directory that is not locked yet.
constexpr const char* kUnlocked = "hd-new";
constexpr time_t kLockedAfter = 10;     ///< seconds, at the latest
constexpr unsigned kLongestSweep = 30;  // seconds

/// Removes the directory `name`, with one level of files, if it is this user's and not locked. By
/// descriptors, which no rename redirects.
void sweep_directory(int parent, const std::string& name) {
  const Fd directory(
      ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat st {};
  if (!directory || ::fstat(directory.get(), &st) != 0 || st.st_uid != ::geteuid()) return;
  const bool is_made_now = st.st_mtim.tv_sec > ::time(nullptr) - kLockedAfter;
  if (name.starts_with(kUnlocked) && is_made_now) return;
  if (::flock(directory.get(), LOCK_EX | LOCK_NB) != 0) return;
  for_each_name(directory.get(), [&](const std::string& file) {
    if (::unlinkat(directory.get(), file.c_str(), 0) != 0)
      (void)::unlinkat(directory.get(), file.c_str(), AT_REMOVEDIR);
  });
  (void)::unlinkat(parent, name.c_str(), AT_REMOVEDIR);
}

void sweep_directories(const std::string& parent) {
  const Fd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // On network file systems another node's flock(2) may not be seen.
  if (!directory || locality_of(directory.get()) == Locality::remote) return;
  for_each_name(directory.get(), [&](const std::string& name) {
    const auto random = name.size() - std::min<std::size_t>(name.size(), 7);  // mkdtemp(3)
    if (name.substr(0, random) == "hd" || name.substr(0, random) == kUnlocked)
      sweep_directory(directory.get(), name);
  });
}

/// Dead mounts of this user: the end of a job's cgroup kills a daemon together with its service.
void sweep_mounts() {
  const std::string ours = "user_id=" + std::to_string(::geteuid());
  for (const auto& mount : list_mounts().value_or(std::vector<MountEntry>())) {
    const auto slash = mount.point.rfind("/hd-");
    if (mount.type != kMountType || !mount.has_option(ours) || slash == mount.point.npos ||
        mount.point.find('/', slash + 1) != mount.point.size() - 2 || !mount.point.ends_with("/m"))
      continue;
    const Fd directory(::open(mount.point.substr(0, mount.point.size() - 2).c_str(),
                              O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    // Other errors: a file system without locks, or one that is gone.
    if (directory && ::flock(directory.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      continue;
    if (!is_dead(mount.point)) continue;
    (void)unmount_fuse(mount.point, Unmount::detach);
    (void)remove_tree(mount.point.substr(0, mount.point.size() - 2));
  }
}

}  // namespace

void sweep_sockets() {
  const auto directory = RunDirectory::open();
  if (!directory) return;
  for (const auto& name : directory->names()) {
    if (!name.starts_with(kLeasePrefix)) continue;
    const auto lock = directory->lock(name, std::chrono::milliseconds(0));
    if (lock && directory->is_dead(name)) directory->remove(name);
  }
}

void sweep_leftovers(const std::string& parent) {
  sweep_mounts();
  sweep_sockets();
  sweep_directories(parent);
}

void start_sweep(const std::string& parent) {
  ForkOptions options{.dies_with_parent = false, .keep = std::vector<int>(), .null_stdio = true};
  options.name = "heddle-sweep";
  auto child = fork_child(options, [&] {
    ::alarm(kLongestSweep);
    sweep_leftovers(parent);
    return 0;
  });
  if (child) (void)child->release();
}

Result<WorkDirectory> WorkDirectory::make() {
  // Short: ld.so compares each library's path, and it begins with this.
  auto directory = TRY(TempDir::create(kUnlocked));
  auto path = directory.path();
  auto lock = TRY(open_file(path, O_RDONLY | O_DIRECTORY));
  // Network file systems may have no locks; they are not swept.
  if (::flock(lock.get(), LOCK_SH | LOCK_NB) != 0)
    if (const int error = errno; locality_of(lock.get()) != Locality::remote)
      return fail_errno(path, "cannot lock", error);
  // APP's children may change their user. Not before it is locked: others can lock it then.
  (void)::fchmod(lock.get(), 0755);
  TRY(directory.move_to(path.replace(path.rfind(kUnlocked), std::strlen(kUnlocked), "hd")));
  return WorkDirectory{std::move(directory), std::move(lock)};
}

}  // namespace heddle
