// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"

namespace heddle {

/// Runs this program anew, from a copy in memory that nothing can write to, and returns in the copy
/// only. A process of a container that shares a pid namespace with the hook, or that it enters, may
/// reach the hook's file by /proc/PID/exe: to write there must not be to write the host's program
/// (CVE-2019-5736; runc does the same).
Result<void> run_from_sealed_copy(char** argv);

/// Where the programs beside this one are installed, in the copy too.
Result<std::string> hook_program_dir();

}  // namespace heddle
