// SPDX-License-Identifier: MIT
#include "record/loopback/open_files.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/file_stamp.hpp"
#include "base/file_systems.hpp"

namespace heddle::loopback {

namespace {

/// Whether a process outside has the file open, of which `fd` is our only open: the kernel grants a
/// write lease to a sole opener only (fs/locks.c, check_conflicting_open()). True for files of
/// others, whom it never grants one; false where the file system has no leases.
bool is_open_elsewhere(int fd) {
  if (::fcntl(fd, F_SETLEASE, F_WRLCK) != 0) return errno == EAGAIN || errno == EACCES;
  ::fcntl(fd, F_SETLEASE, F_UNLCK);
  return false;
}

/// The kernel opens the real file with the recorder's rights, which count for less than the
/// caller's on file servers.
bool is_local(int fd) {
  const auto where = locality_of(fd);
  return where == Locality::local || where == Locality::memory;
}

/// 0 if it cannot be had.
std::int64_t mtime_ns(int fd) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) return 0;
  return nanoseconds(st.st_mtim);
}

}  // namespace

bool IoModes::pass(Opens& opens, int fd) {
  if (opens.passed > 0) return true;
  if (!passthrough_ || opens.kept > 0) return false;
  BackingMap map{};
  map.fd = fd;
  // Fails without CAP_SYS_ADMIN, and for stacked file systems.
  opens.backing = std::max(0, ::ioctl(device_, kBackingOpen, &map));
  return opens.backing > 0;
}

IoModes::Mode IoModes::open(std::uint64_t node, int fd, int flags, fuse_open_out& out) {
  const std::lock_guard lock(mutex_);
  Opens& opens = nodes_[node];
  const int access = flags & O_ACCMODE;
  const bool both_ways = access == O_RDWR;
  const bool writes = access != O_RDONLY;
  // A program that is executed has no writer (ETXTBSY).
  const bool reads = passthrough_ && !writes && (flags & kOpenForExec) == 0;
  if ((writes || opens.passed > 0 || (reads && is_local(fd))) && pass(opens, fd)) {
    ++opens.passed;
    // A write with the recorder's rights would keep a set-user-ID bit.
    out.open_flags = kOpenPassthrough | (writes || each_io_ ? FOPEN_DIRECT_IO : 0U);
    // The last field: "padding" in <linux/fuse.h> before Linux 6.9, "backing_id" since.
    std::memcpy(reinterpret_cast<char*>(&out + 1) - sizeof(opens.backing), &opens.backing,
                sizeof(opens.backing));
    return Mode::passed;
  }
  const bool alone = opens.kept == 0 && opens.direct == 0;
  if (both_ways && (opens.direct > 0 || (alone && is_open_elsewhere(fd)))) {
    ++opens.direct;
    out.open_flags = FOPEN_DIRECT_IO;
    return Mode::direct;
  }
  ++opens.kept;
  // File servers set the time of a write when it reaches them.
  if (both_ways && !opens.watched && is_local(fd)) {
    opens.watched = true;
    opens.changed_ns = mtime_ns(fd);
  }
  return Mode::kept;
}

bool IoModes::begin_change(std::uint64_t node, int fd, bool of_pages, bool& collides) {
  const std::lock_guard lock(mutex_);
  const auto at = nodes_.find(node);
  if (at == nodes_.end() || !at->second.watched) return false;
  Opens& opens = at->second;
  if (opens.changes++ == 0 && mtime_ns(fd) != opens.changed_ns) opens.changed_outside = true;
  collides = of_pages && opens.changed_outside && !std::exchange(opens.collided, true);
  return true;
}

void IoModes::end_change(std::uint64_t node, int fd) {
  const std::lock_guard lock(mutex_);
  const auto at = nodes_.find(node);
  if (at == nodes_.end() || at->second.changes == 0) return;
  if (--at->second.changes == 0) at->second.changed_ns = mtime_ns(fd);
}

void IoModes::close(std::uint64_t node, Mode mode) {
  if (mode == Mode::none) return;
  const std::lock_guard lock(mutex_);
  const auto at = nodes_.find(node);
  Opens& opens = at->second;
  if (mode == Mode::kept) --opens.kept;
  if (mode == Mode::direct) --opens.direct;
  if (mode == Mode::passed && --opens.passed == 0) {
    auto backing = static_cast<std::uint32_t>(opens.backing);
    ::ioctl(device_, kBackingClose, &backing);
  }
  if (opens.kept + opens.direct + opens.passed == 0) nodes_.erase(at);
}

bool IoModes::keeps_pages(std::uint64_t node) {
  const std::lock_guard lock(mutex_);
  const auto at = nodes_.find(node);
  return at != nodes_.end() && at->second.kept > 0;
}

}  // namespace heddle::loopback
