// SPDX-License-Identifier: MIT
#include "record/diff/smith_waterman.hpp"

#include <algorithm>
#include <queue>

namespace heddle::diff {
namespace {

/// Global alignment of two stretches by Gotoh's three tables, their directions kept: only for what
/// local_end() has found, within kPathCells.
class PathTable {
 public:
  PathTable(Tokens a, Tokens b, const Scores& s) : a_(a), b_(b), width_(b.size() + 1) {
    came_.resize((a.size() + 1) * width_);
    constexpr std::int32_t kNever = -(1 << 30);
    std::vector<std::int32_t> score(width_), down(width_, kNever);
    for (std::size_t j = 1; j < width_; ++j) {
      score[j] = -s.gap_open - static_cast<std::int32_t>(j - 1) * s.gap_extend;
      came_[j] = kByRight | (j > 1 ? kRightOn : 0);
    }
    for (std::size_t i = 1; i <= a.size(); ++i) {
      std::int32_t diagonal = score[0];
      std::int32_t right = kNever;
      score[0] = -s.gap_open - static_cast<std::int32_t>(i - 1) * s.gap_extend;
      down[0] = score[0];
      came_[i * width_] = kByDown | (i > 1 ? kDownOn : 0);
      for (std::size_t j = 1; j < width_; ++j) {
        std::uint8_t& came = came_[i * width_ + j];
        if (right - s.gap_extend >= score[j - 1] - s.gap_open) came |= kRightOn;
        right = std::max(right - s.gap_extend, score[j - 1] - s.gap_open);
        if (down[j] - s.gap_extend >= score[j] - s.gap_open) came |= kDownOn;
        down[j] = std::max(down[j] - s.gap_extend, score[j] - s.gap_open);
        const std::int32_t met = diagonal + (a[i - 1] == b[j - 1] ? s.match : -s.mismatch);
        diagonal = score[j];
        score[j] = std::max({met, right, down[j]});
        if (score[j] != met) came |= score[j] == right ? kByRight : kByDown;
      }
    }
  }

  std::vector<EditRun> path(std::size_t a0, std::size_t b0) const {
    std::vector<EditRun> runs;  // last step first
    const auto put = [&](EditKind kind, std::size_t i, std::size_t j) {
      const auto a = static_cast<std::uint32_t>(a0 + i);
      const auto b = static_cast<std::uint32_t>(b0 + j);
      const std::uint32_t length =
          !runs.empty() && runs.back().kind == kind ? runs.back().length + 1 : 1;
      if (length > 1) runs.pop_back();
      runs.push_back({kind, a, b, length});
    };
    std::size_t i = a_.size(), j = b_.size();
    int in_gap = 0;
    while (i > 0 || j > 0) {
      const std::uint8_t came = came_[i * width_ + j];
      const int by = in_gap != 0 ? in_gap : came & (kByRight | kByDown);
      if (by == kByRight) {
        in_gap = came & kRightOn ? kByRight : 0;
        put(EditKind::inserted, i, --j);
      } else if (by == kByDown) {
        in_gap = came & kDownOn ? kByDown : 0;
        put(EditKind::deleted, --i, j);
      } else {
        --i, --j;
        put(a_[i] == b_[j] ? EditKind::same : EditKind::replaced, i, j);
      }
    }
    std::reverse(runs.begin(), runs.end());
    return runs;
  }

 private:
  static constexpr std::uint8_t kByRight = 1, kByDown = 2;  // how the cell's best got here
  static constexpr std::uint8_t kRightOn = 4, kDownOn = 8;  // the gap into it was open before
  Tokens a_, b_;
  std::size_t width_;
  std::vector<std::uint8_t> came_;
};

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
  if ((part_a.size() + 1) * (part_b.size() + 1) <= kPathCells)
    found.path = PathTable(part_a, part_b, scores).path(found.a_begin + offset, found.b_begin);
  found.a_begin += offset, found.a_end += offset;
  return found;
}

}  // namespace

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
