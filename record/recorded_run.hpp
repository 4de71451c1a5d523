// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/launch/app_process.hpp"
#include "record/recorder.hpp"

namespace heddle {

/// How the loopback becomes APP's root.
enum class RecordVia : std::uint8_t {
  best,   ///< root: mount; else user; else proot
  mount,  ///< a mount namespace, mount(2): root
  user,   ///< fusermount3 and a user namespace; without fusermount3 a mount in that namespace
  proot,  ///< fusermount3, then proot
};

struct RecordOptions {
  std::string out;  ///< absolute
  bool json = false;
  bool quiet = false;
  bool summary = false;
  std::string slim_dir;
  std::string trace;                ///< evaluated instead of a run
  std::vector<std::string> scopes;  ///< absolute, real
  RecordVia via = RecordVia::best;
  RecorderOptions recorder;
  std::vector<std::string> command;
};

struct RecordedRun {
  AppEnd end;
  int exec_error = 0;  ///< errno of an exec that failed
  std::uint64_t events = 0;
  std::string trace_failure;
  bool left_running = false;
  /// Files of which writes may be lost, since a process outside wrote them too.
  std::vector<std::string> collisions;
};

/// Runs APP (the file `path`) on the loopback. Failure: APP did not run.
Result<RecordedRun> run_recorded(const RecordOptions& options, const std::string& path);

/// Prints the summary of a trace on stderr and copies the files it used, as `options` say. Result:
/// whether the trace is complete.
Result<bool> evaluate(const RecordOptions& options, const std::string& trace);

}  // namespace heddle
