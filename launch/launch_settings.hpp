// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::launch {

/// Begins the id of a job that no scheduler has numbered when fs-launch starts. Ranks that are in
/// a scheduler's job by then are collected as that.
inline constexpr std::string_view kOwnJob = "launch-";

/// What fs-launch gives its ranks: the options of fs-gen of the same names, and where to report.
struct LaunchSettings {
  std::string map;
  std::string stage;
  std::string via;
  std::string python;
  std::vector<std::string> slow, fast, trees;
  std::string profile;  ///< path of a profile with variables of the ranks; empty: none
  std::string image;    ///< of the ranks' containers; empty: none
  std::string backend, source, hooks, mpi;      ///< as RankContainer's
  std::string hold, hold_exit, hold_directory;  ///< as HoldSettings'; empty: the ranks do not wait
  std::string reports;     ///< a directory that all nodes see; empty: no reports
  std::string job;         ///< id of the job that is collected, or kOwnJob...; empty: none is
  std::string job_start;   ///< its start, microseconds since the epoch
  std::string job_to;      ///< the directory for its archives
  std::string step_check;  ///< check_step() decides for each step of Slurm's; empty: it does not
  std::string prolog;      ///< the user's own of srun; "none"; empty: the site's
  std::string ship;        ///< the engine of fs-ship that copies `map`; empty: none does
  std::string bundle;      ///< the id of `map`, if it may be copied
  std::string quiet;       ///< not empty: fs-launch -q
  std::string signals;     ///< as restore_signals() takes them; empty: as they are
};

/// The value of kLaunchVariable for ranks that execute `agent`, whose name has no comma: of
/// letters, digits and `/._-+=@,%` only, if `agent` is, so that no shell or argument list changes
/// it.
std::string encode(const std::string& agent, const LaunchSettings& settings);
/// The same value for a process that starts ranks itself: it is no rank any more.
std::string with_own_mark(const std::string& value);
/// nullopt: not of this version.
std::optional<LaunchSettings> decode(std::string_view value);

/// Whether `text` is made of what encode() writes, and no comma.
bool is_plain(std::string_view text);

}  // namespace heddle::launch
