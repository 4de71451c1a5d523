// SPDX-License-Identifier: MIT
#include "record/diff/levenshtein.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "record/diff/bit_rows.hpp"
#include "record/diff/diagonal_front.hpp"
#include "record/diff/small_table.hpp"

namespace heddle::diff {
namespace {

/// Up to this many edits the diagonals are tried before the bit vectors: where both cost the same
/// (measured: 1.3 ns for a cell of a front, of which there are d^2 / 2; 0.07 ns for each of n m
/// cells).
std::uint32_t diagonal_limit(std::size_t n, std::size_t m) {
  return static_cast<std::uint32_t>(
      std::sqrt(static_cast<double>(n) * static_cast<double>(m)) * 0.25 + 64);
}

/// Tokens that occur more often in one sequence than in the other must go by an edit each: never
/// more than the distance, and soon counted.
std::uint32_t least_edits(Tokens a, Tokens b, std::uint32_t alphabet) {
  std::vector<std::int32_t> surplus(alphabet);
  for (const Token t : a) ++surplus[t];
  for (const Token t : b) --surplus[t];
  std::int64_t more = 0;
  std::int64_t less = 0;
  for (const std::int32_t s : surplus) (s > 0 ? more : less) += s;
  return static_cast<std::uint32_t>(std::max(more, -less));
}

/// Tokens renumbered to be dense: tables by token then have at most n + m rows.
class Dense {
 public:
  Dense(Tokens a, Tokens b) : a_(a), b_(b) {
    Token top = 0;
    for (const Tokens side : {a, b})
      for (const Token t : side) top = std::max(top, t);
    alphabet_ = top + 1;
    if (top < 4 * (a.size() + b.size()) + 1024) return;
    std::vector<Token> values(a.begin(), a.end());
    values.insert(values.end(), b.begin(), b.end());
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    const auto rank = [&](Token t) {
      return static_cast<Token>(std::lower_bound(values.begin(), values.end(), t) - values.begin());
    };
    for (const Token t : a) own_a_.push_back(rank(t));
    for (const Token t : b) own_b_.push_back(rank(t));
    a_ = own_a_;
    b_ = own_b_;
    alphabet_ = static_cast<std::uint32_t>(values.size());
  }
  Tokens a() const { return a_; }
  Tokens b() const { return b_; }
  std::uint32_t alphabet() const { return alphabet_; }

 private:
  Tokens a_, b_;
  std::vector<Token> own_a_, own_b_;
  std::uint32_t alphabet_ = 0;
};

std::size_t common_prefix(Tokens a, Tokens b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                  a.begin());
}
std::size_t common_suffix(Tokens a, Tokens b) {
  return static_cast<std::size_t>(std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first -
                                  a.rbegin());
}

/// Cuts pairs of sequences on a shortest path until what is left is plain to see.
class Scripter {
 public:
  Scripter(Tokens a, Tokens b, std::uint32_t alphabet, Simd level)
      : a0_(a.data()), b0_(b.data()), alphabet_(alphabet), level_(level) {}

  /// `distance`: what it is, where a cut has told it.
  void solve(Tokens a, Tokens b, std::optional<std::uint32_t> distance) {
    const std::size_t head = common_prefix(a, b);
    put(EditKind::same, a, b, head);
    a = a.subspan(head), b = b.subspan(head);
    const std::size_t tail = common_suffix(a, b);
    const Tokens end_a = a.last(tail), end_b = b.last(tail);
    a = a.first(a.size() - tail), b = b.first(b.size() - tail);
    if (a.empty() || b.empty()) {
      put(EditKind::deleted, a, b, a.size());
      put(EditKind::inserted, a, b, b.size());
    } else if (a.size() * b.size() <= kSmallTable) {
      solve_small_table(a, b, [&](EditKind kind, std::size_t i, std::size_t j) {
        put(kind, a.subspan(i), b.subspan(j), 1);
      });
    } else {
      cut(a, b, distance ? *distance : least_edits(a, b, alphabet_));
    }
    put(EditKind::same, end_a, end_b, tail);
  }
  std::vector<EditRun> take() { return std::move(script_); }

 private:
  static constexpr std::size_t kSmallTable = 1024;

  void cut(Tokens a, Tokens b, std::uint32_t at_least) {
    const std::uint32_t limit = diagonal_limit(a.size(), b.size());
    const auto cut =
        at_least <= limit ? cut_by_diagonals(a, b, limit, level_) : std::optional<Cut>{};
    if (!cut) return cut_by_rows(a, b);
    solve(a.first(cut->a), b.first(cut->b), cut->before);
    solve(a.subspan(cut->a), b.subspan(cut->b), cut->distance - cut->before);
  }
  /// Hirschberg's cut: the middle row of the longer one, seen from both sides.
  void cut_by_rows(Tokens a, Tokens b) {
    const bool turned = a.size() < b.size();
    const Tokens rows = turned ? b : a;
    const Tokens columns = turned ? a : b;
    const std::size_t half = rows.size() / 2;
    const auto upper = last_row(rows.first(half), columns, alphabet_, false, level_);
    const auto lower = last_row(rows.subspan(half), columns, alphabet_, true, level_);
    const std::size_t m = columns.size();
    std::size_t best = 0;
    for (std::size_t j = 0; j <= m; ++j)
      if (upper[j] + lower[m - j] < upper[best] + lower[m - best]) best = j;
    const std::size_t i = turned ? best : half;
    const std::size_t j = turned ? half : best;
    solve(a.first(i), b.first(j), upper[best]);
    solve(a.subspan(i), b.subspan(j), lower[m - best]);
  }
  void put(EditKind kind, Tokens a, Tokens b, std::size_t length) {
    if (length == 0) return;
    if (!script_.empty() && script_.back().kind == kind) {
      script_.back().length += static_cast<std::uint32_t>(length);
      return;
    }
    script_.push_back({kind, static_cast<std::uint32_t>(a.data() - a0_),
                       static_cast<std::uint32_t>(b.data() - b0_),
                       static_cast<std::uint32_t>(length)});
  }
  const Token* a0_;
  const Token* b0_;
  std::uint32_t alphabet_;
  Simd level_;
  std::vector<EditRun> script_;
};

}  // namespace

std::uint32_t edit_distance(Tokens a, Tokens b, Simd level) {
  const std::size_t head = common_prefix(a, b);
  a = a.subspan(head), b = b.subspan(head);
  const std::size_t tail = common_suffix(a, b);
  a = a.first(a.size() - tail), b = b.first(b.size() - tail);
  if (a.empty() || b.empty()) return static_cast<std::uint32_t>(a.size() + b.size());
  const Dense dense(a, b);
  const std::uint32_t limit = diagonal_limit(a.size(), b.size());
  if (least_edits(dense.a(), dense.b(), dense.alphabet()) <= limit)
    if (const auto cut = cut_by_diagonals(dense.a(), dense.b(), limit, level)) return cut->distance;
  return last_row(dense.a(), dense.b(), dense.alphabet(), false, level).back();
}

std::vector<EditRun> edit_script(Tokens a, Tokens b, Simd level) {
  const Dense dense(a, b);
  Scripter scripter(dense.a(), dense.b(), dense.alphabet(), level);
  scripter.solve(dense.a(), dense.b(), std::nullopt);
  return scripter.take();
}

std::uint32_t count_edits(const std::vector<EditRun>& script) {
  return std::accumulate(script.begin(), script.end(), 0U, [](std::uint32_t n, const EditRun& run) {
    return run.kind == EditKind::same ? n : n + run.length;
  });
}

}  // namespace heddle::diff
