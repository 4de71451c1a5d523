// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace heddle::loopback {

// The kernel's FUSE protocol, spoken without libfuse: 3.14 lacks O_TMPFILE, statx and the 64-bit
// init flags, drops a thread into its loop where we want the one that follows the caller's core,
// and a program without it can be linked statically. What Debian 12's header lacks is added here
// (include/uapi/linux/fuse.h of Linux 6.18).

inline constexpr std::uint32_t kOpTmpfile = 51;  // 7.37
inline constexpr std::uint32_t kOpStatx = 52;    // 7.39

struct StatxIn {
  std::uint32_t getattr_flags;
  std::uint32_t reserved;
  std::uint64_t fh;
  std::uint32_t sx_flags;
  std::uint32_t sx_mask;
};

/// fuse_statx has the layout of struct statx; what it lacks is not read.
struct StatxOut {
  std::uint64_t attr_valid;
  std::uint32_t attr_valid_nsec;
  std::uint32_t flags;
  std::uint64_t spare[2];
  struct statx stat;
};
static_assert(sizeof(StatxOut) == 32 + 256);

/// `__FMODE_EXEC` (include/linux/fs.h): in the flags of an OPEN that execve made, for the program
/// and for its interpreter.
inline constexpr std::uint32_t kOpenForExec = 040;

// Passthrough (7.40): a mapping of such a file is one of the real file.
inline constexpr std::uint32_t kInitExt = 1U << 30;             // there is a flags2
inline constexpr std::uint32_t kPassthroughInFlags2 = 1U << 5;  // FUSE_PASSTHROUGH, bit 37
inline constexpr std::uint32_t kOpenPassthrough = 1U << 7;      // FOPEN_PASSTHROUGH
struct BackingMap {
  std::int32_t fd;
  std::uint32_t flags;
  std::uint64_t padding;
};
inline constexpr unsigned long kBackingOpen = _IOW(229, 1, BackingMap);
inline constexpr unsigned long kBackingClose = _IOW(229, 2, std::uint32_t);

/// The path in /proc of a thread's file, without allocating.
struct ProcPath {
  ProcPath(std::int32_t tid, const char* name) {
    std::snprintf(text, sizeof(text), "/proc/%d/%s", tid, name);
  }
  char text[48];
};
/// The start of such a file, for string functions; false when the thread has gone.
template <std::size_t N>
bool read_proc(std::int32_t tid, const char* name, char (&text)[N]) {
  const Fd fd(::open(ProcPath(tid, name).text, O_RDONLY | O_CLOEXEC));
  const ssize_t n = fd ? ::read(fd.get(), text, N - 1) : -1;
  text[n > 0 ? n : 0] = '\0';
  return n > 0;
}
/// The name in /proc by which calls that take a path reach the file of `fd`, whatever it is: a link
/// that leads there by itself, and no further when that is a symbolic link (an O_PATH descriptor).
struct OwnPath {
  explicit OwnPath(int fd) { std::snprintf(text, sizeof(text), "/proc/self/fd/%d", fd); }
  char text[32];
};

/// One WRITE or READ at most; with the header it is what a request's buffer must hold.
inline constexpr std::size_t kMaxData = 1U << 20;

/// dev_t as the protocol carries it (new_encode_dev(), include/linux/kdev_t.h), and back.
inline std::uint32_t encode_device(unsigned major, unsigned minor) {
  return (minor & 0xffU) | (major << 8U) | ((minor & ~0xffU) << 12U);
}
inline dev_t decode_device(std::uint32_t device) {
  const std::uint64_t major = (device & 0xfff00U) >> 8U;
  const std::uint64_t minor = (device & 0xffU) | ((device >> 12U) & 0xfff00U);
  return ((major & 0xfffU) << 8U) | (minor & 0xffU) | ((minor & ~0xffULL) << 12U);
}

/// Makes the calling thread act with the rights of those it serves: file-system user and group,
/// supplementary groups, umask, and the capabilities that matter for files. The kernel then decides
/// on the real file as it would have decided for the caller. One object a thread, made in it.
///
/// The protocol carries user and group; the rest is read for each request, since it may change
/// between any two: capget(2), and /proc/TID/status where groups count. A caller in a user
/// namespace of its own has no capability here; for root this is checked 50 times a second and
/// after each exec.
///
/// Without root there is one user, ourselves, and only the umask changes.
class CallerRights {
 public:
  CallerRights();
  CallerRights(const CallerRights&) = delete;
  CallerRights& operator=(const CallerRights&) = delete;

  /// Whether callers have rights of their own: we are root.
  static bool are_many();
  /// Takes the rights of the request's caller; for the kernel's own requests (write-back), ours.
  /// False: the caller's rights cannot be determined.
  bool assume(const fuse_in_header& header);
  /// Our own, until the next assume().
  void assume_own();
  /// For what creates: the caller's umask is applied by the real file system, after default ACLs.
  void set_umask(unsigned mask);
  /// Whether the caller may access the file by its mode and ACL (the attribute's bytes, or empty):
  /// for kernels before 5.8, which cannot be asked.
  bool may_by_mode(const struct statx& st, std::string_view acl, int mask) const;
  /// The caller's namespaces may be others from here on.
  void forget_caller() { known_tid_ = 0; }

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
  std::int32_t known_tid_ = 0;  ///< root's, known to be in our user namespace
  std::int64_t known_until_ms_ = 0;
};

/// Our own rights, while it lives.
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

/// Drops, for the whole process and for good, the capabilities that serving does not need. Call it
/// before the first thread starts.
void keep_callers_capabilities();

/// State of the thread that handles a request.
class ServingThread {
 public:
  virtual ~ServingThread() = default;
  /// Lets another thread read the next request, since this one takes long.
  virtual void go_slow() = 0;

  CallerRights rights;
  char* out = nullptr;  ///< kMaxData and a page of room for an answer
};

inline constexpr int kAnswered = -1;

/// One request of the kernel, in the buffer that read(2) filled, and its answer. Belongs to one
/// thread; each request but FORGET and INTERRUPT is answered exactly once.
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
  char* out() { return thread_.out; }
  void go_slow() { thread_.go_slow(); }

  /// What follows the header, as the opcode's structure, padded with zeroes.
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
  /// Makes the kernel drop its pages of the node, after writing them back: other threads must be
  /// there to serve that.
  void drop_pages(std::uint64_t node);

 private:
  std::size_t left(std::size_t skip) const {
    const std::size_t used = sizeof(fuse_in_header) + skip;
    return size_ > used ? size_ - used : 0;
  }
  int device_;
  char* bytes_;
  std::size_t size_;
  ServingThread& thread_;
};

/// Whether a read or write of the device that failed with `error` may work a moment later.
bool is_shortage(int error);

/// Ends the process and so the connection: the program's calls fail.
[[noreturn]] void give_up();

}  // namespace heddle::loopback
