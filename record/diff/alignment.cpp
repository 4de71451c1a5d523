// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <vector>

#include "record/diff/kernels.hpp"

namespace heddle::diff {

Simd best_simd() {
#if defined(__x86_64__)
  // Also checks that the OS saves the registers (xgetbv; GCC manual, "x86 Built-in Functions").
  static const Simd best = __builtin_cpu_supports("avx2") ? Simd::avx2 : Simd::portable;
  return best;
#else
  return Simd::portable;
#endif
}

std::vector<Simd> simd_levels() {
  if (best_simd() == Simd::portable) return {Simd::portable};
  return {Simd::portable, Simd::avx2};
}

std::string_view simd_name(Simd level) { return level == Simd::avx2 ? "AVX2" : "portable"; }

const Kernels& kernels_of(Simd level) {
#if defined(__x86_64__)
  if (level == Simd::avx2) return kAvx2Kernels;
#endif
  return kPortableKernels;
}

namespace {

/// Computes strips of a table whose tokens are all below `alphabet`.
class Strips {
 public:
  Strips(std::uint32_t alphabet, Simd level)
      : slot_of_(alphabet), rows_with_((kStripRows + 1) * kBlocks), kernels_(kernels_of(level)) {}

  /// One strip of at most kStripRows rows; `delta` as in BitStrip. Left of the first column, D
  /// grows by one a row.
  void run(Tokens rows, Tokens columns, std::int8_t* delta) {
    std::uint16_t slots = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      std::uint16_t& slot = slot_of_[rows[r]];
      if (slot == 0) slot = ++slots;
      rows_with_[slot * kBlocks + r / 64] |= std::uint64_t{1} << r % 64;
    }
    columns_.assign(columns.size() + 2 * (kBlocks - 1), 0);
    for (std::size_t j = 0; j < columns.size(); ++j)
      columns_[j + kBlocks - 1] = slot_of_[columns[j]];
    kernels_.bit_strip({columns_.data() + kBlocks - 1, static_cast<std::int64_t>(columns.size()),
                        rows_with_.data(), delta, static_cast<int>(rows.size()) - 1});
    for (const Token t : rows) slot_of_[t] = 0;
    std::fill_n(rows_with_.begin(), (slots + 1U) * kBlocks, 0);
  }

  /// The last row of the table of a (rows) against b (columns): D(n, j) for j = 0 .. m. With
  /// `backward` both are read from their ends.
  std::vector<std::uint32_t> last_row(Tokens a, Tokens b, bool backward) {
    std::vector<Token> rows(a.begin(), a.end());
    std::vector<Token> columns(b.begin(), b.end());
    if (backward) {
      std::reverse(rows.begin(), rows.end());
      std::reverse(columns.begin(), columns.end());
    }
    std::vector<std::int8_t> delta(b.size(), 1);  // row 0: D(0, j) = j
    for (std::size_t done = 0; done < rows.size(); done += kStripRows)
      run(Tokens(rows).subspan(done, std::min(kStripRows, rows.size() - done)), columns,
          delta.data());
    std::vector<std::uint32_t> row(b.size() + 1);
    row[0] = static_cast<std::uint32_t>(rows.size());
    for (std::size_t j = 0; j < b.size(); ++j)
      row[j + 1] = row[j] + static_cast<std::uint32_t>(static_cast<std::int32_t>(delta[j]));
    return row;
  }

 private:
  std::vector<std::uint16_t> slot_of_;  ///< of each token of the strip; 0: it is not there
  std::vector<std::uint64_t> rows_with_;
  std::vector<std::uint16_t> columns_;
  const Kernels& kernels_;
};

/// A row of the table within a band: D(row, begin), and the differences to its right.
struct BandRow {
  std::size_t row, begin;
  std::int64_t first;
  std::vector<std::int8_t> delta;
};

/// The limits of a pass over a band.
struct Band {
  std::int64_t limit;                    ///< a greater distance is not computed
  std::size_t width;                     ///< in columns; where it cuts, the result may be too great
  std::vector<BandRow>* rows;            ///< gets some rows, for trace_back(); may be null
  std::function<void(double)> progress;  ///< called with the share of rows done; may be empty
};

/// The distance, computed in a band of the table (Ukkonen 1985); nullopt: it is above band.limit.
///
/// A cell of a shortest path has D + (difference of the rests' lengths) <= limit. D never falls
/// along a diagonal, so a diagonal without such a cell in one row has none below: the band of the
/// next strip lies between the outermost such cells of this one's last row. Cells outside are
/// replaced by paths along the band's edge, so no value is below D, and on shortest paths it is D.
std::optional<std::uint32_t> cross_band(Tokens a, Tokens b, Strips& strips, const Band& band) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // of band.rows
  const auto n = static_cast<std::int64_t>(a.size()), m = static_cast<std::int64_t>(b.size());
  if (std::abs(n - m) > band.limit) return std::nullopt;
  std::vector<std::int8_t> delta(b.size(), 1);
  std::int8_t* const d = delta.data();
  std::int64_t lo = 0, hi = std::min(m, (band.limit + m - n) / 2);
  std::int64_t first = 0;  // D(row, lo)
  const std::size_t stride =
      a.size() / kStripRows * std::min(b.size(), band.width) / kMostBytes + 1;
  for (std::int64_t row = 0, strip = 1;; ++strip) {
    const std::int64_t size = std::min(std::int64_t{kStripRows}, n - row);
    const std::int64_t end = std::min(m, hi + size);
    std::fill(d + hi, d + end, std::int8_t{1});
    strips.run({a.data() + row, a.data() + row + size}, {b.data() + lo, b.data() + end}, d + lo);
    row += size, first += size, hi = end;
    std::int64_t last = std::accumulate(d + lo, d + hi, first);  // D(row, hi)
    const auto is_outside = [&](std::int64_t column, std::int64_t value) {
      return value + std::abs((m - column) - (n - row)) > band.limit;
    };
    for (; is_outside(lo, first); first += d[lo++])
      if (lo == hi) return std::nullopt;
    for (; is_outside(hi, last); last -= d[--hi]) {
    }
    if (row == n) return static_cast<std::uint32_t>(last + m - hi);
    if (const auto width = static_cast<std::int64_t>(std::min(band.width, b.size()));
        hi - lo > width) {
      std::int64_t best = lo, least = first, value = first;
      for (std::int64_t at = lo; at < hi; ++at)
        if ((value += d[at]) <= least) best = at + 1, least = value;
      const std::int64_t from = std::clamp(best - width / 2, lo, hi - width);
      first = std::accumulate(d + lo, d + from, first);
      lo = from, hi = from + width;
    }
    if (band.rows != nullptr && strip % static_cast<std::int64_t>(stride) == 0)
      band.rows->push_back(
          {static_cast<std::size_t>(row), static_cast<std::size_t>(lo), first, {d + lo, d + hi}});
    if (band.progress) band.progress(static_cast<double>(row) / static_cast<double>(n));
  }
}

/// A cell of the table, and the distance from the stop before it.
struct Stop {
  std::size_t a, b;
  std::int64_t distance;
};

/// The cells in which a path of at most `distance` edits crosses `rows`, and its end, last first.
std::vector<Stop> trace_back(Tokens a, Tokens b, Strips& strips, const std::vector<BandRow>& rows,
                             std::int64_t distance) {
  std::vector<Stop> stops{{a.size(), b.size(), distance}};
  for (auto at = rows.rbegin(); at != rows.rend(); ++at) {
    const Tokens part = a.subspan(at->row);
    const std::size_t end = std::min(b.size(), at->begin + at->delta.size());
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    Stop stop{at->row, 0, 0};
    // As a rule the path is near the diagonal: more columns are looked at only if it is not.
    for (std::size_t reach = part.size() + kStripRows;; reach *= 2) {
      const std::size_t begin = std::clamp(b.size() - std::min(b.size(), reach), at->begin, end);
      const auto rest = strips.last_row(part, b.subspan(begin), true);
      std::int64_t value = at->first;
      for (std::size_t j = at->begin; j <= end; ++j) {
        if (j > at->begin) value += at->delta[j - 1 - at->begin];
        if (j < begin || value + rest[b.size() - j] >= least) continue;
        least = value + rest[b.size() - j];
        stop = {at->row, j, value};
      }
      if (least <= distance || begin == at->begin) break;
    }
    stops.back().distance = least - stop.distance;
    stops.push_back(stop);
    a = a.first(stop.a), b = b.first(stop.b);
    distance = stop.distance;
  }
  return stops;
}

/// A way through a table.
struct Crossing {
  std::uint32_t distance = 0;
  bool exact = true;
  std::vector<BandRow> rows;
};

/// The distance, which is at least `at_least`, or an upper bound if it is above effort.most; with
/// `traced`, rows for trace_back().
Crossing cross_table(Tokens a, Tokens b, std::uint32_t at_least, Strips& strips,
                     const Effort& effort, bool traced) {
  // A narrow band gives an upper bound, as a rule a close one. Where it lost the path (at a long
  // insertion, say), a fraction of it may do; a pass with too small a limit ends early.
  constexpr std::size_t kNarrow = 4096;
  Crossing bound;
  const auto longest = static_cast<std::int64_t>(a.size() + b.size());
  bound.distance =
      *cross_band(a, b, strips, {longest, kNarrow, traced ? &bound.rows : nullptr, {}});
  bound.exact = bound.distance == at_least || bound.distance - 1 <= effort.most;
  if (bound.distance == at_least) return bound;
  const std::uint32_t most = std::min(bound.distance - 1, effort.most);
  double done = 0;
  for (const auto& [part, share] : {std::pair{16U, 0.02}, {4U, 0.1}, {1U, 1.0}}) {
    const std::uint32_t limit = part == 1 ? most : std::min(most, bound.distance / part);
    if (limit < at_least || (part > 1 && limit == most)) continue;
    Crossing found;
    const auto progress = [&](double rows) { effort.progress(done + (share - done) * rows); };
    const auto distance =
        cross_band(a, b, strips,
                   {limit, ~std::size_t{0}, traced ? &found.rows : nullptr,
                    effort.progress ? std::function<void(double)>(progress) : nullptr});
    if (distance) {
      found.distance = *distance;
      return found;
    }
    done = share;
  }
  return bound;
}

/// Tables with more cells are crossed in a band.
constexpr std::size_t kTableCells = std::size_t{1} << 24;

/// The front from one end: cells for diagonals center - reach .. center + reach.
class Front {
 public:
  using Kernel = void(const FrontStep&);
  /// Diagonals outside [lowest, highest] have no cells.
  Front(std::int32_t center, std::int32_t lowest, std::int32_t highest, std::int32_t reach)
      : center_(center),
        lowest_(lowest),
        highest_(highest),
        shift_(reach + 2 - center),
        old_(static_cast<std::size_t>(2 * reach + 5), kUnreached),
        now_(old_) {}

  std::int32_t lo() const { return std::max(center_ - edits_, lowest_); }
  std::int32_t hi() const { return std::min(center_ + edits_, highest_); }
  const std::int32_t* cells() const { return now_.data() + shift_; }

  /// Computes the cell of 0 edits, on the center diagonal.
  void start(FrontStep step, Kernel* kernel) {
    // -1 plus an edit is the start of the diagonal: the kernel then only slides.
    old_[static_cast<std::size_t>(center_ + shift_)] = -1;
    run(step, kernel);
    old_[static_cast<std::size_t>(center_ + shift_)] = kUnreached;
  }
  void advance(FrontStep step, Kernel* kernel) {
    ++edits_;
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
  std::int32_t center_, lowest_, highest_;
  std::int32_t edits_ = 0;
  std::int32_t shift_;
  std::vector<std::int32_t> old_, now_;
};

}  // namespace

std::optional<Cut> cut_by_diagonals(Tokens a, Tokens b, std::uint32_t limit, Simd level) {
  const auto n = static_cast<std::int32_t>(a.size());
  const auto m = static_cast<std::int32_t>(b.size());
  const Kernels& kernels = kernels_of(level);
  const auto reach =
      static_cast<std::int32_t>(std::min<std::size_t>(limit / 2 + 1, a.size() + b.size()));
  Front forward(0, -n, m, reach);
  Front backward(m - n, -n, m, reach);
  const FrontStep forward_step{a.data(), b.data(), n, m, 0, 0, nullptr, nullptr};
  const FrontStep backward_step{a.data() + n, b.data() + m, n, m, 0, 0, nullptr, nullptr};
  forward.start(forward_step, kernels.step_forward);
  backward.start(backward_step, kernels.step_backward);
  for (std::uint32_t edits = 0;; ++edits) {
    const std::int32_t lo = std::max(forward.lo(), backward.lo());
    const std::int32_t hi = std::min(forward.hi(), backward.hi());
    const std::int32_t k = kernels.find_meeting(forward.cells(), backward.cells(), lo, hi, n);
    if (lo <= hi && k <= hi) {
      const auto i = static_cast<std::uint32_t>(forward.cells()[k]);
      return Cut{edits, forward.edits(), i, static_cast<std::uint32_t>(forward.cells()[k] + k)};
    }
    if (edits == limit) return std::nullopt;
    if (edits % 2 == 0) {
      forward.advance(forward_step, kernels.step_forward);
    } else {
      backward.advance(backward_step, kernels.step_backward);
    }
  }
}

namespace {

/// The number of edits up to which diagonals are faster than bit vectors (measured: 1.3 ns for each
/// of d^2 / 2 cells of the fronts, 0.02 ns for each of n d / 2 cells of a band).
std::uint32_t diagonal_limit(std::size_t n, std::size_t m) {
  return static_cast<std::uint32_t>(
      std::sqrt(static_cast<double>(n) * static_cast<double>(m)) / 64 + 64);
}

/// A lower bound of the distance: each occurrence that one sequence has more than the other costs
/// an edit.
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

/// Cuts both sequences on a shortest path, recursively, until the rest is trivial.
class Scripter {
 public:
  Scripter(Tokens a, Tokens b, const Effort& effort, Simd level)
      : a0_(a.data()),
        b0_(b.data()),
        alphabet_(alphabet_of(a, b)),
        effort_(effort),
        level_(level),
        strips_(alphabet_, level) {}

  /// `distance`: nullopt when it is not known yet.
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
    } else if (a.size() == 1 && b.size() == 1) {
      put(EditKind::replaced, a, b, 1);
    } else {
      cut(a, b, distance);
    }
    put(EditKind::same, end_a, end_b, tail);
  }
  Script take() { return std::move(script_); }

 private:
  void cut(Tokens a, Tokens b, std::optional<std::uint32_t> distance) {
    const std::uint32_t at_least = distance ? *distance : least_edits(a, b, alphabet_);
    const std::uint32_t limit = diagonal_limit(a.size(), b.size());
    const auto cut = at_least <= limit ? cut_by_diagonals(a, b, distance.value_or(limit), level_)
                                       : std::optional<Cut>{};
    if (!cut)
      return !distance && a.size() * b.size() > kTableCells ? cut_by_band(a, b, at_least)
                                                            : cut_by_rows(a, b);
    solve(a.first(cut->a), b.first(cut->b), cut->before);
    solve(a.subspan(cut->a), b.subspan(cut->b), cut->distance - cut->before);
  }
  void cut_by_band(Tokens a, Tokens b, std::uint32_t at_least) {
    const Crossing crossing = cross_table(a, b, at_least, strips_, effort_, true);
    script_.exact = crossing.exact;
    const auto stops = trace_back(a, b, strips_, crossing.rows, crossing.distance);
    std::size_t i = 0, j = 0;
    for (auto stop = stops.rbegin(); stop != stops.rend(); ++stop) {
      solve(a.subspan(i, stop->a - i), b.subspan(j, stop->b - j),
            static_cast<std::uint32_t>(stop->distance));
      i = stop->a, j = stop->b;
    }
  }
  /// Hirschberg's cut: at the middle row of the longer sequence.
  void cut_by_rows(Tokens a, Tokens b) {
    const bool turned = a.size() < b.size();
    const Tokens rows = turned ? b : a;
    const Tokens columns = turned ? a : b;
    const std::size_t half = rows.size() / 2;
    const auto upper = strips_.last_row(rows.first(half), columns, false);
    const auto lower = strips_.last_row(rows.subspan(half), columns, true);
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
    if (!script_.runs.empty() && script_.runs.back().kind == kind) {
      script_.runs.back().length += static_cast<std::uint32_t>(length);
      return;
    }
    script_.runs.push_back({kind, static_cast<std::uint32_t>(a.data() - a0_),
                            static_cast<std::uint32_t>(b.data() - b0_),
                            static_cast<std::uint32_t>(length)});
  }
  const Token* a0_;
  const Token* b0_;
  std::uint32_t alphabet_;
  const Effort& effort_;
  Simd level_;
  Strips strips_;
  Script script_;
};

/// Never longer than the longer sequence, as one of many deletions and insertions may be.
std::vector<EditRun> script_by_position(Tokens a, Tokens b) {
  std::vector<EditRun> out;
  const auto common = std::min(a.size(), b.size());
  for (std::uint32_t at = 0; at < common; ++at) {
    const auto kind = a[at] == b[at] ? EditKind::same : EditKind::replaced;
    if (out.empty() || out.back().kind != kind) out.push_back({kind, at, at, 0});
    ++out.back().length;
  }
  const auto end = static_cast<std::uint32_t>(common);
  if (a.size() > common)
    out.push_back({EditKind::deleted, end, end, static_cast<std::uint32_t>(a.size() - common)});
  if (b.size() > common)
    out.push_back({EditKind::inserted, end, end, static_cast<std::uint32_t>(b.size() - common)});
  return out;
}

}  // namespace

std::uint32_t edit_distance(Tokens a, Tokens b, Simd level) {
  const std::size_t head = common_prefix(a, b);
  a = a.subspan(head), b = b.subspan(head);
  const std::size_t tail = common_suffix(a, b);
  a = a.first(a.size() - tail), b = b.first(b.size() - tail);
  if (a.empty() || b.empty()) return static_cast<std::uint32_t>(a.size() + b.size());
  const std::uint32_t alphabet = alphabet_of(a, b);
  const std::uint32_t limit = diagonal_limit(a.size(), b.size());
  const std::uint32_t least = least_edits(a, b, alphabet);
  if (least <= limit)
    if (const auto cut = cut_by_diagonals(a, b, limit, level)) return cut->distance;
  Strips strips(alphabet, level);
  if (a.size() * b.size() > kTableCells)
    return cross_table(a, b, least, strips, {}, false).distance;
  return strips.last_row(a, b, false).back();
}

Script edit_script(Tokens a, Tokens b, const Effort& effort, Simd level) {
  Scripter scripter(a, b, effort, level);
  scripter.solve(a, b, std::nullopt);
  auto out = scripter.take();
  std::size_t edits = 0;
  for (const auto& run : out.runs)
    if (run.kind != EditKind::same) edits += run.length;
  if (edits > std::max(a.size(), b.size())) out.runs = script_by_position(a, b);
  return out;
}

namespace {

// Tokens that match nothing, not even one another. Real tokens are dense and far below.
constexpr Token kNoRow = 0xFFFFFFFE;
constexpr Token kNoColumn = 0xFFFFFFFF;

/// The best alignment of `a` (which starts at `offset` in the whole) with `b`.
LocalAlignment best_alignment(Tokens a, Tokens b, std::size_t offset, const Scores& scores,
                              Simd level) {
  const LocalEnd end = local_end(a, b, scores, level);
  if (end.score <= 0) return {};
  // No alignment of this score ends before this cell: in the part up to it each of them ends in it.
  // The first end of the reversed part is therefore a start that belongs to this end.
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
  found.script = edit_script(part_a, part_b, {}, level).runs;
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
  // The unused parts of `a`, each with its best alignment, the best on top.
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
