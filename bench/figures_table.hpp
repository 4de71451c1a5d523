// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace heddle::bench {

/// The README's table of figures, Markdown, from the text of a results.json. A figure that was not
/// measured is left out. Throws nlohmann::json::exception on other text.
std::string figures_table(const std::string& results_json);

/// `page` with what stands between `<!-- figures -->` and `<!-- end of figures -->` replaced by
/// `table`; throws heddle::Error when the marks are not there.
std::string with_figures(const std::string& page, const std::string& table);

}  // namespace heddle::bench
