// SPDX-License-Identifier: MIT
#include "record/diff/local_kernel.hpp"

#include <algorithm>

namespace heddle::diff {
namespace {

// Tokens that match nothing, not even one another. Real ones are dense and far below.
constexpr Token kNoRow = 0xFFFFFFFE;
constexpr Token kNoColumn = 0xFFFFFFFF;

template <class Kernel>
LocalEnd by_strips(Tokens a, Tokens b, const Scores& scores, std::size_t lanes, Kernel kernel) {
  const std::size_t rows_at_once = 2 * lanes;
  const std::size_t padded = b.size() + 2 * kLocalPadding;
  std::vector<Token> columns(padded, kNoColumn);
  std::reverse_copy(b.begin(), b.end(), columns.begin() + kLocalPadding);
  std::vector<std::int32_t> score(padded, 0);
  std::vector<std::int32_t> down(padded, -scores.gap_open);
  LocalEnd end;
  for (std::size_t row = 0; row < a.size(); row += rows_at_once) {
    Token rows[2 * kLocalPadding];
    for (std::size_t r = 0; r < rows_at_once; ++r)
      rows[r] = row + r < a.size() ? a[row + r] : kNoRow;
    const LocalBest best = kernel(
        LocalStrips{rows, columns.data() + kLocalPadding, static_cast<std::int64_t>(b.size()),
                    score.data() + kLocalPadding, down.data() + kLocalPadding, scores, end.score});
    if (best.score > 0)
      end = {best.score, row + static_cast<std::size_t>(best.row),
             static_cast<std::size_t>(best.column)};
  }
  return end;
}

}  // namespace

LocalEnd local_end_scalar(Tokens a, Tokens b, const Scores& s) {
  std::vector<std::int32_t> score(b.size() + 1, 0);
  std::vector<std::int32_t> down(b.size() + 1, -s.gap_open);
  LocalEnd end;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::int32_t diagonal = 0;
    std::int32_t right = -s.gap_open;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::int32_t gained = a[i] == b[j] ? s.match : -s.mismatch;
      const std::int32_t here = std::max({0, diagonal + gained, right, down[j + 1]});
      diagonal = score[j + 1];
      score[j + 1] = here;
      right = std::max(right - s.gap_extend, here - s.gap_open);
      down[j + 1] = std::max(down[j + 1] - s.gap_extend, here - s.gap_open);
      if (here > end.score) end = {here, i, j};
    }
  }
  return end;
}

LocalEnd local_end(Tokens a, Tokens b, const Scores& scores, Simd level) {
  if (a.empty() || b.empty()) return {};
#if defined(__x86_64__)
  if (level == Simd::avx2) return by_strips(a, b, scores, 8, local_strips_avx2);
  if (level == Simd::sse41) return by_strips(a, b, scores, 4, local_strips_sse41);
#endif
  return local_end_scalar(a, b, scores);
}

}  // namespace heddle::diff
