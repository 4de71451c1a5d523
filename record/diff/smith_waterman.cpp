// SPDX-License-Identifier: MIT
#include <algorithm>
#include <queue>

#include "record/diff/kernels.hpp"

namespace heddle::diff {

namespace {

// Tokens that match nothing, not even one another. Real ones are dense and far below.
constexpr Token kNoRow = 0xFFFFFFFE;
constexpr Token kNoColumn = 0xFFFFFFFF;

/// The best alignment of `a` (which starts at `offset` in the whole) with `b`.
LocalAlignment best_alignment(Tokens a, Tokens b, std::size_t offset, const Scores& scores,
                              Simd level) {
  const LocalEnd end = local_end(a, b, scores, level);
  if (end.score <= 0) return {};
  // No alignment of this score ends in an earlier row, nor in this row before this column: so in
  // the part up to that cell each of them ends in it, and seen from behind the first to be met
  // gives a start that belongs to this very end.
  std::vector<Token> back_a(a.rend() - static_cast<std::ptrdiff_t>(end.a) - 1, a.rend());
  std::vector<Token> back_b(b.rend() - static_cast<std::ptrdiff_t>(end.b) - 1, b.rend());
  const LocalEnd start = local_end(back_a, back_b, scores, level);
  LocalAlignment found;
  found.score = end.score;
  found.a_begin = end.a - start.a, found.a_end = end.a + 1;
  found.b_begin = end.b - start.b, found.b_end = end.b + 1;
  const Tokens part_a = a.subspan(found.a_begin, start.a + 1);
  const Tokens part_b = b.subspan(found.b_begin, start.b + 1);
  found.a_begin += offset, found.a_end += offset;
  found.script = edit_script(part_a, part_b, level);
  for (EditRun& run : found.script) {
    run.a += static_cast<std::uint32_t>(found.a_begin);
    run.b += static_cast<std::uint32_t>(found.b_begin);
  }
  return found;
}

}  // namespace

LocalEnd local_end(Tokens a, Tokens b, const Scores& scores, Simd level) {
  if (a.empty() || b.empty()) return {};
  constexpr std::size_t kRows = 2 * kLocalLanes;
  const std::size_t padded = b.size() + 2 * kLocalLanes;
  std::vector<Token> columns(padded, kNoColumn);
  std::reverse_copy(b.begin(), b.end(), columns.begin() + kLocalLanes);
  std::vector<std::int32_t> score(padded, 0);
  std::vector<std::int32_t> down(padded, -scores.gap_open);
  LocalEnd end;
  for (std::size_t row = 0; row < a.size(); row += kRows) {
    Token rows[kRows];
    for (std::size_t r = 0; r < kRows; ++r) rows[r] = row + r < a.size() ? a[row + r] : kNoRow;
    const LocalBest best = kernels_of(level).local_strips(
        LocalStrips{rows, columns.data() + kLocalLanes, static_cast<std::int64_t>(b.size()),
                    score.data() + kLocalLanes, down.data() + kLocalLanes, scores, end.score});
    if (best.score > 0)
      end = {best.score, row + static_cast<std::size_t>(best.row),
             static_cast<std::size_t>(best.column)};
  }
  return end;
}

Result<std::vector<LocalAlignment>> best_local_alignments(Tokens a, Tokens b, const Scores& scores,
                                                          std::size_t count, Simd level) {
  if (scores.match <= 0 || scores.mismatch < 0 || scores.gap_open < 0 || scores.gap_extend < 0)
    return fail("scores", "cannot align", "a match must gain and the rest must not");
  const std::int64_t top =
      std::max({scores.match, scores.mismatch, scores.gap_open, scores.gap_extend});
  if (top * static_cast<std::int64_t>(std::max(a.size(), b.size()) + 1) >= (1 << 29))
    return fail("scores", "cannot align", "too great for sequences this long");
  // What is left of `a`, each part with its best alignment, the best part on top.
  struct Part {
    std::size_t begin, end;
    LocalAlignment best;
    bool operator<(const Part& other) const {
      return best.score != other.best.score ? best.score < other.best.score : begin > other.begin;
    }
  };
  std::priority_queue<Part> parts;
  const auto add = [&](std::size_t begin, std::size_t end) {
    if (begin >= end || b.empty()) return;
    LocalAlignment best = best_alignment(a.subspan(begin, end - begin), b, begin, scores, level);
    if (best.score > 0) parts.push({begin, end, std::move(best)});
  };
  std::vector<LocalAlignment> found;
  if (count > 0) add(0, a.size());
  while (!parts.empty()) {
    const Part part = parts.top();
    parts.pop();
    found.push_back(part.best);
    if (found.size() == count) break;
    add(part.begin, part.best.a_begin);
    add(part.best.a_end, part.end);
  }
  return found;
}

}  // namespace heddle::diff
