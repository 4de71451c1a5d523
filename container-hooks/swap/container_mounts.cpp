// SPDX-License-Identifier: MIT
#include "container-hooks/swap/container_mounts.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>

#include "base/mount_calls.hpp"
#include "base/mounts.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"
#include "container-hooks/host/watched_work.hpp"

namespace heddle::hook {
namespace {

constexpr long kTmpfsMagic = 0x01021994;  // <linux/magic.h>; devtmpfs has it too

/// Whether a file system of the container is mounted outside its root too: a directory made in it
/// would be on the host.
bool is_mounted_outside(const Fd& root, dev_t device) {
  const auto rootfs = path_of(root.get());
  const auto mounts = list_mounts();
  return rootfs.empty() || !mounts ||
         std::any_of(mounts->begin(), mounts->end(), [&](const auto& mount) {
           return mount.device == device && mount.point != rootfs &&
                  !mount.point.starts_with(rootfs + "/");
         });
}

/// Fills the kernel's dentry cache by READDIRPLUS: two requests, instead of one for each bind and
/// each name that a program opens.
void list_once(const Fd& directory) {
  const Fd fd(::openat(directory.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  char entries[32 * 1024];
  while (fd && ::getdents64(fd.get(), entries, sizeof(entries)) > 0) {
  }
}

}  // namespace

Result<ContainerMounts> ContainerMounts::open(const std::string& rootfs) {
  auto root = TRY(open_file(rootfs, O_PATH | O_DIRECTORY));
  return ContainerMounts(std::move(root));
}

/// Whether a mount on that mount propagates to its peers, which may be the host's.
Result<bool> ContainerMounts::is_shared(int mount) {
  if (shared_.empty()) {
    const auto mounts = TRY(list_mounts());
    for (const auto& entry : mounts) shared_.emplace(entry.id, entry.shared);
  }
  const auto found = shared_.find(mount);
  return found == shared_.end() || found->second;  // a later mount is unknown
}

Result<ContainerMounts::Target> ContainerMounts::vet(const Fd& target, const std::string& path,
                                                     Kind kind) {
  constexpr const char* kWhat = "cannot mount over it in the container";
  struct stat status {};
  if (::fstat(target.get(), &status) != 0) return fail_errno(path, kWhat);
  if (kind == Kind::file && !S_ISREG(status.st_mode))
    return fail(path, kWhat, "it is not a regular file");
  if (kind == Kind::directory && !S_ISDIR(status.st_mode))
    return fail(path, kWhat, "it is not a directory");
  const auto stamp = file_stamp(status);
  const Target found{stamp.id, mount_id(target.get())};
  if (found.mount < 0) return fail(path, kWhat, "/proc does not show its mount");
  if (own_mounts_.contains(found.mount)) return found;
  if (file_systems_.is_made_up(target.get(), stamp))
    return fail(path, kWhat, "it lies on a kernel file system (proc, sysfs, ...)");
  const bool shared = TRY(is_shared(found.mount));
  if (shared)
    return fail(path, kWhat,
                "it lies on a shared mount: a mount over it would show outside the container",
                "give the container that volume with private or slave propagation");
  return found;
}

Result<void> ContainerMounts::check(const Decision& decision) {
  const auto check_one = [&](const std::string& path, Kind kind) -> Result<void> {
    note_step("looking for the image's", path);
    const auto target = TRY(find_in_root(root_.get(), path, 0));
    const auto found = TRY(vet(target, path, kind));
    checked_.emplace(path, found.id);
    return {};
  };
  for (const auto& bind : decision.binds) TRY(check_one(bind.target, Kind::file));
  for (const auto& bind : decision.directories)
    if (bind.exists) TRY(check_one(bind.target, Kind::directory));
  return {};
}

Result<Fd> ContainerMounts::make_directory(const std::string& path) {
  auto there = find_in_root(root_.get(), path, O_DIRECTORY);
  if (there || there.error().code() != ENOENT) return there;
  const auto slash = path.rfind('/');
  const std::string above = slash == 0 ? "/" : path.substr(0, slash);
  auto directory = TRY(find_in_root(root_.get(), above, O_DIRECTORY));
  struct stat status {};
  struct statfs system {};
  if (::fstat(directory.get(), &status) != 0 || ::fstatfs(directory.get(), &system) != 0)
    return fail_errno(above, "cannot inspect it in the container");
  if (system.f_type != kTmpfsMagic || is_mounted_outside(root_, status.st_dev))
    return fail(
        path, "cannot mount there",
        "the container has no such directory, and making it would write to the image or the host",
        "give the container a tmpfs on " + above + ", or choose another place (--at)");
  made_name_ = path.substr(slash + 1);
  // As the directory's owner: a tmpfs of a user namespace takes no file of an unmapped user, as
  // root may be (EOVERFLOW).
  const auto made = [&] {
    (void)::setfsgid(status.st_gid);
    (void)::setfsuid(status.st_uid);
    const int result = ::mkdirat(directory.get(), made_name_.c_str(), 0755);
    const int error = errno;
    (void)::setfsuid(::geteuid());
    (void)::setfsgid(::getegid());
    errno = error;
    return result == 0;
  }();
  if (!made) {
    made_name_.clear();
    return fail_errno(path, "cannot make the mount point");
  }
  made_in_ = std::move(directory);
  return find_in_root(root_.get(), path, O_DIRECTORY);
}

Result<void> ContainerMounts::attach(Fd tree, const std::string& mount_point) {
  note_step("mounting at", mount_point);
  note_placed(true);
  auto directory = make_directory(mount_point);
  if (!directory) {
    note_placed(false);
    return fail(std::move(directory.error()));
  }
  auto attached = [&]() -> Result<void> {
    TRY(vet(*directory, mount_point, Kind::directory));
    return attach_mount(tree.get(), directory->get(), mount_point);
  }();
  if (!attached) {
    undo();
    return attached;
  }
  overlay_ = Fd(::fcntl(tree.get(), F_DUPFD_CLOEXEC, 3));
  keep(std::move(tree));
  return {};
}

void ContainerMounts::keep(Fd placed) {
  if (const int mount = mount_id(placed.get()); mount >= 0) own_mounts_.insert(mount);
  placed_.push_back(std::move(placed));
}

Result<void> ContainerMounts::place(const std::string& source, const std::string& path, Kind kind) {
  note_step("mounting over the image's", path);
  auto tree = TRY(copy_mount(overlay_.get(), source, AT_SYMLINK_NOFOLLOW));
  auto target = TRY(find_in_root(root_.get(), path, 0));
  const auto found = TRY(vet(target, path, kind));
  // Below a directory that was bound meanwhile, the target is a file of the host.
  const auto checked = checked_.find(path);
  const bool is_same = checked != checked_.end() && checked->second == found.id;
  if (!is_same && !own_mounts_.contains(found.mount))
    return fail(path, "cannot mount over it in the container", "it was replaced meanwhile");
  TRY(attach_mount(tree.get(), target.get(), path));
  keep(std::move(tree));
  return {};
}

Result<void> ContainerMounts::bind(const Decision& decision) {
  note_step("reading", decision.mount_point);
  list_once(overlay_);
  // Directories first: files may be bound below them.
  for (const auto& bind : decision.directories)
    if (bind.exists) TRY(place(bind.source, bind.target, Kind::directory));
  for (const auto& bind : decision.binds) TRY(place(bind.source, bind.target, Kind::file));
  return {};
}

void ContainerMounts::undo() {
  overlay_.reset();
  for (; !placed_.empty(); placed_.pop_back()) detach_mount(placed_.back().get());
  own_mounts_.clear();
  if (!made_name_.empty()) (void)::unlinkat(made_in_.get(), made_name_.c_str(), AT_REMOVEDIR);
  made_name_.clear();
  note_placed(false);
}

}  // namespace heddle::hook
