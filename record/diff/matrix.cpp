// SPDX-License-Identifier: MIT
#include "record/diff/matrix.hpp"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <unordered_map>

#include "base/try.hpp"
#include "record/diff/comparison.hpp"

namespace heddle::diff {

namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::uint32_t distance_of(const Run& a, const Run& b, By by) {
  if (by == By::run) return edit_distance(a.sequence.tokens, b.sequence.tokens);
  std::uint32_t sum = 0;
  for (const Part& part : pair_processes(a, b)) sum += edit_distance(part.a.tokens, part.b.tokens);
  return sum;
}

/// Compares every pair once, in a thread for each core.
void fill_distances(Matrix& m, By by) {
  const std::size_t n = m.size();
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t pair = next++; pair < n * n; pair = next++) {
      const std::size_t i = pair / n, j = pair % n;
      if (i >= j) continue;
      m.distance[i * n + j] = m.distance[j * n + i] = distance_of(m.runs[i], m.runs[j], by);
    }
  };
  std::vector<std::jthread> threads;
  const std::size_t extra = std::min<std::size_t>(std::thread::hardware_concurrency(), n);
  for (std::size_t t = 1; t < extra; ++t) threads.emplace_back(work);
  work();
}

/// UPGMA: merges the closest two branches, at the mean distance of their members, until one is
/// left.
std::vector<Joint> make_tree(const Matrix& m) {
  struct Branch {
    std::size_t number;
    double members;
    std::vector<double> to;
  };
  const std::size_t n = m.size();
  std::vector<Branch> branches(n);
  for (std::size_t i = 0; i < n; ++i) {
    branches[i] = {i, 1, {}};
    for (std::size_t j = 0; j < n; ++j) branches[i].to.push_back(m.at(i, j));
  }
  std::vector<std::size_t> live(n);
  for (std::size_t i = 0; i < n; ++i) live[i] = i;
  std::vector<Joint> tree;
  while (live.size() > 1) {
    std::size_t best_x = 0, best_y = 1;
    for (std::size_t x = 0; x < live.size(); ++x)
      for (std::size_t y = x + 1; y < live.size(); ++y)
        if (branches[live[x]].to[live[y]] < branches[live[best_x]].to[live[best_y]])
          best_x = x, best_y = y;
    Branch& left = branches[live[best_x]];
    Branch& right = branches[live[best_y]];
    tree.push_back({left.number, right.number, left.to[live[best_y]]});
    for (const std::size_t other : live) {
      const double mean = (left.members * left.to[other] + right.members * right.to[other]) /
                          (left.members + right.members);
      left.to[other] = branches[other].to[live[best_x]] = mean;
    }
    left.members += right.members;
    left.number = n + tree.size() - 1;
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(best_y));
  }
  return tree;
}

std::size_t nearest_of(const Matrix& m, std::size_t run) {
  std::size_t nearest = run;
  for (std::size_t i = 0; i < m.size(); ++i)
    if (i != run && (nearest == run || m.at(run, i) < m.at(run, nearest))) nearest = i;
  return nearest;
}

/// Distance 0 is transitive, so a run's group is that of its first equal.
std::vector<std::vector<std::size_t>> groups_of(const Matrix& m) {
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < m.size(); ++i) {
    const auto group = std::find_if(groups.begin(), groups.end(),
                                    [&](const auto& g) { return m.at(g[0], i) == 0; });
    (group == groups.end() ? groups.emplace_back() : *group).push_back(i);
  }
  return groups;
}

}  // namespace

double Matrix::normalised(std::size_t i, std::size_t j) const {
  const std::size_t longest = std::max(runs[i].sequence.size(), runs[j].sequence.size());
  return longest == 0 ? 0 : std::min(1.0, at(i, j) / static_cast<double>(longest));
}

std::uint32_t Matrix::greatest() const {
  return distance.empty() ? 0 : *std::max_element(distance.begin(), distance.end());
}

std::vector<std::size_t> Matrix::order() const {
  std::vector<std::size_t> out;
  std::vector<std::size_t> open;
  if (size() > 0) open.push_back(size() + tree.size() - 1);
  while (!open.empty()) {
    const std::size_t number = open.back();
    open.pop_back();
    if (number < size()) {
      out.push_back(number);
    } else {
      open.push_back(tree[number - size()].right);
      open.push_back(tree[number - size()].left);
    }
  }
  return out;
}

std::vector<std::size_t> find_outliers(const std::vector<std::uint32_t>& to_nearest) {
  if (to_nearest.size() < 3) return {};
  const double middle = median({to_nearest.begin(), to_nearest.end()});
  std::vector<double> away;
  for (const std::uint32_t d : to_nearest) away.push_back(std::abs(d - middle));
  const double limit = middle + std::max(1.0, 3 * 1.4826 * median(away));
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < to_nearest.size(); ++i)
    if (to_nearest[i] > limit) out.push_back(i);
  std::stable_sort(out.begin(), out.end(),
                   [&](std::size_t x, std::size_t y) { return to_nearest[x] > to_nearest[y]; });
  return out;
}

Result<Matrix> make_matrix(std::vector<Run> runs, By by) {
  Matrix m;
  m.runs = std::move(runs);
  if (by != By::run)
    for (const Run& run : m.runs) TRY(run.require_processes());
  const std::size_t n = m.size();
  m.distance.assign(n * n, 0);
  fill_distances(m, by);
  m.tree = make_tree(m);
  m.groups = groups_of(m);
  std::vector<std::uint32_t> to_nearest;
  for (std::size_t i = 0; i < n; ++i) {
    m.nearest.push_back(nearest_of(m, i));
    to_nearest.push_back(m.at(i, m.nearest[i]));
  }
  m.outliers = find_outliers(to_nearest);
  return m;
}

namespace {

void compare_tokens(BaselineVerdict& v) {
  std::unordered_map<Token, std::size_t> runs_with;  // known runs, of each token
  for (const Run& run : v.known)
    for (const Token t : std::set(run.sequence.tokens.begin(), run.sequence.tokens.end()))
      ++runs_with[t];
  std::set<Token> seen;
  for (const Token t : v.fresh.sequence.tokens)
    if (seen.insert(t).second && !runs_with.contains(t)) v.never_seen.push_back(t);
  for (const Token t : v.known[0].sequence.tokens)
    if (runs_with.at(t) == v.known.size() && seen.insert(t).second) v.always_missing.push_back(t);
}

}  // namespace

Result<BaselineVerdict> judge(std::vector<Run> known, Run fresh, By by,
                              std::optional<std::uint32_t> limit) {
  if (known.empty()) return fail("baseline", "cannot judge", "it holds no runs");
  const std::size_t n = known.size();
  known.push_back(std::move(fresh));
  Matrix matrix = TRY(make_matrix(std::move(known), by));
  BaselineVerdict v;
  for (std::size_t i = 0; i < n; ++i) {
    std::optional<std::uint32_t> own;
    for (std::size_t j = 0; j < n; ++j)
      if (j != i) own = std::min(own.value_or(~0U), matrix.at(i, j));
    v.usual = std::max(v.usual, own.value_or(0));
    v.distance.push_back(matrix.at(i, n));
  }
  v.nearest = static_cast<std::size_t>(std::min_element(v.distance.begin(), v.distance.end()) -
                                       v.distance.begin());
  v.limit = limit.value_or(v.usual);
  v.known = std::move(matrix.runs);
  v.fresh = std::move(v.known.back());
  v.known.pop_back();
  compare_tokens(v);
  return v;
}

}  // namespace heddle::diff
