// SPDX-License-Identifier: MIT
#pragma once

// The kernel's FUSE protocol, spoken without libfuse: 3.14 lacks O_TMPFILE, statx and the 64-bit
// init flags, drops a thread into its loop where we want the one that follows the caller's core,
// and a program without it can be linked statically. What Debian 12's header lacks is added here
// (include/uapi/linux/fuse.h of Linux 6.18).

#include <linux/fuse.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <cstdint>

namespace heddle::loopback {

inline constexpr std::uint32_t kOpTmpfile = 51;  // 7.37
inline constexpr std::uint32_t kOpStatx = 52;    // 7.39

struct StatxIn {
  std::uint32_t getattr_flags;
  std::uint32_t reserved;
  std::uint64_t fh;
  std::uint32_t sx_flags;
  std::uint32_t sx_mask;
};

struct StatxTime {
  std::int64_t tv_sec;
  std::uint32_t tv_nsec;
  std::int32_t reserved;
};

struct StatxOut {
  std::uint64_t attr_valid;
  std::uint32_t attr_valid_nsec;
  std::uint32_t flags;
  std::uint64_t spare[2];
  std::uint32_t mask;
  std::uint32_t blksize;
  std::uint64_t attributes;
  std::uint32_t nlink;
  std::uint32_t uid;
  std::uint32_t gid;
  std::uint16_t mode;
  std::uint16_t spare0;
  std::uint64_t ino;
  std::uint64_t size;
  std::uint64_t blocks;
  std::uint64_t attributes_mask;
  StatxTime atime;
  StatxTime btime;
  StatxTime ctime;
  StatxTime mtime;
  std::uint32_t rdev_major;
  std::uint32_t rdev_minor;
  std::uint32_t dev_major;
  std::uint32_t dev_minor;
  std::uint64_t spare2[14];
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

}  // namespace heddle::loopback
