// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/launch/app_end.hpp"
#include "base/output_file.hpp"
#include "fsgen/gen_options.hpp"
#include "fsgen/prepare_map.hpp"

namespace heddle {

/// `--compare N`: APP N times as it is and N times guided, in turn, its output thrown away; prints
/// both medians and their ratio to stderr, and to `json` when there is one. Each guided run has a
/// mount of its own, so it is a first start, not a warm one. Result: APP's first end that was a
/// failure, if any.
AppEnd compare(const GenOptions& options, const std::string& app_path, const PreparedMap& map,
               OutputFile* json);

}  // namespace heddle
