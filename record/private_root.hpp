// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/launch/private_mount.hpp"

namespace heddle {

/// What APP's file tree is to look like.
struct RootPlan {
  std::vector<std::string> scopes;   ///< only these come from the loopback; empty: everything
  std::vector<std::string> natives;  ///< stay the kernel's own; absolute, real paths
  std::string cwd;
  /// Where fusermount3 has mounted the loopback already; empty: it is mounted here.
  std::string mounted_at;
};

/// Puts the calling process, single-threaded, before a tree that is the loopback. Two steps,
/// because the second needs a daemon that answers.
class PrivateRoot {
 public:
  explicit PrivateRoot(RootPlan plan) : plan_(std::move(plan)) {}

  /// Own namespaces; the loopback mounted, not yet in place. Gives the device to serve
  /// (an empty one when it was mounted before).
  Result<Fd> mount(NamespaceKind kind);
  /// Binds what stays native, makes the loopback the root (or binds the scopes), goes back to cwd.
  Result<void> enter();
  /// Tells the recorder that APP comes now.
  void mark_start() const;

 private:
  Result<void> bind_natives();
  Result<void> make_root();
  Result<void> bind_scopes();
  RootPlan plan_;
  Fd loopback_;  ///< the mount's root
  Fd old_root_;
};

}  // namespace heddle
