// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/output_file.hpp"

namespace heddle {

/// `fs-gen --doctor`: what of heddle works on this node for this user, and why the rest does not: a
/// line each on stdout, or with `json` as JSON there. Each way of fs-gen is tried in full, with
/// true(1) as APP. Result: the exit status, exit_failure when no way works.
int examine_node(OutputFile* json);

/// The version of libpmix that libexec/heddle/heddle-pmix loads: that program is started, which
/// prints it. Failure, with the remedy: the program is missing, or cannot load libpmix.
Result<std::string> pmix_version();

}  // namespace heddle
