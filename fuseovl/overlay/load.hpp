// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "fuseovl/files/map_file.hpp"
#include "fuseovl/overlay/overlay.hpp"
#include "resolver/map/index_writer.hpp"

namespace heddle {

enum class OnDrift : std::uint8_t {
  refuse,  ///< nothing is mounted
  warn,    ///< a changed file is served as it is now, a missing one is left out
};

struct LoadOptions {
  std::string map_path;
  int map_fd = -1;          ///< in its place: an open map
  std::string mount_point;  ///< where programs see the mount, for the index
  /// Earlier maps of this mount point, the latest first.
  std::vector<PreviousMap> previous;
  std::string signers;   ///< check_signature()'s, in place of the owner; empty: the owner counts
  std::string fallback;  ///< another copy of the bundle, read where the first is damaged
  OnDrift on_drift = OnDrift::refuse;
  ServePolicy serve = ServePolicy::all;
  OnChange on_change = OnChange::keep;
  StageOptions stage;
  std::chrono::milliseconds origin_timeout = kOriginTimeout;
  /// For a mount in a user namespace that maps only this user and its group: supplementary_groups()
  /// outside of it.
  std::vector<gid_t> unmapped_groups;
};

/// Those of this process, but for its own group.
std::vector<gid_t> supplementary_groups();

/// Checks and pins every file of a map, opens the directories of its trees, and makes its tree and
/// index. `drifts` gets each file that differs, and each tree that is missing, also on failure.
/// With OnDrift::warn the index has no changed program, which then runs unguided, and no name of a
/// missing file, which ld.so searches itself.
Result<OverlayContent> load_overlay(const LoadOptions& options, std::vector<Drift>& drifts);

}  // namespace heddle
