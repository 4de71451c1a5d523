// SPDX-License-Identifier: MIT
#pragma once

#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// What this kernel takes from a FUSE server, asked of a mount in a namespace of its own. True
/// where none can be made: whoever needs one says so by itself.
bool kernel_resends();  ///< FUSE_NOTIFY_RESEND (Linux 6.9): a dead worker can be followed

}  // namespace heddle::test

#define HEDDLE_NEEDS_RESEND()            \
  if (!::heddle::test::kernel_resends()) \
  HEDDLE_SKIP("this kernel sends no request again that a dead process had read")
