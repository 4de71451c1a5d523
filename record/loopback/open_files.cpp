// SPDX-License-Identifier: MIT
#include "record/loopback/open_files.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

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

/// Whether somebody has the file open for writing, or mapped and writable, which may outlive the
/// open: the kernel grants a read lease only if not (fs/locks.c, check_conflicting_open()). `fd` is
/// read only. While the lease is held, a process outside that opens the file for writing waits, or
/// gets EWOULDBLOCK with O_NONBLOCK. So only files are tried that are likely to have a writer:
/// those in memory and those written within a day. On network file systems EAGAIN means that the
/// server has granted no delegation.
bool has_writer(int fd) {
  const auto locality = locality_of(fd);
  struct stat status {};
  if (locality == Locality::remote || ::fstat(fd, &status) != 0) return false;
  if (locality != Locality::memory && status.st_mtim.tv_sec + 86'400 < ::time(nullptr))
    return false;
  if (::fcntl(fd, F_SETLEASE, F_RDLCK) != 0) return errno == EAGAIN;
  ::fcntl(fd, F_SETLEASE, F_UNLCK);
  return false;
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
  // A program that is executed has no writer (ETXTBSY).
  const bool may_have_writer = passthrough_ && (flags & kOpenForExec) == 0;
  // Pages that are cached here would not show what a mapping of the real file writes, such as that
  // of the shared memory of Open MPI's ranks.
  if ((access != O_RDONLY || opens.passed > 0 || (may_have_writer && has_writer(fd))) &&
      pass(opens, fd)) {
    ++opens.passed;
    out.open_flags = FOPEN_DIRECT_IO | kOpenPassthrough;
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
  return Mode::kept;
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
