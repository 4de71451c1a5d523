// SPDX-License-Identifier: MIT
#pragma once

#include "base/output_file.hpp"

namespace heddle {

/// `fs-gen --doctor`: what of heddle works on this node for this user, and why the rest does not: a
/// line each on stdout, or with `json` as JSON there. Each way of fs-gen is tried in full, with
/// true(1) as APP. Result: the exit status, exit_failure when no way works.
int examine_node(OutputFile* json);

}  // namespace heddle
