// SPDX-License-Identifier: MIT
#pragma once

namespace heddle::launch {

/// `fs-launch session ...`. Result: the exit status.
int session_main(int argc, const char* const* argv);

}  // namespace heddle::launch
