// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "fuseovl/files/map_file.hpp"
#include "fuseovl/overlay/overlay.hpp"
#include "resolver/map/index_writer.hpp"

namespace heddle {

enum class OnDrift : std::uint8_t {
  refuse,  ///< nothing is mounted when one file differs from the map
  warn,    ///< a changed file is served as it is now, a missing one is left out
};

struct LoadOptions {
  std::string map_path;
  int map_fd = -1;          ///< in its place: the map that somebody else has opened
  std::string mount_point;  ///< where programs see the mount, for the index
  /// Maps that this mount point showed before, the latest first.
  std::vector<PreviousMap> previous;
  OnDrift on_drift = OnDrift::refuse;
  ServePolicy serve = ServePolicy::all;
  OnChange on_change = OnChange::keep;
  StageOptions stage;
  std::chrono::milliseconds origin_timeout = kOriginTimeout;
};

/// A map made ready to be served: every file checked and pinned, tree and index made. `drifts` gets
/// each file that differs, also when that is why it fails. With OnDrift::warn a program that
/// changed is left out of the index and runs unguided, and so is every name of a missing file:
/// ld.so then looks for it itself, and says what it says without us.
Result<OverlayContent> load_overlay(const LoadOptions& options, std::vector<Drift>& drifts);

}  // namespace heddle
