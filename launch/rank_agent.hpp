// SPDX-License-Identifier: MIT
#pragma once

namespace heddle::launch {

/// `fs-launch --rank PATH ARGV...`, which the audit library executes in a rank that ld.so has just
/// begun to start: prepares what fs-gen would, and executes PATH with ARGV in this process.
/// Whatever fails, PATH is executed unguided, and nothing is written to the rank's standard error.
/// Returns the exit status when PATH cannot be executed.
int become_rank(int argc, char** argv);

}  // namespace heddle::launch
