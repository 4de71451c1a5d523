// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.hpp"

namespace heddle {

// Opening untrusted files for reading: an image's files, a map's origins, a client's paths. Opening
// a device can rewind a tape or reboot the machine, and opening a FIFO unblocks its writer. So the
// name is resolved once with O_PATH, which calls no driver, and only a regular file is then opened,
// through that descriptor. /proc must be mounted. code(): EISDIR for a directory, ENOEXEC for other
// types, EWOULDBLOCK for a file with a lease, which is not waited for; else open(2)'s.

Result<Fd> open_regular(const std::string& path);
/// With `root` as root directory: see open_in_root(). Files of procfs, sysfs and the like are
/// refused too (ENOEXEC), since reading them has effects.
Result<Fd> open_regular_in(int root, const std::string& path);
/// The file of `handle` (O_PATH); `name` is for messages.
Result<Fd> open_regular_at(int handle, const std::string& name);

/// openat2(2) with `resolve` and O_CLOEXEC from the directory `from`. The error names `path`.
/// ENOSYS before Linux 5.6, EPERM below some seccomp filters.
Result<Fd> open_resolved(int from, const std::string& path, int flags, std::uint64_t resolve);

/// Opens `path` without leaving the directory `root` or following procfs's magic links. EAGAIN:
/// directories on the path are renamed all the time. `resolve`: more of openat2's RESOLVE flags;
/// without any it works on kernels without openat2 too.
Result<Fd> open_in_root(int root, const std::string& path, int flags, std::uint64_t resolve);

/// Opens `path` for appending; creates it (0644) if it is missing. Others may write to the
/// directory of root's log, so a symbolic link is not followed, on the path only as by
/// open_directory_to_write(), and only a regular file is opened.
Result<Fd> open_log(const std::string& path);

}  // namespace heddle
