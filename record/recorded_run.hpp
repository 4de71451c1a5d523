// SPDX-License-Identifier: MIT
#pragma once

#include "base/launch/app_end.hpp"
#include "record/record_options.hpp"

namespace heddle {

struct RecordedRun {
  AppEnd end;
  int exec_error = 0;  ///< errno of an exec that failed
  std::string method;
  std::uint64_t events = 0;
  std::string trace_failure;
  bool left_running = false;
};

/// Runs APP (the file `path`) on the loopback. Failure: it could not be begun; APP did not run.
Result<RecordedRun> run_recorded(const RecordOptions& options, const std::string& path);

}  // namespace heddle
