// SPDX-License-Identifier: MIT
#pragma once

// The only reader of /proc/PID/mountinfo (proc(5)). It sends requests to no mount, so a dead or
// stopped FUSE daemon cannot block it.

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
  std::string root;     ///< the mounted directory of its file system; escapes decoded
  std::string point;    ///< escapes decoded
  bool shared = false;  ///< mounts below it propagate to its peer group
  std::string type;     ///< with the subtype: `fuse.heddle`
  std::string source;
  std::string options;  ///< of its file system: `rw,user_id=0,group_id=0`

  /// Whether `options` contains exactly this option.
  bool has_option(std::string_view option) const;
};

/// The entries of a mountinfo file's text, in its order.
std::vector<MountEntry> parse_mountinfo(std::string_view text);

/// Every mount in the namespace of a process. Of several on one mount point the last is visible.
Result<std::vector<MountEntry>> list_mounts(const std::string& process = "/proc/self");

/// The topmost mount on exactly `path` (absolute, in the kernel's spelling); nullopt: it is not a
/// mount point.
Result<std::optional<MountEntry>> find_mount(const std::string& path);

enum class NamespaceKind : std::uint8_t {
  mount,           ///< for root
  user_and_mount,  ///< for users: the user namespace maps the caller to itself
};

/// The kind that this process can use: mount for root, else user_and_mount.
NamespaceKind usable_namespace_kind();

/// Moves the calling process, single-threaded, into new namespaces. Later mounts outside propagate
/// in (rslave), mounts inside do not propagate out. Fails if the root is not a mount, as in a plain
/// chroot(2). On failure the process may be in the namespaces already.
Result<void> enter_private_namespace(NamespaceKind kind);

/// Opens /dev/fuse for a mount in this process's user namespace; the kernel requires the same one
/// for the device and the mount. `where_forbidden`: the hint for EPERM, if it is not to pass the
/// device in.
Result<Fd> open_fuse_device(std::string_view where_forbidden = {});

}  // namespace heddle
