// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/launch/app_process.hpp"
#include "fsgen/app_mount.hpp"
#include "resolver/build/map_builder.hpp"
#include "resolver/map/counters_format.hpp"

namespace heddle {

/// The result of one run. Times are nanoseconds.
struct RunReport {
  std::string app;
  AppEnd end;
  int exec_error = 0;                    ///< errno of a failed execve: APP never ran
  std::uint64_t wall_ns = 0;             ///< exec to exit
  bool guided = false;                   ///< APP itself
  std::string unguided_reason;           ///< empty when guided
  std::string via;                       ///< name_of() of the way, or "none"
  bool cached = false;                   ///< the map is an earlier run's
  std::string not_cached;                ///< why the next run has to resolve, too
  bool fast_files = false;               ///< no file is slow, so that a mount would not pay
  bool shared = false;                   ///< another fs-gen's mount
  std::vector<std::string> limits;       ///< limits_of(Via)
  std::vector<std::string> passed_over;  ///< ways that failed here, and why
  std::string loader;                    ///< "audit" or "environment"
  std::uint64_t libraries = 0;           ///< of APP's closure
  std::uint64_t probes_without = 0;      ///< failed opens and stats of APP's unguided start
  Counters counters{};
  std::uint64_t resolve_ns = 0;
  std::uint64_t mount_ns = 0;
  std::vector<std::pair<std::string, std::uint64_t>> trees;  ///< served: path, number of entries
  std::vector<std::string> tree_notes;                       ///< why others are not
  std::optional<DaemonCounters> daemon;                      ///< warm-up included
  bool learned = false;       ///< what this run opened goes into its map (--learn)
  bool left_running = false;  ///< APP's children still use the mount
  LearnedRun learned_run;     ///< with the cache: what this run loaded and executed

  /// exec to "libraries ready"; nullopt when APP was not guided or ended before.
  std::optional<std::uint64_t> start_ns() const;
};

/// A few lines for people.
std::string to_text(const RunReport& report);
nlohmann::json to_json(const RunReport& report);

}  // namespace heddle
