// SPDX-License-Identifier: MIT
#pragma once

#include "base/fd.hpp"
#include "base/temp_dir.hpp"

namespace heddle {

/// A mount by fusermount3, where the user may not mount himself. It is taken off when the program
/// has its own copy of it; the folder goes too.
class UserMount {
 public:
  static Result<UserMount> make();
  UserMount(UserMount&&) = default;
  UserMount& operator=(UserMount&&) = delete;
  ~UserMount();

  const std::string& path() const { return folder_.path(); }
  Fd take_device() { return std::move(device_); }
  /// Once is enough; what fails is tried again with the next, at the end at the latest.
  void take_off();

 private:
  UserMount(TempDir folder, Fd device) : folder_(std::move(folder)), device_(std::move(device)) {}
  TempDir folder_;
  Fd device_;
  bool mounted_ = true;
};

/// Takes the mount at `path` off, lazily, by fusermount3. What a shortage keeps from working is
/// tried again for half a second.
Result<void> take_user_mount_off(const std::string& path);

}  // namespace heddle
