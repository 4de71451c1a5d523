// SPDX-License-Identifier: MIT
#pragma once

#include "record/diff/smith_waterman.hpp"

namespace heddle::diff {

/// A strip of rows, as many as the kernel has lanes, over all columns. Rows beyond the last are
/// given a token that no column has.
struct LocalStrip {
  const Token* rows;
  /// Columns in reverse, with lanes - 1 tokens that no row has before and behind: lane l at step t
  /// reads column t - l, so a step's columns are one unaligned load.
  const Token* reversed_columns;
  std::int64_t m;
  std::int32_t* score;  ///< of the row above, m cells; then of the strip's last row
  std::int32_t* down;   ///< the vertical gap that enters the next row, likewise
  Scores scores;
  std::int32_t to_beat;
};

/// The best cell of a strip above to_beat: the smallest row, then the smallest column.
struct LocalBest {
  std::int32_t score = 0;  ///< 0: none above to_beat
  std::int32_t row = 0;
  std::int32_t column = 0;
};

inline constexpr std::int64_t kLocalPadding = 8;  ///< the widest kernel's lanes

LocalBest local_strip_sse41(const LocalStrip& strip);  ///< 4 rows
LocalBest local_strip_avx2(const LocalStrip& strip);   ///< 8 rows

/// The scalar twin: any number of rows, same result.
LocalEnd local_end_scalar(Tokens a, Tokens b, const Scores& scores);

}  // namespace heddle::diff
