// SPDX-License-Identifier: MIT
#pragma once

#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// What this kernel takes from a FUSE server, asked of a mount in a namespace of its own. True
/// where none can be made: whoever needs one says so by itself.
bool kernel_resends();          ///< FUSE_NOTIFY_RESEND (Linux 6.9): a dead worker can be followed
bool kernel_exchanges_names();  ///< FUSE_NOTIFY_INC_EPOCH (Linux 6.16): another map under a mount

}  // namespace heddle::test

#define HEDDLE_NEEDS_RESEND()            \
  if (!::heddle::test::kernel_resends()) \
  HEDDLE_SKIP("this kernel sends no request again that a dead process had read")
#define HEDDLE_NEEDS_EPOCHS()                    \
  if (!::heddle::test::kernel_exchanges_names()) \
  HEDDLE_SKIP("this kernel exchanges no names under a FUSE mount")
