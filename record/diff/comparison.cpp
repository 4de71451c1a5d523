// SPDX-License-Identifier: MIT
#include "record/diff/comparison.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <tuple>
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

namespace {

/// Of each token of a run its first event; kNever for others.
constexpr std::uint32_t kNever = ~0U;
std::vector<std::uint32_t> first_events(const Run& run, const TokenTable& table) {
  std::vector<std::uint32_t> first(table.size(), kNever);
  const auto& tokens = run.sequence.tokens;
  for (std::size_t i = tokens.size(); i-- > 0;) first[tokens[i]] = static_cast<std::uint32_t>(i);
  return first;
}

FileView compare_files(const Run& a, const Run& b, const TokenTable& table) {
  struct Side {
    std::uint32_t used = kNever, missed = kNever;  // first events
  };
  const Run* const runs[] = {&a, &b};
  const std::vector<std::uint32_t> first[] = {first_events(a, table), first_events(b, table)};
  bool lookups_alone = true;
  for (Token t = 0; t < table.size(); ++t)
    lookups_alone = lookups_alone && table.text(t).op == trace::Op::lookup;
  std::unordered_map<std::string_view, std::array<Side, 2>> paths;
  for (Token t = 0; t < table.size(); ++t) {
    const TokenText text = table.text(t);
    for (const std::size_t run : {0UL, 1UL}) {
      if (first[run][t] == kNever) continue;
      Side& side = paths[text.path][run];
      if (text.error == ENOENT)
        side.missed = std::min(side.missed, first[run][t]);
      else if (text.error == 0 && (lookups_alone || text.op != trace::Op::lookup))
        side.used = std::min(side.used, first[run][t]);
    }
  }
  FileView view;
  for (const auto& [path, sides] : paths)
    for (const std::size_t run : {0UL, 1UL}) {
      const Side &own = sides[run], &other = sides[1 - run];
      const auto add = [&](std::vector<FileChange>& list, std::uint32_t event, bool found) {
        list.push_back({path, runs[run]->processes[runs[run]->process_of[event]].exe, found});
      };
      if (own.used != kNever && other.used == kNever)
        add(run == 0 ? view.only_a : view.only_b, own.used, false);
      if (own.missed != kNever && other.missed == kNever)
        add(run == 0 ? view.missed_a : view.missed_b, own.missed, other.used != kNever);
    }
  for (auto* list : {&view.only_a, &view.only_b, &view.missed_a, &view.missed_b})
    std::sort(list->begin(), list->end(), [](const FileChange& x, const FileChange& y) {
      const auto key = [](const FileChange& f) {
        const std::size_t slash = std::min(f.path.rfind('/'), f.path.size());
        return std::tuple(f.path.substr(0, slash), f.process, f.path.substr(slash));
      };
      return key(x) < key(y);
    });
  return view;
}

void count_events(Comparison& c, const Run& a, const Run& b, const TokenTable& table) {
  std::vector<std::int64_t> surplus(table.size());
  for (const Token t : a.sequence.tokens) ++surplus[t];
  for (const Token t : b.sequence.tokens) --surplus[t];
  for (const std::int64_t s : surplus)
    (s > 0 ? c.only_a : c.only_b) += static_cast<std::size_t>(std::abs(s));
  c.in_both = a.sequence.size() - c.only_a;
}

}  // namespace

double Comparison::normalised() const {
  return longest == 0 ? 0 : static_cast<double>(distance()) / static_cast<double>(longest);
}

bool Comparison::exact() const {
  return std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.exact; });
}

Result<Comparison> compare(Run a, Run b, const TokenTable& table, const CompareOptions& options) {
  Comparison c;
  c.a_events = a.sequence.size();
  c.b_events = b.sequence.size();
  c.files = compare_files(a, b, table);
  count_events(c, a, b, table);
  if (options.by != By::run) {
    for (const Run* run : {&a, &b}) TRY(run->require_processes());
    c.parts = pair_processes(a, b);
  } else {
    c.parts.push_back({{}, "", std::move(a.sequence), std::move(b.sequence)});
  }
  c.a = std::move(a);
  c.b = std::move(b);
  for (const Part& part : c.parts) c.longest += std::max(part.a.size(), part.b.size());
  const std::uint32_t most = options.max_distance ? options.max_distance->at_most(c.longest) : ~0U;
  for (Part& part : c.parts) {
    const Effort effort{most - std::min(most, c.distance()), options.progress};
    Script script = edit_script(part.a.tokens, part.b.tokens, effort);
    part.script = std::move(script.runs);
    part.exact = script.exact;
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
