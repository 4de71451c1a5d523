// SPDX-License-Identifier: MIT
#include "record/user_mount.hpp"

#include <time.h>

#include "base/log.hpp"
#include "fuseovl/mount/fusermount.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "record/loopback/protocol.hpp"

namespace heddle {
namespace {

/// A folder to mount on. $TMPDIR may be one that only its owner writes to (a build's, a batch
/// job's).
Result<TempDir> make_mount_folder() {
  auto folder = TempDir::create("fs-record");
  for (const char* parent : {"/tmp", "/var/tmp", "/dev/shm"}) {
    if (folder) break;
    if (auto other = TempDir::create("fs-record", parent)) folder = std::move(other);
  }
  return folder;
}

bool is_mounted(const std::string& path) {
  const auto mounted = find_mount(path);
  return !mounted || *mounted;
}

}  // namespace

Result<void> take_user_mount_off(const std::string& path) {
  constexpr int kTries = 9;
  for (int attempt = 0;; ++attempt) {
    auto done = fusermount_unmount(path, true);
    if (done || !is_mounted(path)) return {};
    if (done.error().code() == ETIMEDOUT || attempt == kTries) return done;
    const timespec pause{0, 1'000'000L << attempt};
    ::nanosleep(&pause, nullptr);
  }
}

Result<UserMount> UserMount::make() {
  auto folder = make_mount_folder();
  if (!folder) return fail(std::move(folder.error()));
  auto device = fusermount_mount(
      folder->path(), "rw,nosuid,nodev,fsname=fs-record,subtype=heddle-record,max_read=" +
                          std::to_string(loopback::kMaxData));
  if (!device) return fail(std::move(device.error()));
  return UserMount(std::move(*folder), std::move(*device));
}

UserMount::~UserMount() {
  if (folder_.path().empty()) return;  // moved from
  take_off();
  if (!mounted_) return;
  // All files of the machine are below it: nobody is to remove what is in there.
  warn(Error(folder_.release(), "is still mounted", {}, "fusermount3 -uz takes it off"));
}

void UserMount::take_off() {
  if (mounted_) mounted_ = !take_user_mount_off(folder_.path());
}

}  // namespace heddle
