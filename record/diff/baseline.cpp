// SPDX-License-Identifier: MIT
#include "record/diff/baseline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/escape.hpp"
#include "record/diff/matrix.hpp"

namespace heddle::diff {
namespace {

/// In how many of the known runs each token occurs.
std::unordered_map<Token, std::size_t> runs_with(const std::vector<Run>& known) {
  std::unordered_map<Token, std::size_t> count;
  std::unordered_map<Token, std::size_t> last;
  for (std::size_t r = 0; r < known.size(); ++r)
    for (const Token t : known[r].sequence.tokens) {
      std::size_t& seen = last[t];
      if (seen == r + 1) continue;
      seen = r + 1;
      ++count[t];
    }
  return count;
}

void compare_tokens(BaselineVerdict& v) {
  const auto count = runs_with(v.known);
  std::unordered_map<Token, bool> in_fresh;
  for (const Token t : v.fresh.sequence.tokens)
    if (in_fresh.emplace(t, true).second && !count.contains(t)) v.never_seen.push_back(t);
  std::unordered_map<Token, bool> told;
  for (const Token t : v.known[0].sequence.tokens)
    if (count.at(t) == v.known.size() && !in_fresh.contains(t) && told.emplace(t, true).second)
      v.always_missing.push_back(t);
}

}  // namespace

Result<BaselineVerdict> judge(std::vector<Run> known, Run fresh, bool by_process,
                              std::optional<std::uint32_t> limit) {
  if (known.empty()) return fail("baseline", "cannot judge", "it holds no runs");
  const std::size_t n = known.size();
  known.push_back(std::move(fresh));
  auto matrix = make_matrix(std::move(known), by_process);
  if (!matrix) return fail(std::move(matrix.error()));
  BaselineVerdict v;
  for (std::size_t i = 0; i < n; ++i) {
    std::optional<std::uint32_t> own;
    for (std::size_t j = 0; j < n; ++j)
      if (j != i) own = std::min(own.value_or(~0U), matrix->at(i, j));
    v.usual = std::max(v.usual, own.value_or(0));
    v.distance.push_back(matrix->at(i, n));
  }
  v.nearest = static_cast<std::size_t>(std::min_element(v.distance.begin(), v.distance.end()) -
                                       v.distance.begin());
  v.limit = limit.value_or(v.usual);
  v.known = std::move(matrix->runs);
  v.fresh = std::move(v.known.back());
  v.known.pop_back();
  compare_tokens(v);
  return v;
}

std::string baseline_text(const BaselineVerdict& v, const TokenTable& table,
                          const ReportOptions& options) {
  std::string out;
  for (std::size_t i = 0; i < v.known.size(); ++i)
    out += fmt::format("{:>8}  {}\t{}\n", v.distance[i], escape_for_terminal(v.known[i].name),
                       run_text(v.known[i], v.known[i].sequence.size()));
  constexpr std::size_t kShown = 20;
  const auto list = [&](const std::vector<Token>& tokens, const char* what) {
    for (std::size_t i = 0; i < std::min(tokens.size(), kShown); ++i)
      out += fmt::format("{}: {}\n", what, token_label(table.text(tokens[i])));
    if (tokens.size() > kShown) out += fmt::format("{}: {} more\n", what, tokens.size() - kShown);
  };
  list(v.never_seen, "in no known run");
  list(v.always_missing, "in every known run, not here");
  out += fmt::format("{}: {}: {} from {}, the nearest; known runs are within {} of one another{}\n",
                     escape_for_terminal(v.fresh.name), v.outside() ? "outside" : "inside",
                     v.distance[v.nearest], escape_for_terminal(v.known[v.nearest].name), v.usual,
                     v.limit != v.usual ? fmt::format("; {} are allowed", v.limit) : "");
  if (v.known.size() == 1)
    out += "one known run says nothing of what is usual: any difference is outside\n";
  return out + fmt::format("compared: {}\n", rules_text(options));
}

std::string baseline_json(const BaselineVerdict& v, const TokenTable& table,
                          const ReportOptions& options) {
  nlohmann::ordered_json j;
  j["outside"] = v.outside();
  j["distance"] = v.distance[v.nearest];
  j["limit"] = v.limit;
  j["usual"] = v.usual;
  j["nearest"] = to_json_text(v.known[v.nearest].name);
  j["new"] = to_json_text(v.fresh.name);
  j["known"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < v.known.size(); ++i)
    j["known"].push_back({{"name", to_json_text(v.known[i].name)},
                          {"events", v.known[i].sequence.size()},
                          {"distance", v.distance[i]}});
  const auto list = [&](const std::vector<Token>& tokens) {
    auto out = nlohmann::ordered_json::array();
    for (const Token t : tokens) out.push_back(token_label(table.text(t)));
    return out;
  };
  j["never_seen"] = list(v.never_seen);
  j["always_missing"] = list(v.always_missing);
  j["ops"] = options.ops;
  j["normalisers"] = nlohmann::ordered_json::array();
  for (const std::string& rule : options.rules) j["normalisers"].push_back(to_json_text(rule));
  return j.dump(2) + "\n";
}

}  // namespace heddle::diff
