// SPDX-License-Identifier: MIT
//
// `update_readme RESULTS README`: puts the figures into the page. tests/docs holds both together.
#include <fmt/format.h>

#include "base/atomic_file.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "bench/figures_table.hpp"

int main(int argc, char** argv) {
  heddle::set_program_name("update_readme");
  if (argc != 3) {
    fmt::print(stderr, "usage: update_readme RESULTS README\n");
    return heddle::exit_usage;
  }
  try {
    const auto table =
        heddle::bench::figures_table(heddle::value_or_throw(heddle::read_file(argv[1])));
    const auto page = heddle::value_or_throw(heddle::read_file(argv[2]));
    auto file = heddle::value_or_throw(heddle::AtomicFile::create(argv[2]));
    heddle::value_or_throw(file.write(heddle::bench::with_figures(page, table)));
    heddle::value_or_throw(file.commit());
  } catch (const std::exception& error) {
    heddle::say(error.what());
    return heddle::exit_failure;
  }
  return heddle::exit_done;
}
