// SPDX-License-Identifier: MIT
#include "record/diff/comparison.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/try.hpp"

namespace heddle::diff {

namespace {

void add(Hunk& hunk, EditRun run) {
  if (run.length == 0) return;
  if (hunk.runs.empty()) {
    hunk.a = run.a;
    hunk.b = run.b;
  }
  if (run.kind != EditKind::inserted) hunk.a_length += run.length;
  if (run.kind != EditKind::deleted) hunk.b_length += run.length;
  hunk.runs.push_back(run);
}

}  // namespace

std::vector<Hunk> make_hunks(const std::vector<EditRun>& script, std::uint32_t context) {
  std::vector<Hunk> hunks;
  for (std::size_t n = 0; n < script.size(); ++n) {
    const EditRun& run = script[n];
    const bool first = n == 0, last = n + 1 == script.size();
    const std::uint32_t kept = std::min(context, run.length), skipped = run.length - kept;
    if (run.kind != EditKind::same || (!first && !last && skipped <= context)) {
      if (hunks.empty()) hunks.emplace_back();
      add(hunks.back(), run);
      continue;
    }
    if (!first) add(hunks.back(), {run.kind, run.a, run.b, kept});
    if (!last) add(hunks.emplace_back(), {run.kind, run.a + skipped, run.b + skipped, kept});
  }
  return hunks;
}

namespace {

constexpr std::int64_t kNoise = 1'000'000;  // ns; smaller steps are left out

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

/// The `count` greatest of each kind.
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

  // Moves: the n-th deleted event of a token with its n-th inserted one.
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

/// A run's events, process by process, in order of appearance; processes without events are left
/// out.
std::vector<std::pair<std::string, Sequence>> split(const Run& run) {
  std::vector<std::pair<std::string, Sequence>> out(run.processes.size());
  for (std::size_t p = 0; p < out.size(); ++p) out[p].first = run.processes[p].exe;
  const bool collapsed = !run.sequence.repeats.empty();
  for (std::size_t i = 0; i < run.sequence.size(); ++i) {
    Sequence& s = out[run.process_of[i]].second;
    s.tokens.push_back(run.sequence.tokens[i]);
    s.ns.push_back(run.sequence.ns[i]);
    s.positions.push_back(run.sequence.position(i));
    if (collapsed) s.repeats.push_back(run.sequence.repeats[i]);
  }
  // Events that another process's events separated are neighbours now.
  if (collapsed)
    for (auto& [name, s] : out) s.collapse();
  std::erase_if(out, [](const auto& p) { return p.second.tokens.empty(); });
  return out;
}

}  // namespace

std::vector<Part> pair_processes(const Run& a, const Run& b) {
  auto left = split(a);
  auto right = split(b);
  std::vector<std::ptrdiff_t> partner(left.size(), -1);
  std::vector<bool> taken(right.size());
  const auto pair_up = [&](auto fits) {
    for (std::size_t i = 0; i < left.size(); ++i)
      for (std::size_t j = 0; partner[i] < 0 && j < right.size(); ++j)
        if (!taken[j] && left[i].first == right[j].first && fits(left[i].second, right[j].second)) {
          partner[i] = static_cast<std::ptrdiff_t>(j);
          taken[j] = true;
        }
  };
  pair_up([](const Sequence& x, const Sequence& y) { return x.tokens == y.tokens; });
  pair_up([](const Sequence&, const Sequence&) { return true; });

  std::vector<Part> parts;
  std::map<std::string, int> seen;
  const auto add = [&](const std::string& exe, Sequence x, Sequence y) {
    const int nth = ++seen[exe];
    const std::string shown = exe.empty() ? "(unknown executable)" : exe;
    parts.push_back({{}, shown + " #" + std::to_string(nth), std::move(x), std::move(y)});
  };
  for (std::size_t i = 0; i < left.size(); ++i)
    add(left[i].first, std::move(left[i].second),
        partner[i] < 0 ? Sequence{}
                       : std::move(right[static_cast<std::size_t>(partner[i])].second));
  for (std::size_t j = 0; j < right.size(); ++j)
    if (!taken[j]) add(right[j].first, {}, std::move(right[j].second));
  return parts;
}

double Comparison::normalised() const {
  std::size_t longest = 0;
  for (const Part& part : parts) longest += std::max(part.a.size(), part.b.size());
  return longest == 0 ? 0 : static_cast<double>(distance()) / static_cast<double>(longest);
}

Result<Comparison> compare(Run a, Run b, const CompareOptions& options) {
  Comparison c;
  c.a_events = a.sequence.size();
  c.b_events = b.sequence.size();
  if (options.by_process) {
    for (const Run* run : {&a, &b})
      if (!run->has_processes())
        return fail(run->name, "cannot compare by process", "the trace names no processes");
    c.parts = pair_processes(a, b);
  } else {
    c.parts.push_back({{}, "", std::move(a.sequence), std::move(b.sequence)});
  }
  c.a = std::move(a);
  c.b = std::move(b);
  for (Part& part : c.parts) {
    part.script = edit_script(part.a.tokens, part.b.tokens);
    part.add(part.script);
    c.add(part.script);
    const double cells = static_cast<double>(part.a.size()) * static_cast<double>(part.b.size());
    part.local_skipped = !options.local_count && cells > kFreeCells;
    if (!part.local_skipped)
      part.local = TRY(best_local_alignments(part.a.tokens, part.b.tokens, options.scores,
                                             options.local_count.value_or(1)));
    part.time = make_time_view(part.a, part.b, part.script, options.time_count);
  }
  return c;
}

}  // namespace heddle::diff
