// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"

namespace heddle {

/// A small process that runs fusermount3 for this one (delegate_unmounting()) and outlives it,
/// however it ends, to take away what would be left: a mount by fusermount3 that is dead, and the
/// mount point's folder. (fusermount3's own auto_unmount leaves a mount without allow_other: it may
/// not look into it. Measured with 3.14.)
class MountGuard {
 public:
  /// `folder` is what to remove, `folder`/m the mount point. To be called before any thread starts,
  /// and before the device is opened: the guard must not keep it.
  static Result<MountGuard> start(const std::string& folder);

 private:
  explicit MountGuard(Fd alive) : alive_(std::move(alive)) {}
  Fd alive_;  ///< closes with us
};

}  // namespace heddle
