// SPDX-License-Identifier: MIT
#include "bench/demo_table.hpp"

#include <fmt/format.h>

#include "bench/timing.hpp"

namespace heddle::bench {
namespace {

std::string with_commas(std::uint64_t number) {
  if (number < 1000) return fmt::format("{}", number);
  return fmt::format("{},{:03}", with_commas(number / 1000), number % 1000);
}

}  // namespace

std::string demo_table(const nlohmann::json& run) {
  std::string out = fmt::format("{:26}{:>24}{:>22}\n", "", "failed look-ups", "whole run, ms") +
                    fmt::format("{:26}{:>14}{:>10}{:>13}{:>9}{:>9}\n", "program", "without", "with",
                                "without", "with", "faster");
  for (const auto& row : run.at("rows")) {
    const double plain = median(row.at("plain_ns").get<std::vector<double>>()) / 1e6;
    const double guided = median(row.at("guided_ns").get<std::vector<double>>()) / 1e6;
    out += fmt::format(
        "{:26}{:>14}{:>10}{:>13.1f}{:>9.1f}{:>8.1f}x\n", row.at("program").get<std::string>(),
        with_commas(row.at("failed_plain").get<std::uint64_t>()),
        with_commas(row.at("failed_guided").get<std::uint64_t>()), plain, guided, plain / guided);
  }
  return out;
}

}  // namespace heddle::bench
