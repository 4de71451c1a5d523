// SPDX-License-Identifier: MIT
#pragma once

namespace heddle::launch {

// The sub-commands of fs-launch; argv[0] is their name. They return the exit status.
int profile_main(int argc, const char* const* argv);
int session_main(int argc, const char* const* argv);

}  // namespace heddle::launch
