// SPDX-License-Identifier: MIT
//
// `update_docs RUNS PAGE...`: puts the figures of the kept runs into the pages. tests/docs holds
// both together.
#include <fmt/format.h>

#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "bench/figure_tables.hpp"

namespace {

void update(const std::string& path, const heddle::bench::KeptRuns& runs) {
  const auto page = heddle::value_or_throw(heddle::read_file(path));
  const auto updated = heddle::bench::with_figures(page, runs);
  if (updated == page) return;
  heddle::value_or_throw(heddle::write_output(path, updated));
}

}  // namespace

int main(int argc, char** argv) {
  heddle::set_program_name("update_docs");
  if (argc < 3) {
    fmt::print(stderr, "usage: update_docs RUNS PAGE...\n");
    return heddle::exit_usage;
  }
  try {
    const auto runs = heddle::value_or_throw(heddle::bench::read_kept_runs(argv[1]));
    for (int i = 2; i < argc; ++i) update(argv[i], runs);
  } catch (const std::exception& error) {
    heddle::say(error.what());
    return heddle::exit_failure;
  }
  return heddle::exit_done;
}
