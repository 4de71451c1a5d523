// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace heddle::bench {

/// The kept runs of `./dev bench` and `./dev demo`: the JSON's text by the file's name without
/// `.json` (start, record, diff, compat, container, demo).
using KeptRuns = std::map<std::string, std::string>;

/// Reads all `*.json` of a directory.
Result<KeptRuns> read_kept_runs(const std::string& directory);

/// The named table, Markdown, from the kept runs. A figure that was not measured is left out.
/// Throws heddle::Error for an unknown name or a run that is missing, nlohmann::json::exception on
/// a run that is no result.
std::string figure_table(const std::string& name, const KeptRuns& runs);

/// Every name that figure_table() knows.
std::vector<std::string> table_names();

/// The figures that tables have a row for and the runs do not hold. Throws as figure_table() does.
std::vector<std::string> missing_figures(const KeptRuns& runs);

/// `page` with what stands between each `<!-- figures: NAME -->` and `<!-- end of figures -->`
/// replaced by that table. Throws as figure_table() does, and heddle::Error for a mark without end.
std::string with_figures(const std::string& page, const KeptRuns& runs);

}  // namespace heddle::bench
