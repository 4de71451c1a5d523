// SPDX-License-Identifier: MIT
#pragma once

#include "base/result.hpp"
#include "base/temp_dir.hpp"
#include "fsgen/gen_options.hpp"
#include "fsgen/prepare_map.hpp"
#include "fsgen/run_report.hpp"

namespace heddle {

/// A new directory for one run, under $TMPDIR or /tmp.
Result<TempDir> make_work_dir();

/// Runs APP as options.via says, or, where it leaves the choice, in the first of ways_to_try() that
/// works here; that no mount could be made at all is warned of. A map without programs needs none.
Result<RunReport> run_best(const GenOptions& options, const std::string& app_path,
                           const PreparedMap& map, TempDir work);

/// Runs APP as it is: no map, no environment of ours.
Result<RunReport> run_plain(const GenOptions& options, const std::string& app_path,
                            const std::string& reason);

}  // namespace heddle
