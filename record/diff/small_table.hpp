// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include "record/diff/levenshtein.hpp"

namespace heddle::diff {

/// The textbook's table for small pairs: calls put(kind, i, j) for each step of a shortest script,
/// in order, i and j being where the step stands.
template <class Put>
void solve_small_table(Tokens a, Tokens b, Put put) {
  const std::size_t width = b.size() + 1;
  std::vector<std::uint32_t> cost((a.size() + 1) * width);
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i * width + j] = static_cast<std::uint32_t>(i + j);
        continue;
      }
      const std::uint32_t diagonal = cost[(i - 1) * width + j - 1] + (a[i - 1] != b[j - 1]);
      cost[i * width + j] =
          std::min({diagonal, cost[(i - 1) * width + j] + 1, cost[i * width + j - 1] + 1});
    }
  std::vector<EditKind> steps;
  for (std::size_t i = a.size(), j = b.size(); i > 0 || j > 0;) {
    const std::uint32_t here = cost[i * width + j];
    const bool diagonal =
        i > 0 && j > 0 && here == cost[(i - 1) * width + j - 1] + (a[i - 1] != b[j - 1]);
    if (diagonal) {
      --i, --j;
      steps.push_back(a[i] == b[j] ? EditKind::same : EditKind::replaced);
    } else if (i > 0 && here == cost[(i - 1) * width + j] + 1) {
      --i;
      steps.push_back(EditKind::deleted);
    } else {
      --j;
      steps.push_back(EditKind::inserted);
    }
  }
  std::size_t i = 0, j = 0;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    put(*step, i, j);
    i += *step != EditKind::inserted;
    j += *step != EditKind::deleted;
  }
}

}  // namespace heddle::diff
