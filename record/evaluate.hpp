// SPDX-License-Identifier: MIT
#pragma once

#include "record/recorded_run.hpp"

namespace heddle {

/// Makes from a trace what `options` ask for: the summary on stderr, the copy of the files that the
/// run used.
Result<void> evaluate(const RecordOptions& options, const std::string& trace);

}  // namespace heddle
