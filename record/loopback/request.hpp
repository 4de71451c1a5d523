// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace heddle::loopback {

// The kernel's FUSE protocol without libfuse, whose version 3.14 lacks O_TMPFILE, statx and 64-bit
// init flags, and whose loop cannot follow the caller's core. What Debian 12's linux/fuse.h lacks
// is defined here (include/uapi/linux/fuse.h of Linux 6.18).

inline constexpr std::uint32_t kOpTmpfile = 51;  // 7.37
inline constexpr std::uint32_t kOpStatx = 52;    // 7.39

struct StatxIn {
  std::uint32_t getattr_flags;
  std::uint32_t reserved;
  std::uint64_t fh;
  std::uint32_t sx_flags;
  std::uint32_t sx_mask;
};

/// struct fuse_statx has the layout of the start of struct statx.
struct StatxOut {
  std::uint64_t attr_valid;
  std::uint32_t attr_valid_nsec;
  std::uint32_t flags;
  std::uint64_t spare[2];
  struct statx stat;
};
static_assert(sizeof(StatxOut) == 32 + 256);

/// `__FMODE_EXEC` (include/linux/fs.h): flag of an OPEN by execve(2), of the program or
/// interpreter.
inline constexpr std::uint32_t kOpenForExec = 040;

// Passthrough (7.40).
inline constexpr std::uint32_t kInitExt = 1U << 30;             // flags2 is valid
inline constexpr std::uint32_t kPassthroughInFlags2 = 1U << 5;  // FUSE_PASSTHROUGH, bit 37
inline constexpr std::uint32_t kOpenPassthrough = 1U << 7;      // FOPEN_PASSTHROUGH
struct BackingMap {
  std::int32_t fd;
  std::uint32_t flags;
  std::uint64_t padding;
};
inline constexpr unsigned long kBackingOpen = _IOW(229, 1, BackingMap);
inline constexpr unsigned long kBackingClose = _IOW(229, 2, std::uint32_t);

/// The path of a thread's file in /proc.
struct ProcPath {
  ProcPath(std::int32_t tid, const char* name) {
    std::snprintf(text, sizeof(text), "/proc/%d/%s", tid, name);
  }
  char text[48];
};
/// Reads the start of such a file as a string. False: the thread has ended.
template <std::size_t N>
bool read_proc(std::int32_t tid, const char* name, char (&text)[N]) {
  const Fd fd(::open(ProcPath(tid, name).text, O_RDONLY | O_CLOEXEC));
  const ssize_t n = fd ? ::read(fd.get(), text, N - 1) : -1;
  text[n > 0 ? n : 0] = '\0';
  return n > 0;
}
/// The path in /proc by which calls that take a path reach the file of `fd`, also if that is a
/// symbolic link (an O_PATH descriptor).
struct OwnPath {
  explicit OwnPath(int fd) { *std::to_chars(text + 14, std::end(text), fd).ptr = '\0'; }
  char text[32] = "/proc/self/fd/";
};

/// The longest READ or WRITE.
inline constexpr std::size_t kMaxData = 1U << 20;

/// Conversions of dev_t to and from the protocol's (new_encode_dev(), include/linux/kdev_t.h).
inline std::uint32_t encode_device(unsigned major, unsigned minor) {
  return (minor & 0xffU) | (major << 8U) | ((minor & ~0xffU) << 12U);
}
inline dev_t decode_device(std::uint32_t device) {
  const std::uint64_t major = (device & 0xfff00U) >> 8U;
  const std::uint64_t minor = (device & 0xffU) | ((device >> 12U) & 0xfff00U);
  return ((major & 0xfffU) << 8U) | (minor & 0xffU) | ((minor & ~0xffULL) << 12U);
}

/// Gives the calling thread the rights of the callers it serves: file-system user and group,
/// supplementary groups, umask and the capabilities on files, so that the kernel decides on the
/// real file as for the caller. One object a thread, made in it.
///
/// A request carries user and group. The rest may change at any time and is read for each request:
/// capget(2), and /proc/TID/status where groups matter. A caller in another user namespace has no
/// capabilities; for root this is checked every 20 ms and after each exec.
///
/// Without root all callers are the recorder's user, and only the umask changes.
class CallerRights {
 public:
  CallerRights();
  CallerRights(const CallerRights&) = delete;
  CallerRights& operator=(const CallerRights&) = delete;

  /// Whether callers may have different rights: the recorder is root.
  static bool are_many();
  /// Takes the rights of the request's caller; the recorder's for the kernel's own requests
  /// (write-back). False: the rights cannot be determined.
  bool assume(const fuse_in_header& header);
  /// Whether this thread has all of root's rights, and root is the request's user.
  bool are_all_of(const fuse_in_header& header) const {
    return !may_switch_ || (now_ == own_ && header.uid == own_.uid && header.gid == own_.gid);
  }
  /// Takes the recorder's rights, until the next assume().
  void assume_own();
  /// Sets the caller's umask, which the real file system applies after default ACLs.
  void set_umask(unsigned mask);
  /// Whether the file's mode and ACL (the attribute's bytes, or empty) permit the access. For
  /// kernels before 5.8, which have no faccessat2(2).
  bool may_by_mode(const struct statx& st, std::string_view acl, int mask) const;
  /// To be called when the caller may enter another user namespace.
  void forget_callers() { known_ = {}; }

 private:
  friend class OwnRights;
  struct State {
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::uint64_t capabilities = 0;  ///< effective ones
    bool operator==(const State&) const = default;
  };
  bool root_counts(std::int32_t tid);
  void become(const State& state);
  bool may_switch_;
  State now_;
  State own_;
  std::vector<std::uint32_t> groups_;
  unsigned umask_ = ~0U;
  struct Known {
    std::int32_t tid = 0;
    std::int64_t until_ms = 0;
  };
  std::array<Known, 64> known_;  ///< root's threads in the recorder's user namespace
};

/// The recorder's rights for the calling thread, during the object's lifetime.
class OwnRights {
 public:
  explicit OwnRights(CallerRights& rights) : rights_(rights), before_(rights.now_) {
    rights_.assume_own();
  }
  OwnRights(const OwnRights&) = delete;
  OwnRights& operator=(const OwnRights&) = delete;
  ~OwnRights() { rights_.become(before_); }

 private:
  CallerRights& rights_;
  CallerRights::State before_;
};

/// The system call in which a thread waits, from /proc/TID/syscall.
struct Call {
  long number = -1;  ///< -1: unknown (always before Linux 5.10)
  unsigned long arguments[4] = {};
};
Call call_of(std::int32_t tid);
/// The same by `file`, /proc/TID/syscall, which it opens (by the recorder's rights) unless it is
/// open, or is of a thread that has ended.
Call call_of(std::int32_t tid, Fd& file, CallerRights& rights);

/// Drops the process's capabilities that serving does not need. To be called before threads start.
void drop_unneeded_capabilities();

struct ServingThread {
  CallerRights rights;
  char* out;  ///< room for an answer: kMaxData and a page
  /// Lets another thread read the next request before a slow operation.
  std::function<void()> go_slow;
  bool few_callers = true;
  std::atomic<std::uint64_t> steps = 0;  ///< odd: at a request that is not answered
  void answered() {
    if (steps % 2 != 0) ++steps;
  }
};

inline constexpr int kAnswered = -1;

/// A request of the kernel, in the buffer filled by read(2). Belongs to one thread. Each request
/// but FORGET and INTERRUPT must be answered exactly once.
class Request {
 public:
  Request(int device, char* bytes, std::size_t size, ServingThread& thread)
      : device_(device), bytes_(bytes), size_(size), thread_(thread) {}

  const fuse_in_header& header() const { return *reinterpret_cast<const fuse_in_header*>(bytes_); }
  std::uint32_t opcode() const { return header().opcode; }
  std::uint64_t node() const { return header().nodeid; }
  /// The calling thread (a tid); 0 for the kernel's own requests.
  std::int32_t tid() const { return static_cast<std::int32_t>(header().pid); }
  CallerRights& rights() { return thread_.rights; }
  /// Room for an answer's data, behind that for its header.
  char* out() { return thread_.out + sizeof(fuse_out_header); }
  void go_slow() { thread_.go_slow(); }
  bool few_callers() const { return thread_.few_callers; }

  /// The body behind the header, padded with zeroes.
  template <class Body>
  Body body() const {
    Body body{};
    std::memcpy(&body, bytes_ + sizeof(fuse_in_header), std::min(sizeof(Body), left(0)));
    return body;
  }
  /// The bytes after a body of `skip` bytes.
  std::string_view rest(std::size_t skip) const {
    return {bytes_ + sizeof(fuse_in_header) + skip, left(skip)};
  }
  /// The name after a body of `skip` bytes; a NUL follows it.
  std::string_view name(std::size_t skip = 0) const {
    const auto text = rest(skip);
    return text.substr(0, text.find('\0'));
  }

  void reply_error(int error);  ///< a positive errno; 0 is success without data
  /// These return kAnswered.
  int reply_bytes(const void* data, std::size_t size);
  template <class Body>
  int reply(const Body& body) {
    return reply_bytes(&body, sizeof(body));
  }
  /// Makes the kernel write back and drop its cached pages of the node. Another thread must serve
  /// the writes.
  void drop_pages(std::uint64_t node) { invalidate(node, 0); }
  /// Makes the kernel ask for the node's attributes again.
  void forget_attributes(std::uint64_t node) { invalidate(node, -1); }

 private:
  /// `from`: of its pages, all behind; negative: none.
  void invalidate(std::uint64_t node, std::int64_t from);
  std::size_t left(std::size_t skip) const {
    const std::size_t used = sizeof(fuse_in_header) + skip;
    return size_ > used ? size_ - used : 0;
  }
  int device_;
  char* bytes_;
  std::size_t size_;
  ServingThread& thread_;
};

/// Whether a read or write of the device that failed with `error` may work later.
bool is_shortage(int error);

/// Ends the process and the connection, so that the program's calls fail.
[[noreturn]] void give_up();

}  // namespace heddle::loopback
