// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "fuseovl/files/object_files.hpp"
#include "fuseovl/overlay/serving_state.hpp"

namespace heddle {

/// What the statistics say that does not change while the mount stands.
struct StatsFacts {
  std::string map_path;
  std::string map_id;
  std::string mount_point;
  std::size_t views = 0;
  std::size_t names = 0;
  std::uint64_t index_bytes = 0;
  /// map_directory() of the maps that the mount point showed before, the latest first.
  std::vector<std::string> previous_maps;
  std::string start_time;  ///< of the mount, UTC
};

/// The statistics of this moment as JSON (docs/formats/report.md), at most kMostStatsBytes: the
/// value of the root directory's extended attribute kStatsAttribute (overlay/stats_reader.hpp).
/// Takes no lock: another thread may be forking a process that calls this too.
std::string render_stats(const StatsFacts& facts, const ServingState& state,
                         const ObjectFiles& files);

}  // namespace heddle
