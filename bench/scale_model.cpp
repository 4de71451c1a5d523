// SPDX-License-Identifier: MIT
#include "bench/scale_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

namespace heddle::bench {
namespace {

constexpr std::array kNames = {
    "stock_requests", "stock_seconds",   "local_seconds",  "paths",        "files",
    "content",        "cached_first",    "cached_next",    "copper_node",  "map_requests",
    "map_seconds",    "bundle_requests", "bundle_seconds", "bundle_local", "bundle",
    "archive",        "unpack",          "delay",          "origin_rate",  "origin_speed",
    "link_speed",     "width",           "ask_daemon",     "ask_parent",   "large_archive",
    "large_unpack",   "large_bundle"};

double of(const ScaleConstants& constants, const char* name) { return constants.at(name).value; }

/// Levels of a tree in which each node has `width` below it.
double levels(const ScaleConstants& c, double nodes) {
  double out = 0;
  for (double reached = 1; reached < nodes; reached *= of(c, "width")) ++out;
  return out;
}

/// A tree of nodes that each send a block to all below them, one after the other: sbcast.
double broadcast(const ScaleConstants& c, double mib, double nodes) {
  return mib * of(c, "width") * levels(c, nodes) / of(c, "link_speed");
}

/// The slowest of: what one process waits for, the origin's requests, the origin's bytes.
ScaleCost shared(const ScaleConstants& c, double requests, double mib, double seconds) {
  return {requests, mib,
          std::max({seconds, requests / of(c, "origin_rate"), mib / of(c, "origin_speed")})};
}

/// One node asks the origin for each path, and opens, reads and closes each file.
double requests_of_one_reader(const ScaleConstants& c) {
  return of(c, "paths") + 3 * of(c, "files");
}

ScaleCost stock(const ScaleConstants& c, double nodes, double ranks) {
  return shared(c, nodes * ranks * of(c, "stock_requests"), nodes * ranks * of(c, "content"),
                of(c, "stock_seconds"));
}

ScaleCost stock_cached(const ScaleConstants& c, double nodes, double ranks) {
  return shared(c, nodes * (of(c, "cached_first") + (ranks - 1) * of(c, "cached_next")),
                nodes * of(c, "content"),
                of(c, "cached_first") * of(c, "delay") + of(c, "local_seconds"));
}

ScaleCost spindle(const ScaleConstants& c, double nodes, double ranks) {
  const double requests = requests_of_one_reader(c);
  return {requests, of(c, "content"),
          of(c, "local_seconds") + requests * of(c, "delay") +
              broadcast(c, of(c, "content"), nodes) + ranks * of(c, "paths") * of(c, "ask_daemon")};
}

ScaleCost copper(const ScaleConstants& c, double nodes, double ranks) {
  const double requests = requests_of_one_reader(c);
  return {requests, of(c, "content"),
          requests * of(c, "delay") + levels(c, nodes) * of(c, "paths") * of(c, "ask_parent") +
              broadcast(c, of(c, "content"), nodes) +
              std::max(of(c, "local_seconds"), ranks * of(c, "copper_node"))};
}

ScaleCost conda_pack(const ScaleConstants& c, double nodes, double) {
  return {std::ceil(of(c, "archive")) + 2, of(c, "archive"),
          broadcast(c, of(c, "archive"), nodes) + of(c, "unpack") + of(c, "local_seconds")};
}

ScaleCost heddle_map(const ScaleConstants& c, double nodes, double) {
  return shared(c, nodes * of(c, "map_requests"), nodes * of(c, "content"), of(c, "map_seconds"));
}

ScaleCost heddle_shared_bundle(const ScaleConstants& c, double nodes, double) {
  return shared(c, nodes * of(c, "bundle_requests"), nodes * of(c, "bundle"),
                of(c, "bundle_seconds"));
}

ScaleCost heddle_broadcast(const ScaleConstants& c, double nodes, double) {
  const double requests = std::ceil(of(c, "bundle")) + 2;
  return {requests, of(c, "bundle"),
          requests * of(c, "delay") + broadcast(c, of(c, "bundle"), nodes) + of(c, "bundle_local")};
}

std::string grouped(double value) {
  auto out = fmt::format("{:.0f}", value);
  for (auto at = static_cast<int>(out.size()) - 3; at > 0; at -= 3)
    out.insert(static_cast<std::size_t>(at), ",");
  return out;
}

std::string requests_text(const ScaleCost& cost) {
  return cost.requests < 1e7 ? grouped(cost.requests) : fmt::format("{:.1e}", cost.requests);
}

std::string bytes_text(const ScaleCost& cost) {
  constexpr std::array kUnits = {"MiB", "GiB", "TiB"};
  double value = cost.mib;
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, value < 10 ? 1 : 0, kUnits[unit]);
}

std::string seconds_text(const ScaleCost& cost) {
  const double s = cost.seconds;
  if (s < 300) return fmt::format("{:.{}f} s", s, s < 10 ? 1 : 0);
  if (s < 2 * 3600) return fmt::format("{:.0f} min", s / 60);
  if (s < 48 * 3600) return fmt::format("{:.0f} h", s / 3600);
  return fmt::format("{:.0f} days", s / 86400);
}

constexpr std::array kNodes = {1, 10, 100, 1000, 10000};
constexpr double kRanks = 128;

/// An installation of gigabytes, where bytes cost more than requests: seconds until it can be used.
ScaleCost large_archive(const ScaleConstants& c, double nodes, double) {
  const double mib = of(c, "large_archive");
  return {0, mib, mib / of(c, "link_speed") + broadcast(c, mib, nodes) + of(c, "large_unpack")};
}
ScaleCost large_bundle(const ScaleConstants& c, double nodes, double) {
  const double mib = of(c, "large_bundle");
  return {0, mib, mib / of(c, "link_speed") + broadcast(c, mib, nodes)};
}
ScaleCost large_shared_bundle(const ScaleConstants& c, double nodes, double) {
  const double mib = of(c, "large_bundle");
  return shared(c, 0, nodes * mib, mib / of(c, "link_speed"));
}

std::string table(const ScaleConstants& constants, const std::vector<ScaleMethod>& methods,
                  const char* title, std::string (*text)(const ScaleCost&)) {
  std::string out = fmt::format("| {} |", title);
  std::string rule = "|---|";
  for (const int nodes : kNodes) {
    out += fmt::format(" {} |", grouped(nodes));
    rule += "---:|";
  }
  out += fmt::format("\n{}\n", rule);
  for (const auto& method : methods) {
    out += fmt::format("| {} |", method.name);
    for (const int nodes : kNodes)
      out += fmt::format(" {} |", text(method.cost(constants, nodes, kRanks)));
    out += "\n";
  }
  return out;
}

}  // namespace

Result<ScaleConstants> read_scale_constants(std::string_view text) {
  ScaleConstants out;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string name;
    ScaleConstant constant;
    words >> name >> constant.value >> constant.unit >> constant.kind >> std::ws;
    std::getline(words, constant.source);
    if (!words || constant.value <= 0 || constant.source.empty())
      return fail_errno(line, "is not `name value unit kind source`", EBADMSG);
    out[name] = constant;
  }
  for (const char* name : kNames)
    if (!out.contains(name)) return fail_errno(name, "constant is missing", EBADMSG);
  return out;
}

const std::vector<ScaleMethod>& scale_methods() {
  static const std::vector<ScaleMethod> methods = {
      {"stock, nothing cached on the node", stock},
      {"stock, names cached on the node", stock_cached},
      {"`sbcast --send-libs` (sends no Python files)", stock_cached},
      {"Spindle", spindle},
      {"Copper", copper},
      {"conda-pack: tar by sbcast, unpacked", conda_pack},
      {"heddle, map", heddle_map},
      {"heddle, bundle on the shared file system", heddle_shared_bundle},
      {"heddle, bundle by sbcast", heddle_broadcast},
  };
  return methods;
}

std::string scale_tables(const ScaleConstants& constants) {
  static const std::vector<ScaleMethod> large = {
      {"archive by sbcast, unpacked", large_archive},
      {"bundle on the shared file system", large_shared_bundle},
      {"bundle by sbcast", large_bundle}};
  const auto& methods = scale_methods();
  std::string out =
      table(constants, methods, "requests to the origin; nodes:", requests_text) + "\n" +
      table(constants, methods, "bytes read at the origin; nodes:", bytes_text) + "\n" +
      table(constants, methods, "time until the last import; nodes:", seconds_text) + "\n" +
      table(constants, large, "8 GiB installed, time until it is there; nodes:", seconds_text) +
      "\n| constant | value | | source |\n|---|---:|---|---|\n";
  for (const char* name : kNames) {
    const auto& constant = constants.at(name);
    out += fmt::format("| `{}` | {:.6g} {} | {} | {} |\n", name, constant.value, constant.unit,
                       constant.kind, constant.source);
  }
  return out;
}

std::string with_scale_tables(const std::string& page, const ScaleConstants& constants) {
  constexpr std::string_view kBegin = "<!-- scale_model -->\n";
  constexpr std::string_view kEnd = "<!-- end of scale_model -->";
  const auto begin = page.find(kBegin);
  const auto end = page.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin)
    throw Error("scale_model", "the page has no marks for its tables");
  return page.substr(0, begin + kBegin.size()) + scale_tables(constants) + page.substr(end);
}

}  // namespace heddle::bench
