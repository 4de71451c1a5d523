// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

#include "base/result.hpp"
#include "base/temp_dir.hpp"
#include "fsgen/gen_options.hpp"
#include "fsgen/prepare_map.hpp"
#include "fsgen/run_report.hpp"

namespace heddle {

/// A new directory for one run, under $TMPDIR or /tmp.
Result<TempDir> make_work_dir();

/// Makes the directory of --stage, if there is one. Failure: the daemon, whose warning is not
/// shown, will stage nothing.
Result<void> check_stage(const GenOptions& options);

/// The ways that run_best() tries, in this order.
std::vector<Via> ways_for(const GenOptions& options, const PreparedMap& map);

/// Runs APP in the first of ways_for() that works here, with a warning when none of the mounts
/// does. A map without programs needs no mount.
Result<RunReport> run_best(const GenOptions& options, const std::string& app_path,
                           const PreparedMap& map, TempDir work);

/// As run_best(), but `work` may be none, and this process executes APP, which then holds its
/// mount, and returns only if that fails. `before_exec` gets a report of what is known by then.
Result<RunReport> become_best(const GenOptions& options, const std::string& app_path,
                              const PreparedMap& map, TempDir work,
                              const std::function<void(const RunReport&)>& before_exec);

/// Runs APP without heddle.
Result<RunReport> run_plain(const GenOptions& options, const std::string& app_path,
                            const std::string& reason);

}  // namespace heddle
