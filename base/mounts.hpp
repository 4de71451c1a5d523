// SPDX-License-Identifier: MIT
#pragma once

// The one reader of /proc/PID/mountinfo (proc(5)). It asks no mount anything, so neither a dead nor
// a stopped FUSE daemon can make it wait.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"

namespace heddle {

struct MountEntry {
  int id = 0;
  dev_t device = 0;     ///< st_dev of its files
  std::string root;     ///< which directory of its file system is mounted; escapes decoded
  std::string point;    ///< escapes decoded
  bool shared = false;  ///< what is mounted below it shows in its peers too
  std::string type;     ///< with the subtype: `fuse.heddle`
  std::string source;
  std::string options;  ///< its file system's: `rw,user_id=0,group_id=0`

  /// Whether `options` has exactly this one.
  bool has_option(std::string_view option) const;
};

/// The entries of a mountinfo file's text, in its order.
std::vector<MountEntry> parse_mountinfo(std::string_view text);

/// Every mount in the namespace of a process; of several on one mount point the last is the one
/// seen.
Result<std::vector<MountEntry>> list_mounts(const std::string& process = "/proc/self");

/// What is mounted on exactly `path` (absolute, as the kernel spells it), the topmost; nullopt: it
/// is no mount point.
Result<std::optional<MountEntry>> find_mount(const std::string& path);

enum class NamespaceKind : std::uint8_t {
  mount,           ///< root: a mount namespace
  user_and_mount,  ///< anybody: a user namespace that maps the caller to itself, and a mount one
};

/// Which kind this process can use: mount with CAP_SYS_ADMIN, else user_and_mount.
NamespaceKind usable_namespace_kind();

/// Moves the calling process, single-threaded, into namespaces of its own; what is mounted outside
/// later still arrives (rslave), what it mounts does not leave. Fails where the root is no mount,
/// as in a plain chroot(2). On failure the process may be in the namespaces already.
Result<void> enter_private_namespace(NamespaceKind kind);

/// /dev/fuse for a mount that this process is to make or have made, in the user namespace it has
/// now: the kernel wants the device's and the mount's to be one. The error's hint says what to do;
/// `where_forbidden` is that of EPERM, where it is not to pass the device in.
Result<Fd> open_fuse_device(std::string_view where_forbidden = {});

}  // namespace heddle
