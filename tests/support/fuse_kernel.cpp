// SPDX-License-Identifier: MIT
#include "tests/support/fuse_kernel.hpp"

#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/child.hpp"
#include "base/fd.hpp"

namespace heddle::test {
namespace {

// Debian 12's linux/fuse.h lacks it.
constexpr int kNotifyResend = 7;

/// In a child: 0 when the kernel accepts the notification, 1 when not, 2 without a mount.
int try_notification(int note) {
  const std::string ids = "0 " + std::to_string(::geteuid()) + " 1";
  const bool root = ::geteuid() == 0;
  if (::unshare(root ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) return 2;
  if (!root) {
    auto map = open_file("/proc/self/uid_map", O_WRONLY);
    if (!map || !write_all(map->get(), ids, "uid_map")) return 2;
  }
  (void)::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  const Fd device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  const std::string options =
      "fd=" + std::to_string(device.get()) + ",rootmode=40000,user_id=0,group_id=0";
  if (!device || ::mount("heddle-test", "/proc", "fuse", 0, options.c_str()) != 0) return 2;
  fuse_out_header header{};
  header.len = sizeof(header);
  header.error = note;
  return ::write(device.get(), &header, sizeof(header)) < 0 && errno == EINVAL ? 1 : 0;
}

}  // namespace

bool kernel_resends() {
  static const bool refused = [] {
    auto child = value_or_throw(fork_child({}, [] { return try_notification(kNotifyResend); }));
    return value_or_throw(child.wait()) == 1;
  }();
  return !refused;
}

bool kernel_has(long call) {
  // These arguments are invalid for every call.
  return ::syscall(call, -1, nullptr, -1, -1, -1, -1) >= 0 || errno != ENOSYS;
}

bool kernel_tells_of_leaders() {
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), O_EXCL)));
  return process.valid();
}

}  // namespace heddle::test
