// SPDX-License-Identifier: MIT
#pragma once

namespace heddle::launch {

/// `fs-launch profile ...`; argv[0] is "profile". Returns the exit status.
int profile_main(int argc, const char* const* argv);

}  // namespace heddle::launch
