// SPDX-License-Identifier: MIT
#include "record/private_root.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fuse_device.hpp"
#include "base/insist.hpp"
#include "base/launch/private_mount.hpp"
#include "record/loopback/access_log.hpp"
#include "record/loopback/protocol.hpp"

namespace heddle {
namespace {

/// The loopback as a mount that is attached nowhere yet (fsopen(2) and friends, Linux 5.2).
Result<Fd> mount_loopback(int device) {
  const Fd context(::fsopen("fuse", FSOPEN_CLOEXEC));
  if (!context) return fail_errno("fuse", "cannot set up a mount");
  const auto set = [&](const char* key, const std::string& value) {
    return ::fsconfig(context.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0) == 0;
  };
  const bool done = set("source", "fs-record") && set("subtype", "heddle-record") &&
                    set("fd", std::to_string(device)) && set("rootmode", "40000") &&
                    set("user_id", std::to_string(::geteuid())) &&
                    set("group_id", std::to_string(::getegid())) &&
                    set("max_read", std::to_string(loopback::kMaxData)) &&
                    ::fsconfig(context.get(), FSCONFIG_SET_FLAG, "allow_other", nullptr, 0) == 0 &&
                    ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0;
  Fd mount;
  if (done) mount.reset(::fsmount(context.get(), FSMOUNT_CLOEXEC, 0));
  if (!mount) return fail_errno("fuse", "cannot mount");
  return mount;
}

/// `path` below the descriptor of a root: relative, "." for the root itself.
std::string below_root(const std::string& path) {
  return path.size() > 1 ? path.substr(1) : std::string(".");
}

Result<void> move_mount_to(int mount, int root, const std::string& path) {
  if (::move_mount(mount, "", root, below_root(path).c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0)
    return fail_errno(path, "cannot put a mount in place");
  return {};
}

}  // namespace

Result<Fd> PrivateRoot::mount(NamespaceKind kind) {
  if (auto entered = enter_private_namespace(kind); !entered)
    return fail(std::move(entered.error()));
  if (!plan_.mounted_at.empty()) {
    loopback_.reset(::open_tree(AT_FDCWD, plan_.mounted_at.c_str(),
                                OPEN_TREE_CLONE | static_cast<unsigned>(OPEN_TREE_CLOEXEC)));
    if (!loopback_) return fail_errno(plan_.mounted_at, "cannot use the mount");
    return open_file("/dev/null", O_RDONLY);
  }
  // Opened after unshare: FUSE wants the descriptor's user namespace to be the mount's.
  auto device = open_fuse_device();
  if (!device) return device;
  auto mounted = mount_loopback(device->get());
  if (!mounted) return fail(std::move(mounted.error()));
  loopback_ = std::move(*mounted);
  return std::move(*device);
}

Result<void> PrivateRoot::bind_natives() {
  for (const auto& path : plan_.natives) {
    const Fd tree(
        ::open_tree(old_root_.get(), below_root(path).c_str(),
                    OPEN_TREE_CLONE | static_cast<unsigned>(OPEN_TREE_CLOEXEC) | AT_RECURSIVE));
    if (!tree) {
      if (errno == ENOENT) continue;  // a socket that has gone since it was listed
      return fail_errno(path, "cannot keep the native folder");
    }
    auto moved = move_mount_to(tree.get(), loopback_.get(), path);
    if (!moved && moved.error().code() != ENOENT) return moved;
  }
  return {};
}

Result<void> PrivateRoot::make_root() {
  if (::fchdir(loopback_.get()) != 0) return fail_errno("/", "cannot enter the new root");
  // As runc does it: no folder is needed for the old root, it is put over the new one and taken
  // off. A root that cannot be pivoted (the initial ramfs) is covered instead.
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
  for (const auto& scope : plan_.scopes) {
    const Fd tree(::open_tree(loopback_.get(), below_root(scope).c_str(),
                              OPEN_TREE_CLONE | static_cast<unsigned>(OPEN_TREE_CLOEXEC)));
    if (!tree) return fail_errno(scope, "cannot record this folder");
    if (auto moved = move_mount_to(tree.get(), old_root_.get(), scope); !moved) return moved;
  }
  // The whole of the loopback is not wanted any more.
  if (::fchdir(loopback_.get()) != 0 || ::umount2(".", MNT_DETACH) != 0 ||
      ::fchdir(old_root_.get()) != 0)
    return fail_errno("/", "cannot take the loopback off the root");
  return {};
}

Result<void> PrivateRoot::enter() {
  old_root_.reset(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!old_root_) return fail_errno("/", "cannot open");
  // On top of the root: what is to be attached to it must be attached itself. Paths from here on
  // begin at old_root_ or loopback_.
  if (::move_mount(loopback_.get(), "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) != 0)
    return fail_errno("/", "cannot put a mount in place");
  auto done = plan_.scopes.empty() ? bind_natives() : bind_scopes();
  if (done && plan_.scopes.empty()) done = make_root();
  if (!done) return done;
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

}  // namespace heddle
