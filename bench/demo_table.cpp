// SPDX-License-Identifier: MIT
#include "bench/demo_table.hpp"

#include <fmt/format.h>

#include "bench/cold.hpp"

namespace heddle::bench {
namespace {

std::string with_commas(std::uint64_t number) {
  if (number < 1000) return fmt::format("{}", number);
  return fmt::format("{},{:03}", with_commas(number / 1000), number % 1000);
}

/// Seconds and operations in columns; of a start that was stopped both are a lower bound.
std::string columns(const ColdStart& start, double limit) {
  const auto seconds =
      start.stopped ? fmt::format("> {:g} s", limit) : fmt::format("{:.2f} s", start.seconds);
  const auto operations =
      start.stopped ? "(" + with_commas(start.operations) + ")" : with_commas(start.operations);
  return fmt::format("{:>10}{:>12}", seconds, operations);
}

}  // namespace

std::string demo_table(const nlohmann::json& run) {
  auto out = fmt::format("{:36}{:>22}{:>22}\n", "", "without heddle", "with heddle") +
             fmt::format("{:29}{:7}{:>10}{:>12}{:>10}{:>12}{:>9}\n", "program", "start", "time",
                         "operations", "time", "operations", "faster");
  std::string last;
  for (const auto& row : run.at("rows")) {
    const auto program = row.at("program").get<std::string>();
    if (row.contains("absent")) {
      out += fmt::format("{:29}not run: {}\n", program, row.at("absent").get<std::string>());
      continue;
    }
    const auto without = row.at("without").get<ColdStart>();
    const auto with = row.at("with").get<ColdStart>();
    out += fmt::format("{:29}{:7}{}{}{:>9}\n", program == last ? "" : program,
                       row.at("start").get<std::string>(),
                       columns(without, run.at("limit").get<double>()),
                       columns(with, run.at("limit").get<double>()),
                       with.stopped ? ""
                                    : fmt::format("{}{:.1f}x", without.stopped ? "> " : "",
                                                  without.seconds / with.seconds));
    last = program;
  }
  return out;
}

}  // namespace heddle::bench
