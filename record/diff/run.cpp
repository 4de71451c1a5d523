// SPDX-License-Identifier: MIT
#include "record/diff/run.hpp"

namespace heddle::diff {

std::vector<std::string> TokenRules::names() const {
  std::vector<std::string> list = normalise.names();
  if (result) list.emplace_back("result");
  if (late) list.emplace_back("late");
  if (resolved) list.emplace_back("resolved");
  if (collapse) list.emplace_back("collapse");
  return list;
}

void Sequence::collapse() {
  std::vector<std::uint32_t> from(size());
  for (std::uint32_t i = 0; i < from.size(); ++i) from[i] = position(i);
  const std::vector<std::uint32_t> before = std::move(repeats);
  repeats.clear();
  positions.clear();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::uint32_t times = before.empty() ? 1 : before[i];
    if (kept > 0 && tokens[i] == tokens[kept - 1]) {
      repeats.back() += times;
      continue;
    }
    tokens[kept] = tokens[i];
    ns[kept] = ns[i];
    repeats.push_back(times);
    positions.push_back(from[i]);
    ++kept;
  }
  tokens.resize(kept);
  ns.resize(kept);
}

}  // namespace heddle::diff
