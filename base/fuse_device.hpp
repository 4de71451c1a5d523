// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include "base/fd.hpp"

namespace heddle {

/// /dev/fuse for a mount that this process is to make or have made, in the user namespace it has
/// now: the kernel wants the device's and the mount's to be one. The error's hint says what to do;
/// `where_forbidden` is that of EPERM, where it is not to pass the device in.
Result<Fd> open_fuse_device(std::string_view where_forbidden = {});

}  // namespace heddle
