// SPDX-License-Identifier: MIT
#include "bench/figures_table.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/result.hpp"

namespace heddle::bench {
namespace {

struct Row {
  const char* figure;
  const char* words;
  const char* format;
};
constexpr Row kRows[] = {
    {"start.star.500.stock_to_ours", "500 libraries in 500 directories, start against stock",
     "{:.1f} times as fast"},
    {"start.random.1000.stock_to_ours", "1,000 libraries that need each other, against stock",
     "{:.1f} times as fast"},
    {"start.star.500.ours_to_absolute",
     "500 libraries, against a program linked with absolute paths", "{:.2f} x its time"},
    {"start.star.500.ours_to_flat", "500 libraries, against a local directory of the same files",
     "{:.2f} x its time"},
    {"at_once_64.star.500.stock_to_ours", "64 processes at once, 500 libraries, against stock",
     "{:.1f} times as fast"},
    {"mount.star.500.first_start_to_absolute", "the first start after the mount, absolute paths",
     "{:.2f} x its time"},
    {"mount.star.1000.ready", "mounting 1,000 libraries", "{:.0f} ms"},
    {"daemon.star.1000.resident", "the daemon's memory, 1,000 libraries", "{:.1f} MiB"},
    {"resolve.star.500.cold_to_ldd", "resolving 500 libraries for the first time, against ldd",
     "{:.2f} x its time"},
    {"resolve.star.500.warm_to_ldd", "resolving them again, against ldd", "{:.2f} x its time"},
};

constexpr std::string_view kBegin = "<!-- figures -->\n";
constexpr std::string_view kEnd = "<!-- end of figures -->";

}  // namespace

std::string figures_table(const std::string& results_json) {
  const auto results = nlohmann::json::parse(results_json);
  std::string out = "| measured | |\n|---|---|\n";
  for (const auto& row : kRows)
    for (const auto& figure : results.at("figures"))
      if (figure.at("name") == row.figure)
        out += fmt::format("| {} | {} |\n", row.words,
                           fmt::format(fmt::runtime(row.format), figure.at("value").get<double>()));
  return out + fmt::format("\nMedians of one run of `./dev bench`, on {} cores, Linux {}.\n",
                           results.at("cores").get<long>(),
                           results.at("kernel").get<std::string>());
}

std::string with_figures(const std::string& page, const std::string& table) {
  const auto begin = page.find(kBegin);
  const auto end = page.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin)
    throw Error("README.md", "no place for the figures", std::string(kBegin));
  return page.substr(0, begin + kBegin.size()) + table + page.substr(end);
}

}  // namespace heddle::bench
