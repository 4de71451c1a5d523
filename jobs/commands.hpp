// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"

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

/// Of jobs on this node that have ranks of the fs-launch with this mark.
std::vector<std::string> jobs_of_launch(const std::string& launch);

/// Writes this node's archive of a job whose `fs-job run`s were killed before they could, or could
/// not. Result: false: it cannot be written, as one of them has said; true: it is written, the job
/// left nothing here, or some are alive after `limit`, which will write it.
Result<bool> stage_killed_job(const std::string& jobid, std::chrono::milliseconds limit);

/// The names of all archives, of any job, in `directory`.
std::set<std::string> archives_in(const std::string& directory);
/// The nodes of which `directory` has one of the job, in our layout.
std::set<std::string> archived_hosts(const std::string& jobid, const std::string& directory);

#ifdef HEDDLE_WITH_JOB_STORE
/// Those of jobs/store.
std::span<const Command> store_commands();
#else
inline std::span<const Command> store_commands() { return {}; }
#endif

}  // namespace heddle::jobs
