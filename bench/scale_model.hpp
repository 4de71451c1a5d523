// SPDX-License-Identifier: MIT
#pragma once

// What the start of a Python program on many nodes costs: requests to the file system that they
// share (the origin), bytes read there, and seconds until the last rank has imported its packages.
// docs/scale.md explains the formulas.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace heddle::bench {

struct ScaleConstant {
  double value = 0;
  std::string unit;
  std::string kind;    ///< measured, published, assumed
  std::string source;  ///< of a measured one the figure of a bench, if it begins with "python."
};
using ScaleConstants = std::map<std::string, ScaleConstant>;

/// Lines of `name value unit kind source...`; `#` begins a comment. EBADMSG: a line that is not, or
/// a constant that the model needs is not there.
Result<ScaleConstants> read_scale_constants(std::string_view text);

struct ScaleCost {
  double requests = 0;
  double mib = 0;
  double seconds = 0;
};

struct ScaleMethod {
  const char* name;
  ScaleCost (*cost)(const ScaleConstants& constants, double nodes, double ranks);
};
const std::vector<ScaleMethod>& scale_methods();

/// Tables in Markdown: requests, bytes and seconds of 1 to 10,000 nodes of 128 ranks, and the
/// constants.
std::string scale_tables(const ScaleConstants& constants);
/// `page` with these tables between its marks. Throws heddle::Error without them.
std::string with_scale_tables(const std::string& page, const ScaleConstants& constants);

}  // namespace heddle::bench
