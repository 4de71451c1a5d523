// SPDX-License-Identifier: MIT
#include "fuseovl/keep/kept_mount.hpp"

#include <sched.h>
#include <sys/mount.h>

#include "base/fuse_device.hpp"
#include "base/mount_namespace.hpp"
#include "fuseovl/mount/fusermount.hpp"
#include "fuseovl/mount/kernel_mount.hpp"

namespace heddle {
namespace {

/// It is tried again.
constexpr std::chrono::seconds kReleasePatience{3};

}  // namespace

Result<KeptMount> KeptMount::make(KeepKind kind, const std::string& mount_point) {
  if (kind == KeepKind::fusermount) {
    auto device = fusermount_mount(mount_point, fusermount_options());
    if (!device) return fail(std::move(device.error()));
    return KeptMount(kind, mount_point, std::move(*device));
  }
  if (auto entered = enter_mount_namespace(); !entered) return fail(std::move(entered.error()));
  auto device = open_fuse_device();
  if (!device) return fail(std::move(device.error()));
  if (auto mounted = mount_fuse_device(device->get(), mount_point); !mounted)
    return fail(std::move(mounted.error()));
  return KeptMount(kind, mount_point, std::move(*device));
}

Result<Fd> KeptMount::copy() const {
  if (kind_ == KeepKind::fusermount) return Fd();
  return copy_mount(mount_point_);
}

Result<void> KeptMount::release() const {
  const auto how = kind_ == KeepKind::privately ? Unmount::detach : Unmount::now;
  auto done = unmount_fuse(mount_point_, how, kReleasePatience);
  if (done) return {};
  const auto mounted = find_mount(mount_point_);
  if (mounted && !*mounted) return {};  // somebody else unmounted it
  return done;
}

}  // namespace heddle
