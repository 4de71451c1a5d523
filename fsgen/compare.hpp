// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "fsgen/gen_options.hpp"
#include "fsgen/prepare_map.hpp"

namespace heddle {

/// `--compare N`: APP N times as it is and N times guided, in turn, its output thrown away; prints
/// both medians and their ratio to stderr, and to --json. Each guided run has a mount of its own,
/// so it is a first start, not a warm one. Result: the exit status, APP's own if it ever failed.
int compare(const GenOptions& options, const std::string& app_path, const PreparedMap& map);

}  // namespace heddle
