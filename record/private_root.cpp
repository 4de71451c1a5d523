// SPDX-License-Identifier: MIT
#include "record/private_root.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/backoff.hpp"
#include "base/log.hpp"
#include "base/mounts.hpp"
#include "base/try.hpp"
#include "fuseovl/mount/fusermount.hpp"
#include "record/loopback/loopback.hpp"

namespace heddle {
namespace {

std::string own_path(const Fd& fd) { return fmt::format("/proc/self/fd/{}", fd.get()); }

/// The file at `path` (absolute) below `root`, opened name by name: no symbolic link is followed,
/// so what others swap meanwhile leads nowhere else. None and errno where there is no such file.
Fd walk(const Fd& root, const std::string& path) {
  Fd at(::openat(root.get(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (std::size_t begin = 1; at && begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    at = Fd(::openat(at.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    begin = end + 1;
  }
  struct stat st {};
  if (!at || ::fstat(at.get(), &st) != 0) return {};
  if (!S_ISLNK(st.st_mode)) return at;
  errno = ENOENT;
  return {};
}

/// What is at `path` below `from` is bound to that path below `to`. 0 or an errno.
int bind_same_path(const Fd& from, const Fd& to, const std::string& path, unsigned long flags) {
  const Fd source = walk(from, path);
  if (!source) return errno;
  const Fd target = walk(to, path);
  if (!target) return errno;
  return ::mount(own_path(source).c_str(), own_path(target).c_str(), nullptr, MS_BIND | flags,
                 nullptr) == 0
             ? 0
             : errno;
}

}  // namespace

Result<Fd> PrivateRoot::mount(NamespaceKind kind) {
  TRY(enter_private_namespace(kind));
  if (!plan_.mounted_at.empty()) {
    if (::mount(plan_.mounted_at.c_str(), "/", nullptr, MS_BIND, nullptr) != 0)
      return fail_errno(plan_.mounted_at, "cannot use the mount");
    return open_file("/dev/null", O_RDONLY);
  }
  // Opened after unshare: FUSE wants the descriptor's user namespace to be the mount's.
  Fd device = TRY(open_fuse_device());
  const auto options =
      fmt::format("fd={},rootmode=40000,user_id={},group_id={},max_read={},allow_other",
                  device.get(), ::geteuid(), ::getegid(), loopback::kMaxData);
  if (::mount("fs-record", "/", "fuse.heddle-record", 0, options.c_str()) != 0)
    return fail_errno("fuse", "cannot mount");
  return device;
}

Result<void> PrivateRoot::bind_natives() {
  for (const auto& path : plan_.natives) {
    const int error = bind_same_path(old_root_, loopback_, path, MS_REC);
    // ENOENT: a socket that has gone since it was listed.
    if (error != 0 && error != ENOENT)
      return fail_errno(path, "cannot keep the native directory", error);
  }
  return {};
}

Result<void> PrivateRoot::make_root() {
  if (::fchdir(loopback_.get()) != 0) return fail_errno("/", "cannot enter the new root");
  // As runc does it: the old root needs no directory, it is put over the new one and taken off. A
  // root that cannot be pivoted (the initial ramfs) is covered instead.
  if (::syscall(SYS_pivot_root, ".", ".") == 0) {
    if (::fchdir(old_root_.get()) != 0 || ::umount2(".", MNT_DETACH) != 0)
      return fail_errno("/", "cannot leave the old root");
  } else if (::chroot(".") != 0) {
    return fail_errno("/", "cannot make the loopback the root");
  }
  if (::chdir("/") != 0) return fail_errno("/", "cannot enter the new root");
  return {};
}

Result<void> PrivateRoot::bind_scopes() {
  for (const auto& scope : plan_.scopes)
    if (const int error = bind_same_path(loopback_, old_root_, scope, 0); error != 0)
      return fail_errno(scope, "cannot record this directory", error);
  // The whole of the loopback is not wanted any more.
  if (::fchdir(loopback_.get()) != 0 || ::umount2(".", MNT_DETACH) != 0 ||
      ::fchdir(old_root_.get()) != 0)
    return fail_errno("/", "cannot take the loopback off the root");
  return {};
}

Result<void> PrivateRoot::enter() {
  old_root_ = TRY(open_file("/", O_PATH | O_DIRECTORY));
  // `..` of a root is the root, and what is mounted on it (path_resolution(7)).
  loopback_ = TRY(open_file("/..", O_PATH | O_DIRECTORY));
  if (plan_.scopes.empty()) {
    TRY(bind_natives());
    TRY(make_root());
  } else {
    TRY(bind_scopes());
  }
  if (::chdir(plan_.cwd.c_str()) != 0) return fail_errno(plan_.cwd, "cannot go back to");
  return {};
}

void PrivateRoot::mark_start() const {
  struct stat st {};
  // There is no such file: any other outcome has not reached the recorder.
  (void)insist(
      [&] { return ::fstatat(loopback_.get(), loopback::kStartName, &st, AT_SYMLINK_NOFOLLOW); },
      [](int error) { return error != ENOENT; });
}

Result<void> take_user_mount_off(const std::string& path) {
  auto done = fusermount_unmount(path, true);
  if (done) return done;
  const auto mounted = find_mount(path);
  return mounted && !*mounted ? Result<void>{} : done;
}

Result<UserMount> UserMount::make() {
  // $TMPDIR may be one that only its owner writes to (a build's, a batch job's).
  auto directory = TempDir::create("fs-record");
  for (const char* parent : {"/tmp", "/var/tmp", "/dev/shm"})
    if (!directory) directory = TempDir::create("fs-record", parent);
  if (!directory) return fail(std::move(directory.error()));
  Fd device = TRY(fusermount_mount(
      directory->path(), "rw,nosuid,nodev,fsname=fs-record,subtype=heddle-record,max_read=" +
                             std::to_string(loopback::kMaxData)));
  return UserMount(std::move(*directory), std::move(device));
}

UserMount::~UserMount() {
  if (directory_.path().empty()) return;  // moved from
  take_off();
  if (!mounted_) return;
  // All files of the machine are below it: nobody is to remove what is in there.
  warn(Error(directory_.release(), "is still mounted", {}, "fusermount3 -uz unmounts it"));
}

void UserMount::take_off() {
  if (mounted_) mounted_ = !take_user_mount_off(directory_.path());
}

}  // namespace heddle
