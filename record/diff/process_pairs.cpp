// SPDX-License-Identifier: MIT
#include <algorithm>
#include <map>

#include "record/diff/comparison.hpp"

namespace heddle::diff {
namespace {

/// A run's events, process by process, in order of appearance; processes without a wanted event are
/// left out.
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
  // Another process's events may have stood between two that are neighbours now.
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
    parts.push_back({shown + " #" + std::to_string(nth), std::move(x), std::move(y)});
  };
  for (std::size_t i = 0; i < left.size(); ++i)
    add(left[i].first, std::move(left[i].second),
        partner[i] < 0 ? Sequence{}
                       : std::move(right[static_cast<std::size_t>(partner[i])].second));
  for (std::size_t j = 0; j < right.size(); ++j)
    if (!taken[j]) add(right[j].first, {}, std::move(right[j].second));
  return parts;
}

}  // namespace heddle::diff
