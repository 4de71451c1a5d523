// SPDX-License-Identifier: MIT
//
// `show_demo RUN`: the table of a demo run's JSON, to stdout.
#include <fmt/format.h>

#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "bench/demo_table.hpp"

int main(int argc, char** argv) {
  heddle::set_program_name("show_demo");
  if (argc != 2) {
    fmt::print(stderr, "usage: show_demo RUN\n");
    return heddle::exit_usage;
  }
  try {
    const auto text = heddle::value_or_throw(heddle::read_file(argv[1]));
    fmt::print("{}", heddle::bench::demo_table(nlohmann::json::parse(text)));
  } catch (const std::exception& error) {
    heddle::say(error.what());
    return heddle::exit_failure;
  }
  return heddle::exit_done;
}
