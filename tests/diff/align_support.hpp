// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

#include "record/diff/alignment.hpp"

namespace heddle::diff {

/// One token a letter.
inline std::vector<Token> word(std::string_view letters) {
  return {letters.begin(), letters.end()};
}

inline std::vector<Token> random_tokens(std::mt19937& random, std::size_t length, Token alphabet) {
  std::vector<Token> out(length);
  for (Token& t : out) t = static_cast<Token>(random()) % alphabet;
  return out;
}

/// `share` of the events replaced, removed or added.
inline std::vector<Token> edited(std::mt19937& random, const std::vector<Token>& a, double share,
                                 Token alphabet) {
  std::uniform_real_distribution<> chance;
  std::vector<Token> out;
  for (const Token t : a) {
    const double x = chance(random) / share;
    if (x >= 1) {
      out.push_back(t);
    } else if (x < 0.33) {
      out.push_back(static_cast<Token>(random()) % alphabet);
    } else if (x < 0.66) {
      out.push_back(t);
      out.push_back(static_cast<Token>(random()) % alphabet);
    }
  }
  return out;
}

/// The textbook's O(nm), one row.
inline std::uint32_t reference_distance(Tokens a, Tokens b) {
  std::vector<std::uint32_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<std::uint32_t>(j);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::uint32_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::uint32_t met = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({met, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

/// A script must cover both sequences in order and be true about what is the same.
inline void expect_valid(const std::vector<EditRun>& script, Tokens a, Tokens b) {
  std::size_t i = 0, j = 0;
  for (const EditRun& run : script) {
    ASSERT_EQ(run.a, i);
    ASSERT_EQ(run.b, j);
    ASSERT_GT(run.length, 0U);
    if (run.kind != EditKind::inserted) i += run.length;
    if (run.kind != EditKind::deleted) j += run.length;
    ASSERT_LE(i, a.size());
    ASSERT_LE(j, b.size());
    if (run.kind != EditKind::same && run.kind != EditKind::replaced) continue;
    for (std::size_t n = 0; n < run.length; ++n)
      ASSERT_EQ(a[run.a + n] == b[run.b + n], run.kind == EditKind::same);
  }
  ASSERT_EQ(i, a.size());
  ASSERT_EQ(j, b.size());
}

}  // namespace heddle::diff
