// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The program fs-record. Result: APP's exit status, or ours (base/exit_code.hpp).
int fs_record(int argc, const char* const* argv);

}  // namespace heddle
