// SPDX-License-Identifier: MIT
#include "record/loopback/request.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/backoff.hpp"
#include "base/fd.hpp"
#include "fuseovl/session/kernel_order.hpp"

namespace heddle::loopback {

namespace {

ssize_t send_to(int device, fuse_out_header header, const void* data, std::size_t size) {
  header.len = static_cast<std::uint32_t>(sizeof(header) + size);
  // The kernel pins each page that it copies from: a small message is in one.
  alignas(512) char message[512];
  const bool is_small = header.len <= sizeof(message);
  std::memcpy(message, &header, sizeof(header));
  if (is_small && size > 0) std::memcpy(message + sizeof(header), data, size);
  const iovec parts[2] = {{message, sizeof(header)}, {const_cast<void*>(data), size}};
  before_answer();
  const auto send = [&] {
    return is_small ? ::write(device, message, header.len) : ::writev(device, parts, 2);
  };
  return insist(send, is_shortage);
}

void answer(int device, std::uint64_t unique, int error, const void* data, std::size_t size) {
  fuse_out_header header{};
  header.error = -error;
  header.unique = unique;
  // ENOENT: the request was interrupted. ENODEV: unmounted.
  if (send_to(device, header, data, size) < 0 && is_shortage(errno)) give_up();
}

}  // namespace

bool is_shortage(int error) {
  return error == ENOMEM || error == EINTR || error == EAGAIN || error == EIO || error == ENOSPC ||
         error == EMFILE || error == ENOBUFS;
}

void give_up() { ::_exit(3); }

void Request::reply_error(int error) {
  thread_.answered();
  answer(device_, header().unique, error, nullptr, 0);
}

int Request::reply_bytes(const void* data, std::size_t size) {
  thread_.answered();
  if (data == out()) {
    // Header and data in one piece: the kernel has fewer pages to pin.
    fuse_out_header header{};
    header.len = static_cast<std::uint32_t>(sizeof(header) + size);
    header.unique = this->header().unique;
    std::memcpy(thread_.out, &header, sizeof(header));
    before_answer();
    const auto send = [&] { return ::write(device_, thread_.out, header.len); };
    if (insist(send, is_shortage) < 0 && is_shortage(errno)) give_up();
    return kAnswered;
  }
  answer(device_, header().unique, 0, data, size);
  return kAnswered;
}

void Request::invalidate(std::uint64_t node, std::int64_t from) {
  fuse_out_header header{};
  header.error = FUSE_NOTIFY_INVAL_INODE;
  fuse_notify_inval_inode_out out{};
  out.ino = node;
  out.off = from;
  (void)send_to(device_, header, &out, sizeof(out));
}

namespace {

constexpr std::uint64_t bit(unsigned capability) { return 1ULL << capability; }

/// The capabilities that decide on files: CAP_SYS_ADMIN on trusted attributes, CAP_SYS_RESOURCE on
/// quotas and reserved blocks.
constexpr std::uint64_t kOfFiles = bit(CAP_CHOWN) | bit(CAP_DAC_OVERRIDE) |
                                   bit(CAP_DAC_READ_SEARCH) | bit(CAP_FOWNER) | bit(CAP_FSETID) |
                                   bit(CAP_LINUX_IMMUTABLE) | bit(CAP_MKNOD) | bit(CAP_SETFCAP) |
                                   bit(CAP_SYS_ADMIN) | bit(CAP_SYS_RESOURCE);
/// The recorder's own, to switch users, read /proc, test leases and set its scheduling policy. They
/// decide on no file, so that threads have them also with a caller's rights.
constexpr std::uint64_t kOurs =
    bit(CAP_SETUID) | bit(CAP_SETGID) | bit(CAP_SYS_PTRACE) | bit(CAP_LEASE) | bit(CAP_SYS_NICE);

struct Sets {
  std::uint64_t effective = 0, permitted = 0;
};

std::optional<Sets> capabilities_of(std::int32_t tid) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, tid};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return std::nullopt;
  const auto both = [](std::uint32_t low, std::uint32_t high) {
    return std::uint64_t{high} << 32U | low;
  };
  return Sets{both(data[0].effective, data[1].effective),
              both(data[0].permitted, data[1].permitted)};
}

bool set_capabilities(const Sets& sets) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const auto low = [](std::uint64_t set) { return static_cast<std::uint32_t>(set); };
  const auto high = [](std::uint64_t set) { return static_cast<std::uint32_t>(set >> 32U); };
  const __user_cap_data_struct data[2] = {{low(sets.effective), low(sets.permitted), 0},
                                          {high(sets.effective), high(sets.permitted), 0}};
  return ::syscall(SYS_capset, &header, data) == 0;
}

/// The user namespace of `tid`; 0: unknown.
ino_t user_namespace(std::int32_t tid) {
  struct stat st {};
  return ::stat(ProcPath(tid, "ns/user").text, &st) == 0 ? st.st_ino : 0;
}
ino_t own_user_namespace() {
  static const ino_t own = [] {
    struct stat st {};
    return ::stat("/proc/self/ns/user", &st) == 0 ? st.st_ino : 0;
  }();
  return own;
}

struct ProcStatus {
  std::vector<std::uint32_t> groups;
  std::uint64_t effective = 0;
};

/// nullopt: the file of an existing thread cannot be read.
std::optional<ProcStatus> status_of(std::int32_t tid) {
  const ProcPath path(tid, "status");
  const auto may_be_read = [](int error) { return error != ENOENT && error != ESRCH; };
  const Fd fd(insist([&] { return ::open(path.text, O_RDONLY | O_CLOEXEC); }, may_be_read));
  // Reads to the end, because a number that is cut off is another group.
  thread_local std::vector<char> text(8192);
  std::size_t size = 0;
  for (;;) {
    const auto more = [&] { return ::read(fd.get(), &text[size], text.size() - size); };
    const ssize_t n = fd ? insist(more, may_be_read) : -1;
    if (n < 0) return may_be_read(errno) ? std::nullopt : std::optional<ProcStatus>(ProcStatus{});
    size += static_cast<std::size_t>(n);
    if (size < text.size()) break;
    text.resize(2 * text.size());
  }
  text[size] = '\0';
  ProcStatus out;
  const char* at = std::strstr(text.data(), "\nGroups:");
  if (!at) return std::nullopt;
  at += 8;
  while (*at && *at != '\n') {
    char* end = nullptr;
    const unsigned long group = std::strtoul(at, &end, 10);
    if (end == at) break;
    out.groups.push_back(static_cast<std::uint32_t>(group));
    at = end;
    while (*at == ' ' || *at == '\t') ++at;
  }
  if (const char* caps = std::strstr(at, "\nCapEff:"))
    out.effective = std::strtoull(caps + 8, nullptr, 16);
  return out;
}

}  // namespace

bool CallerRights::are_many() {
  static const bool many = ::geteuid() == 0 && (capabilities_of(0).value_or(Sets{}).permitted &
                                                (bit(CAP_SETUID) | bit(CAP_SETGID))) != 0;
  return many;
}

CallerRights::CallerRights() : may_switch_(are_many()) {
  // Gives this thread a umask of its own.
  ::unshare(CLONE_FS);
  const auto sets = capabilities_of(0).value_or(Sets{});
  own_ = {::geteuid(), ::getegid(), sets.permitted};
  now_ = {own_.uid, own_.gid, sets.effective};
  if (may_switch_) become(own_);
}

/// Whether root's capabilities hold here: false in another user namespace, true where that is
/// unknown (a container without CAP_SYS_PTRACE).
bool CallerRights::root_counts(std::int32_t tid) {
  constexpr int kTrustMs = 20;
  const auto now = monotonic_ms();
  Known& known = known_[static_cast<std::uint32_t>(tid) % known_.size()];
  if (tid == known.tid && now < known.until_ms) return true;
  const ino_t its = user_namespace(tid);
  if (its != 0 && its != own_user_namespace()) return false;
  known = {tid, now + kTrustMs};
  return true;
}

bool CallerRights::assume(const fuse_in_header& header) {
  if (!may_switch_) return true;
  const auto tid = static_cast<std::int32_t>(header.pid);
  if (tid == 0 && header.uid == 0) {
    assume_own();
    return true;
  }
  State state{header.uid, header.gid, 0};
  const std::uint64_t all = own_.capabilities & kOfFiles;
  const auto sets = tid != 0 ? capabilities_of(tid) : std::nullopt;
  if (sets && (sets->effective & kOfFiles) != 0) {
    const bool counts =
        header.uid == 0 ? root_counts(tid) : user_namespace(tid) == own_user_namespace();
    if (counts) state.capabilities = sets->effective & all;
  }
  // A caller that may read and write everything needs no groups.
  const bool full = header.uid == 0 && state.capabilities == all;
  // All of the recorder's: without CAP_SYS_PTRACE, reading /proc/TID/exe needs as many as the
  // caller.
  if (full) state.capabilities = own_.capabilities;
  if (!full) {
    auto status = tid != 0 ? status_of(tid) : std::optional(ProcStatus{});
    if (!status) return false;
    if (status->groups != groups_) {
      // An error must not leave the groups of the caller before. EPERM: a user namespace that
      // denies setgroups(2), so that none were set. The system call, because glibc's changes all
      // threads.
      const OwnRights own(*this);
      const auto set = [&] {
        return ::syscall(SYS_setgroups, status->groups.size(), status->groups.data());
      };
      if (insist(set, [](int error) { return error != EPERM; }) < 0 && errno != EPERM) return false;
      groups_ = std::move(status->groups);
    }
  }
  become(state);
  return true;
}

void CallerRights::assume_own() {
  if (may_switch_) become(own_);
}

void CallerRights::become(const State& state) {
  if (!may_switch_ || state == now_) return;
  if (state.gid != now_.gid) ::syscall(SYS_setfsgid, state.gid);
  if (state.uid != now_.uid) ::syscall(SYS_setfsuid, state.uid);
  // After setfsuid(2), which changes the effective capabilities (capabilities(7)).
  if (!set_capabilities({(state.capabilities | kOurs) & own_.capabilities, own_.capabilities}))
    give_up();
  now_ = state;
}

void CallerRights::set_umask(unsigned mask) {
  if (mask == umask_) return;
  ::umask(mask);
  umask_ = mask;
}

bool CallerRights::may_by_mode(const struct statx& st, std::string_view acl, int mask) const {
  const auto wanted = static_cast<unsigned>(mask) & 7U;
  const auto grants = [&](unsigned bits) { return (bits & wanted) == wanted; };
  const auto in_group = [&](std::uint32_t gid) {
    return gid == now_.gid || std::find(groups_.begin(), groups_.end(), gid) != groups_.end();
  };
  if ((now_.capabilities & bit(CAP_DAC_OVERRIDE)) != 0) return true;
  if (st.stx_uid == now_.uid) return grants(st.stx_mode >> 6U);
  // As posix_acl_permission() (fs/posix_acl.c); the entries' layout: linux/posix_acl_xattr.h.
  struct {
    std::uint16_t tag, permissions;
    std::uint32_t id;
  } entry;
  const unsigned group_bits = st.stx_mode >> 3U;  // the ACL's mask, if there is an ACL
  bool of_group = acl.empty() && in_group(st.stx_gid);
  bool group_grants = of_group;
  for (std::size_t at = 4; at + sizeof(entry) <= acl.size(); at += sizeof(entry)) {
    std::memcpy(&entry, acl.data() + at, sizeof(entry));
    if (entry.tag == 0x02 && entry.id == now_.uid) return grants(entry.permissions & group_bits);
    if ((entry.tag != 0x04 || !in_group(st.stx_gid)) && (entry.tag != 0x08 || !in_group(entry.id)))
      continue;
    of_group = true;
    group_grants = group_grants || grants(entry.permissions);
  }
  if (of_group) return group_grants && grants(group_bits);
  return grants(st.stx_mode);
}

void drop_unneeded_capabilities() {
  const auto sets = capabilities_of(0);
  // Without CAP_SYS_PTRACE, /proc shows only callers whose capabilities the recorder has too.
  if (!sets || ::geteuid() != 0 || (sets->permitted & bit(CAP_SYS_PTRACE)) == 0) return;
  const std::uint64_t needed = sets->permitted & (kOfFiles | kOurs);
  for (unsigned capability = 0; capability < 64; ++capability)
    if ((needed & bit(capability)) == 0) ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  (void)set_capabilities({needed, needed});
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

}  // namespace heddle::loopback
