// SPDX-License-Identifier: MIT
#pragma once

#include "record/diff/smith_waterman.hpp"

namespace heddle::diff {

/// Two strips of rows, each as many as the kernel has lanes, over all columns. Rows beyond the last
/// are given a token that no column has. Column c of an array stands at [m - 1 - c], and all have
/// kLocalPadding cells more on both sides.
struct LocalStrips {
  const Token* rows;
  const Token* columns;  ///< the padding: a token that no row has
  std::int64_t m;
  std::int32_t* score;  ///< of the row above; then of the last row here
  std::int32_t* down;   ///< the vertical gap that enters the next row, likewise
  Scores scores;
  std::int32_t to_beat;
};

/// The best cell of the strips above to_beat: the smallest row, then the smallest column.
struct LocalBest {
  std::int32_t score = 0;  ///< 0: none above to_beat
  std::int32_t row = 0;
  std::int32_t column = 0;
};

inline constexpr std::int64_t kLocalPadding = 8;  ///< the widest kernel's lanes

LocalBest local_strips_sse41(const LocalStrips& strips);  ///< 2 x 4 rows
LocalBest local_strips_avx2(const LocalStrips& strips);   ///< 2 x 8 rows

/// The scalar twin: any number of rows, same result.
LocalEnd local_end_scalar(Tokens a, Tokens b, const Scores& scores);

}  // namespace heddle::diff
