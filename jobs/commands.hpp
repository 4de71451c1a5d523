// SPDX-License-Identifier: MIT
#pragma once

#include <span>

namespace heddle::jobs {

/// A sub-command of fs-job. argv[0] is its name.
struct Command {
  const char* name;
  const char* summary;
  int (*run)(int argc, char** argv);
};

// Of this directory.
int run_command(int argc, char** argv);
int start_command(int argc, char** argv);
int stop_command(int argc, char** argv);
int source_command(int argc, char** argv);
int stage_command(int argc, char** argv);
int watch_command(int argc, char** argv);

#ifdef HEDDLE_WITH_JOB_STORE
/// Those of jobs/store.
std::span<const Command> store_commands();
#else
inline std::span<const Command> store_commands() { return {}; }
#endif

}  // namespace heddle::jobs
