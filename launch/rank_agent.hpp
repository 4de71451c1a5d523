// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace heddle::launch {

/// `fs-launch --rank PATH ARGV...`, which the audit library executes in a rank that ld.so has just
/// begun to start: prepares what fs-gen would, and executes PATH with ARGV in this process.
/// Whatever fails, PATH is executed unguided, and nothing is written to the rank's standard error.
/// Returns the exit status when PATH cannot be executed.
int become_rank(int argc, char** argv);

/// Whether the program `path` is a launcher, or a launcher's daemon, which srun starts as its
/// tasks: its children are the ranks.
bool starts_ranks(const std::string& path);

}  // namespace heddle::launch
