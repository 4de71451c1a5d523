// SPDX-License-Identifier: MIT
#pragma once

#include "base/result.hpp"
#include "base/temp_dir.hpp"
#include "fsgen/gen_options.hpp"
#include "fsgen/prepare_map.hpp"
#include "fsgen/run_report.hpp"

namespace heddle {

/// Runs APP once with the map mounted (or its index alone, Via::direct) and waits for it. `work`
/// holds the mount point, the counters and the map; it goes with the last process that uses the
/// mount. Failure: the mount could not be made, or APP could not be executed (code() ENOENT or
/// EACCES).
Result<RunReport> run_guided(const GenOptions& options, Via via, const std::string& app_path,
                             const PreparedMap& map, TempDir work);

/// A new folder for one run, under $TMPDIR or /tmp.
Result<TempDir> make_work_dir();

/// Runs APP in the best way that works here: as options.via says, or, where it leaves the choice
/// and no mount can be made, guided to the original files, with a warning. A map without programs
/// needs no mount at all.
Result<RunReport> run_best(const GenOptions& options, const std::string& app_path,
                           const PreparedMap& map, TempDir work);

/// Runs APP as it is: no map, no environment of ours.
Result<RunReport> run_plain(const GenOptions& options, const std::string& app_path,
                            const std::string& reason);

}  // namespace heddle
