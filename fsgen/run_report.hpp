// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/launch/app_process.hpp"
#include "resolver/build/map_builder.hpp"
#include "resolver/map/counters_format.hpp"

namespace heddle {

/// What one guided run came to. Times are nanoseconds.
struct RunReport {
  std::string app;
  AppEnd end;
  int exec_error = 0;                    ///< errno of an execve that failed: APP never ran
  std::uint64_t wall_ns = 0;             ///< exec to exit
  bool guided = false;                   ///< APP itself was in the map
  std::string unguided_reason;           ///< why not
  std::string via;                       ///< name_of() of the way, or "none"
  bool shared = false;                   ///< the mount stood already, made by another fs-gen
  std::vector<std::string> limits;       ///< limits_of(Via)
  std::vector<std::string> passed_over;  ///< ways that did not work here, and why
  std::string loader;                    ///< "audit" or "environment"
  std::uint64_t libraries = 0;           ///< of APP's closure
  std::uint64_t probes_without = 0;  ///< failed opens and stats that ld.so makes for APP by itself
  Counters counters{};
  std::uint64_t resolve_ns = 0;
  std::uint64_t mount_ns = 0;
  std::optional<std::uint64_t> requests;    ///< that the daemon answered, warm-up included
  std::optional<std::uint64_t> bytes_read;  ///< that it handed to the kernel
  bool learned = false;                     ///< what this run opened goes into its map (--learn)
  bool left_running = false;                ///< APP's children still use the mount
  std::vector<PluginSuspect> suspects;      ///< libraries that may miss their plugins in the view

  /// exec to "libraries ready"; nullopt when APP was not guided or never got there.
  std::optional<std::uint64_t> start_ns() const;
};

/// A few lines for people.
std::string to_text(const RunReport& report);
nlohmann::json to_json(const RunReport& report);

}  // namespace heddle
