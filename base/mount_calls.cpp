// SPDX-License-Identifier: MIT
#include "base/mount_calls.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "base/open_regular.hpp"

namespace heddle {
namespace {

// <linux/mount.h>
constexpr unsigned kFsopenCloexec = 1;
constexpr unsigned kFsmountCloexec = 1;
constexpr unsigned kSetFlag = 0;
constexpr unsigned kSetString = 1;
constexpr unsigned kCreate = 6;
constexpr unsigned kReadOnly = 0x1;
constexpr unsigned kNoSuid = 0x2;
constexpr unsigned kNoDev = 0x4;
constexpr unsigned kNoExec = 0x8;
constexpr unsigned kFromEmptyPath = 0x4;
constexpr unsigned kToEmptyPath = 0x40;
constexpr unsigned kOpenTreeClone = 1;
// <asm/unistd.h> since Linux 5.12, the same number on every architecture.
constexpr long kMountSetattr = 442;

class FsContext {
 public:
  explicit FsContext(const char* type)
      : fd_(static_cast<int>(::syscall(SYS_fsopen, type, kFsopenCloexec))),
        type_(type),
        good_(fd_.valid()) {}
  void set(const char* key, const std::string& value) {
    good_ = good_ && ::syscall(SYS_fsconfig, fd_.get(), kSetString, key, value.c_str(), 0) == 0;
  }
  void set(const char* key) {
    good_ = good_ && ::syscall(SYS_fsconfig, fd_.get(), kSetFlag, key, nullptr, 0) == 0;
  }
  Result<Fd> mount(unsigned attributes) {
    good_ = good_ && ::syscall(SYS_fsconfig, fd_.get(), kCreate, nullptr, nullptr, 0) == 0;
    if (!good_) return fail_errno(type_, "cannot make the file system");
    Fd mount(static_cast<int>(::syscall(SYS_fsmount, fd_.get(), kFsmountCloexec, attributes)));
    if (!mount) return fail_errno(type_, "cannot make the mount");
    return mount;
  }

 private:
  Fd fd_;
  const char* type_;
  bool good_;
};

bool set_attributes(int tree, std::uint64_t set, std::uint64_t propagation, unsigned flags) {
  struct {
    std::uint64_t set, clear, propagation, user_namespace;
  } attributes{set, 0, propagation, 0};  // struct mount_attr
  return ::syscall(kMountSetattr, tree, "", flags | unsigned{AT_EMPTY_PATH}, &attributes,
                   sizeof(attributes)) == 0;
}

}  // namespace

std::string fd_path(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

std::string path_of(int fd) {
  char text[PATH_MAX];
  const ssize_t n = ::readlink(fd_path(fd).c_str(), text, sizeof(text));
  return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : std::string();
}

Result<Fd> copy_mount(int directory, const std::string& name, unsigned flags) {
  Fd tree(static_cast<int>(::syscall(SYS_open_tree, directory, name.c_str(),
                                     kOpenTreeClone | unsigned{O_CLOEXEC} | flags)));
  if (!tree) return fail_errno(name, "cannot copy its mount");
  return tree;
}

Result<Fd> new_fuse_mount(int device, bool read_only, bool allow_other) {
  FsContext context("fuse");
  context.set("source", kMountSource);
  context.set("subtype", "heddle");
  context.set("fd", std::to_string(device));
  context.set("rootmode", "40000");
  context.set("user_id", std::to_string(::geteuid()));
  context.set("group_id", std::to_string(::getegid()));
  context.set("max_read", std::to_string(kMaxRead));
  context.set("default_permissions");
  if (allow_other) context.set("allow_other");
  return context.mount((read_only ? kReadOnly : 0) | kNoSuid | kNoDev);
}

Result<Fd> find_in_root(int root, const std::string& path, int flags) {
  auto fd = open_in_root(root, path, flags | O_PATH, RESOLVE_NO_MAGICLINKS);
  if (!fd) return fail_errno(path, "cannot open it in the container", fd.error().code());
  return fd;
}

void make_private(int tree) { (void)set_attributes(tree, 0, MS_PRIVATE, 0); }

Result<void> make_inert(int tree, const std::string& name, Reach reach) {
  if (!set_attributes(tree, kReadOnly | kNoSuid | kNoDev, 0, reach == Reach::tree ? kRecursive : 0))
    return fail_errno(name, "cannot make its mount read-only");
  return {};
}

Result<Fd> new_tmpfs(std::size_t bytes) {
  FsContext context("tmpfs");
  context.set("source", kMountSource);
  context.set("mode", "0755");
  context.set("size", std::to_string(bytes));
  return context.mount(kNoSuid | kNoDev | kNoExec);
}

Result<Fd> new_overlay(int lower, int memory) {
  // By descriptor: a path may have the options' separators.
  FsContext context("overlay");
  context.set("source", kMountSource);
  context.set("lowerdir", fd_path(lower));
  context.set("upperdir", fd_path(memory) + "/upper");
  context.set("workdir", fd_path(memory) + "/work");
  return context.mount(kNoSuid | kNoDev);
}

Result<void> attach_mount(int tree, int target, const std::string& name) {
  if (::syscall(SYS_move_mount, tree, "", target, "", kFromEmptyPath | kToEmptyPath) != 0)
    return fail_errno(name, "cannot mount over it");
  return {};
}

int mount_id(int fd) {
  // Linux 5.8. Must not wait for a FUSE daemon that does not serve yet.
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &status) == 0 &&
      (status.stx_mask & STATX_MNT_ID) != 0)
    return static_cast<int>(status.stx_mnt_id);
  constexpr std::string_view kKey = "\nmnt_id:";
  const auto text = read_file("/proc/self/fdinfo/" + std::to_string(fd)).value_or("");
  const auto at = text.find(kKey);
  return at == text.npos ? -1 : std::atoi(text.c_str() + at + kKey.size());
}

void detach_mount(int fd) { (void)::umount2(fd_path(fd).c_str(), MNT_DETACH); }

}  // namespace heddle
