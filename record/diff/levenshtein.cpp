// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "record/diff/kernels.hpp"

namespace heddle::diff {

Simd best_simd() {
#if defined(__x86_64__)
  // GCC manual, "x86 Built-in Functions": this also asks the OS for the registers' state (xgetbv).
  static const Simd best = __builtin_cpu_supports("avx2") ? Simd::avx2 : Simd::scalar;
  return best;
#else
  return Simd::scalar;
#endif
}

std::vector<Simd> simd_levels() {
  if (best_simd() == Simd::scalar) return {Simd::scalar};
  return {Simd::scalar, Simd::avx2};
}

std::string_view simd_name(Simd level) { return level == Simd::avx2 ? "AVX2" : "scalar"; }

namespace {

constexpr std::size_t kBlock = 64;
constexpr std::size_t kLanes = 4;

/// Bits of up to `lanes` blocks of rows, by token; cleared by what it set, not by its size.
class RowTable {
 public:
  RowTable(std::uint32_t alphabet, std::size_t lanes) : lanes_(lanes), bits_(alphabet * lanes) {}
  void set(Tokens rows) {
    for (std::size_t r = 0; r < rows.size(); ++r)
      bits_[rows[r] * lanes_ + r / kBlock] |= std::uint64_t{1} << r % kBlock;
  }
  void clear(Tokens rows) {
    for (std::size_t r = 0; r < rows.size(); ++r) bits_[rows[r] * lanes_ + r / kBlock] = 0;
  }
  const std::uint64_t* bits() const { return bits_.data(); }

 private:
  std::size_t lanes_;
  std::vector<std::uint64_t> bits_;
};

/// One block of up to 64 rows; `last` is its last row's bit. One lane.
void bit_block(const BitStrip& s, int last) {
  std::uint64_t plus = ~std::uint64_t{0};  // rows one above their upper neighbour
  std::uint64_t minus = 0;                 // rows one below it
  for (std::int64_t j = 0; j < s.m; ++j) {
    const int in = s.delta[j];
    const std::uint64_t in_minus = in < 0;
    const std::uint64_t in_plus = in > 0;
    std::uint64_t eq = s.rows_with[s.columns[j]];
    const std::uint64_t vertical = eq | minus;
    eq |= in_minus;
    const std::uint64_t diagonal = (((eq & plus) + plus) ^ plus) | eq;
    std::uint64_t h_plus = minus | ~(diagonal | plus);
    std::uint64_t h_minus = plus & diagonal;
    s.delta[j] = static_cast<std::int8_t>(static_cast<int>(h_plus >> last & 1) -
                                          static_cast<int>(h_minus >> last & 1));
    h_plus = h_plus << 1 | in_plus;
    h_minus = h_minus << 1 | in_minus;
    plus = h_minus | ~(vertical | h_plus);
    minus = h_plus & vertical;
  }
}

}  // namespace

std::vector<std::uint32_t> last_row(Tokens a, Tokens b, std::uint32_t alphabet, bool backward,
                                    Simd level) {
  std::vector<Token> rows(a.begin(), a.end());
  std::vector<Token> columns(b.begin(), b.end());
  if (backward) {
    std::reverse(rows.begin(), rows.end());
    std::reverse(columns.begin(), columns.end());
  }
  std::vector<std::int8_t> delta(columns.size(), 1);  // row 0: D(0, j) = j
  BitStrip strip{columns.data(), static_cast<std::int64_t>(columns.size()), nullptr, delta.data()};
  std::size_t done = 0;
#if defined(__x86_64__)
  if (level >= Simd::avx2 && rows.size() >= kLanes * kBlock && columns.size() >= kLanes) {
    RowTable table(alphabet, kLanes);
    strip.rows_with = table.bits();
    for (; done + kLanes * kBlock <= rows.size(); done += kLanes * kBlock) {
      const Tokens part(rows.data() + done, kLanes * kBlock);
      table.set(part);
      bit_strip_avx2(strip);
      table.clear(part);
    }
  }
#endif
  RowTable table(alphabet, 1);
  strip.rows_with = table.bits();
  while (done < rows.size()) {
    const Tokens part(rows.data() + done, std::min(kBlock, rows.size() - done));
    table.set(part);
    bit_block(strip, static_cast<int>(part.size()) - 1);
    table.clear(part);
    done += part.size();
  }
  std::vector<std::uint32_t> row(columns.size() + 1);
  row[0] = static_cast<std::uint32_t>(rows.size());
  for (std::size_t j = 0; j < columns.size(); ++j)
    row[j + 1] = row[j] + static_cast<std::uint32_t>(static_cast<std::int32_t>(delta[j]));
  return row;
}

namespace {

/// One end's front: its cells for diagonals center - reach .. center + reach, grown as needed.
class Front {
 public:
  using Kernel = void(const FrontStep&);
  /// Diagonals are kept within [lowest, highest], where the table has cells at all.
  Front(std::int32_t center, std::int32_t lowest, std::int32_t highest, std::int32_t first_reach)
      : center_(center), lowest_(lowest), highest_(highest) {
    grow(first_reach);
  }

  std::int32_t lo() const { return std::max(center_ - edits_, lowest_); }
  std::int32_t hi() const { return std::min(center_ + edits_, highest_); }
  const std::int32_t* cells() const { return now_.data() + shift_; }

  /// Sets up the cells of 0 edits: only the center diagonal, from its very start.
  void start(FrontStep step, Kernel* kernel) {
    // As if an edit had just been made into (0, 0): the kernel then only slides.
    old_[static_cast<std::size_t>(center_ + shift_)] = -1;
    run(step, kernel);
    old_[static_cast<std::size_t>(center_ + shift_)] = kUnreached;
  }
  void advance(FrontStep step, Kernel* kernel) {
    ++edits_;
    if (edits_ > reach_) grow(reach_ * 2);
    std::swap(old_, now_);
    run(step, kernel);
  }
  std::uint32_t edits() const { return static_cast<std::uint32_t>(edits_); }

 private:
  void run(FrontStep step, Kernel* kernel) {
    step.lo = lo();
    step.hi = hi();
    step.old = old_.data() + shift_;
    step.now = now_.data() + shift_;
    kernel(step);
  }
  void grow(std::int32_t reach) {
    reach = std::max(reach, 16);
    std::vector<std::int32_t> old(static_cast<std::size_t>(2 * reach + 5), kUnreached);
    std::vector<std::int32_t> now = old;
    const std::int32_t shift = reach + 2 - center_;
    if (reach_ > 0)
      for (std::int32_t k = center_ - reach_ - 2; k <= center_ + reach_ + 2; ++k)
        now[static_cast<std::size_t>(k + shift)] = now_[static_cast<std::size_t>(k + shift_)];
    old_ = std::move(old);
    now_ = std::move(now);
    shift_ = shift;
    reach_ = reach;
  }

  std::int32_t center_, lowest_, highest_;
  std::int32_t edits_ = 0;
  std::int32_t reach_ = 0;
  std::int32_t shift_ = 0;
  std::vector<std::int32_t> old_, now_;
};

template <bool backward>
void step_front(const FrontStep& s) {
  for (std::int32_t k = s.lo; k <= s.hi; ++k) {
    // Seen from the other corner, i counts from the end, and diagonal k is m - n - k.
    const std::int32_t stay = s.old[backward ? k + 1 : k - 1];
    const std::int32_t move = s.old[backward ? k - 1 : k + 1];
    const std::int32_t end = std::min(s.n, backward ? s.n + k : s.m - k);
    std::int32_t i = std::min(std::max({s.old[k] + 1, stay, move + 1}), end);
    const Token* a = backward ? s.a - i - 1 : s.a + i;
    const Token* b = backward ? s.b - i - (s.m - s.n - k) - 1 : s.b + i + k;
    for (constexpr int kNext = backward ? -1 : 1; i < end && *a == *b; ++i) a += kNext, b += kNext;
    s.now[k] = i;
  }
}

std::int32_t find_meeting_scalar(const std::int32_t* f, const std::int32_t* g, std::int32_t lo,
                                 std::int32_t hi, std::int32_t n) {
  while (lo <= hi && f[lo] + g[lo] < n) ++lo;
  return lo;
}

}  // namespace

std::optional<Cut> cut_by_diagonals(Tokens a, Tokens b, std::uint32_t limit, Simd level) {
  const auto n = static_cast<std::int32_t>(a.size());
  const auto m = static_cast<std::int32_t>(b.size());
  auto* forward_kernel = step_front<false>;
  auto* backward_kernel = step_front<true>;
  auto* find_meeting = find_meeting_scalar;
#if defined(__x86_64__)
  if (level >= Simd::avx2) {
    forward_kernel = step_forward_avx2;
    backward_kernel = step_backward_avx2;
    find_meeting = find_meeting_avx2;
  }
#endif
  const auto first_reach = static_cast<std::int32_t>(std::min(limit / 2 + 1, 1024U));
  Front forward(0, -n, m, first_reach);
  Front backward(m - n, -n, m, first_reach);
  const FrontStep forward_step{a.data(), b.data(), n, m, 0, 0, nullptr, nullptr};
  const FrontStep backward_step{a.data() + n, b.data() + m, n, m, 0, 0, nullptr, nullptr};
  forward.start(forward_step, forward_kernel);
  backward.start(backward_step, backward_kernel);
  for (std::uint32_t edits = 0;; ++edits) {
    const std::int32_t lo = std::max(forward.lo(), backward.lo());
    const std::int32_t hi = std::min(forward.hi(), backward.hi());
    const std::int32_t k = find_meeting(forward.cells(), backward.cells(), lo, hi, n);
    if (lo <= hi && k <= hi) {
      const auto i = static_cast<std::uint32_t>(forward.cells()[k]);
      return Cut{edits, forward.edits(), i, static_cast<std::uint32_t>(forward.cells()[k] + k)};
    }
    if (edits == limit) return std::nullopt;
    if (edits % 2 == 0) {
      forward.advance(forward_step, forward_kernel);
    } else {
      backward.advance(backward_step, backward_kernel);
    }
  }
}

namespace {

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

/// One more than the greatest token.
std::uint32_t alphabet_of(Tokens a, Tokens b) {
  Token top = 0;
  for (const Tokens side : {a, b})
    for (const Token t : side) top = std::max(top, t);
  return top + 1;
}

std::size_t common_prefix(Tokens a, Tokens b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                  a.begin());
}
std::size_t common_suffix(Tokens a, Tokens b) {
  return static_cast<std::size_t>(std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first -
                                  a.rbegin());
}

/// Cuts pairs of sequences on a shortest path until the rest is trivial.
class Scripter {
 public:
  Scripter(Tokens a, Tokens b, Simd level)
      : a0_(a.data()), b0_(b.data()), alphabet_(alphabet_of(a, b)), level_(level) {}

  /// `distance`: nullopt where no cut has found it yet.
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
  const std::uint32_t alphabet = alphabet_of(a, b);
  const std::uint32_t limit = diagonal_limit(a.size(), b.size());
  if (least_edits(a, b, alphabet) <= limit)
    if (const auto cut = cut_by_diagonals(a, b, limit, level)) return cut->distance;
  return last_row(a, b, alphabet, false, level).back();
}

std::vector<EditRun> edit_script(Tokens a, Tokens b, Simd level) {
  Scripter scripter(a, b, level);
  scripter.solve(a, b, std::nullopt);
  return scripter.take();
}

std::uint32_t count_edits(const std::vector<EditRun>& script) {
  return std::accumulate(script.begin(), script.end(), 0U, [](std::uint32_t n, const EditRun& run) {
    return run.kind == EditKind::same ? n : n + run.length;
  });
}

}  // namespace heddle::diff
