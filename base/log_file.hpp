// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"

namespace heddle {

/// Opens `path` to append lines to it, and makes it (0644) where it is missing. The log of root's
/// program may lie where others write: a symbolic link is not followed, and what is no regular file
/// (a FIFO would hold the program up, a device would get its words) is refused unopened.
Result<Fd> open_log(const std::string& path);

}  // namespace heddle
