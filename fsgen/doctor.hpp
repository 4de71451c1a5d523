// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/output_file.hpp"
#include "fsgen/gen_options.hpp"

namespace heddle {

/// `fs-gen --doctor`: what of heddle works on this node for this user, and why the rest does not: a
/// line each on stdout, or with `json` as JSON there. Result: the exit status, exit_failure when no
/// way works.
int examine_node(OutputFile* json);

/// Tries `way`, which is not Via::best, in full: runs this fs-gen with true(1) as APP. Failure: why
/// it does not work here, and the remedy.
Result<void> try_way(Via way);

/// The version of libpmix that libexec/heddle/heddle-pmix loads: that program is started, which
/// prints it. Failure, with the remedy: the program is missing, or cannot load libpmix.
Result<std::string> pmix_version();

}  // namespace heddle
