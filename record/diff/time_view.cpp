// SPDX-License-Identifier: MIT
#include "record/diff/time_view.hpp"

#include <algorithm>
#include <unordered_map>

namespace heddle::diff {
namespace {

constexpr std::int64_t kNoise = 1'000'000;

std::int64_t later(const Sequence& a, std::size_t i, const Sequence& b, std::size_t j) {
  return static_cast<std::int64_t>(b.ns[j]) - static_cast<std::int64_t>(a.ns[i]);
}

template <class Size>
void keep_greatest(std::vector<Shift>& shifts, std::size_t count, Size size) {
  const std::size_t kept = std::min(count, shifts.size());
  std::partial_sort(shifts.begin(), shifts.begin() + static_cast<std::ptrdiff_t>(kept),
                    shifts.end(), [&](const Shift& x, const Shift& y) {
                      return size(x) != size(y) ? size(x) > size(y) : x.a < y.a;
                    });
  shifts.resize(kept);
}

}  // namespace

TimeView make_time_view(const Sequence& a, const Sequence& b, const std::vector<EditRun>& script,
                        std::size_t count) {
  TimeView view;
  std::int64_t before = 0;
  for (const EditRun& run : script) {
    if (run.kind != EditKind::same) continue;
    for (std::size_t n = 0; n < run.length; ++n) {
      const std::int64_t now = later(a, run.a + n, b, run.b + n);
      const std::int64_t step = now - before;
      if (step >= kNoise || step <= -kNoise)
        view.steps.push_back({run.a + n, run.b + n, now, step});
      before = now;
    }
  }
  view.end_later = before;
  keep_greatest(view.steps, count, [](const Shift& s) { return std::abs(s.step); });

  // What left one place and came at another: the n-th such event of a with the n-th of b.
  std::unordered_map<Token, std::vector<std::size_t>> left;
  for (const EditRun& run : script)
    if (run.kind == EditKind::deleted || run.kind == EditKind::replaced)
      for (std::size_t n = run.length; n-- > 0;) left[a.tokens[run.a + n]].push_back(run.a + n);
  for (auto& [token, where] : left) std::sort(where.rbegin(), where.rend());
  for (const EditRun& run : script)
    if (run.kind == EditKind::inserted || run.kind == EditKind::replaced)
      for (std::size_t n = 0; n < run.length; ++n) {
        const std::size_t j = run.b + n;
        const auto found = left.find(b.tokens[j]);
        if (found == left.end() || found->second.empty()) continue;
        const std::size_t i = found->second.back();
        found->second.pop_back();
        view.moves.push_back({i, j, later(a, i, b, j), 0});
      }
  view.move_count = view.moves.size();
  keep_greatest(view.moves, count, [](const Shift& s) { return std::abs(s.later); });
  return view;
}

}  // namespace heddle::diff
