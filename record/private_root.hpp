// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/mounts.hpp"
#include "base/temp_dir.hpp"

namespace heddle {

/// What APP's file tree is to look like.
struct RootPlan {
  std::vector<std::string> scopes;   ///< only these come from the loopback; empty: everything
  std::vector<std::string> natives;  ///< stay the kernel's own; absolute, real paths
  std::string cwd;
  /// Where fusermount3 has mounted the loopback already; empty: it is mounted here.
  std::string mounted_at;
};

/// Gives the calling process, single-threaded, a tree that is the loopback. Two steps, because the
/// second needs a daemon that answers. mount(2) only, so that Linux 4.18 will do.
class PrivateRoot {
 public:
  explicit PrivateRoot(RootPlan plan) : plan_(std::move(plan)) {}

  /// Own namespaces; the loopback mounted over `/`, which absolute paths of this process do not see
  /// yet. Gives the device to serve (an empty one when it was mounted before).
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

/// A mount by fusermount3, where the user may not mount. It is unmounted when the program has its
/// own copy of it; the directory is removed too.
class UserMount {
 public:
  static Result<UserMount> make();
  UserMount(UserMount&&) = default;
  UserMount& operator=(UserMount&&) = delete;
  ~UserMount();

  const std::string& path() const { return directory_.path(); }
  Fd take_device() { return std::move(device_); }
  /// Unmounts it; what fails is tried again with the next call, at the end at the latest.
  void take_off();

 private:
  UserMount(TempDir directory, Fd device)
      : directory_(std::move(directory)), device_(std::move(device)) {}
  TempDir directory_;
  Fd device_;
  bool mounted_ = true;
};

/// Unmounts `path` lazily by fusermount3.
Result<void> take_user_mount_off(const std::string& path);

}  // namespace heddle
