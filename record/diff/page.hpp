// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace heddle::diff {

/// A whole HTML page that needs nothing beside itself: the data as JSON in it, the style, `script`,
/// and a policy that forbids it to load anything. Data never becomes markup: the scripts set text
/// only, and `<` cannot occur in the JSON. When drawn, `data-state` of <html> says "ready", after
/// an error "failed".
std::string make_page(std::string_view title, const nlohmann::ordered_json& data,
                      std::string_view script);

extern const char* const kPageStyle;
extern const char* const kCommonScript;   ///< helpers both pages use
extern const char* const kCompareScript;  ///< html_report()'s page
extern const char* const kMatrixScript;   ///< matrix_html()'s page

}  // namespace heddle::diff
