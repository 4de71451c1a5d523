// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace heddle::compat {

/// What a recorded run opened that by its name may be a shared library, by program.
struct TraceOpens {
  std::vector<std::string> programs;  ///< executables, in order of appearance
  /// Executable (empty: the trace does not say) -> paths, in order, each once.
  std::map<std::string, std::vector<std::string>> libraries;
};

/// Reads all runs of the trace at `path`. Fails as trace::read_trace does.
Result<TraceOpens> read_trace_opens(const std::string& path);

}  // namespace heddle::compat
