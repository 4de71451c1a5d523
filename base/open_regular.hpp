// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.hpp"

namespace heddle {

// For reading what others made or named: an image's files, a map's origins, a client's paths. To
// open a device can rewind a tape or reboot the machine, and to open a FIFO lets its writer
// through, whatever is read then. So the name is walked once, by O_PATH, which asks no driver; what
// was found must be a regular file; and that very file is opened, by its descriptor. /proc must be
// mounted. code(): EISDIR for a directory, ENOEXEC for anything else that is no regular file, else
// open(2)'s; EWOULDBLOCK where somebody holds a lease on it, which nobody waits for.

/// As this process sees `path`.
Result<Fd> open_regular(const std::string& path);
/// As a process would whose root directory is `root`: see open_in_root(). What lies on procfs,
/// sysfs or their kind is refused too (ENOEXEC): reading there has effects.
Result<Fd> open_regular_in(int root, const std::string& path);
/// What `handle` (O_PATH) is open on; `name` is for messages.
Result<Fd> open_regular_at(int handle, const std::string& name);

/// openat2(2) with `resolve`, O_CLOEXEC, from the directory `from`. The error names `path`. ENOSYS
/// before Linux 5.6, and where it is forbidden EPERM.
Result<Fd> open_resolved(int from, const std::string& path, int flags, std::uint64_t resolve);

/// `path`, and symbolic links on its way, lead nowhere outside the directory `root`, nor through
/// the magic links of procfs. EAGAIN: what lies there is renamed without end. `resolve`: more of
/// openat2's RESOLVE flags; without any it works on kernels that lack that call too.
Result<Fd> open_in_root(int root, const std::string& path, int flags, std::uint64_t resolve);

/// Opens `path` to append lines to it, and makes it (0644) where it is missing. The log of root's
/// program may lie where others write: a symbolic link is not followed, and what is no regular file
/// (a FIFO would hold the program up, a device would get its words) is refused unopened.
Result<Fd> open_log(const std::string& path);

}  // namespace heddle
