// SPDX-License-Identifier: MIT
//
// `scale_model CONSTANTS [PAGE]`: prints the tables of docs/scale.md, or puts them into PAGE.
// tests/docs holds both together.
#include <fmt/format.h>

#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "bench/scale_model.hpp"

namespace heddle {
namespace {

int run(int argc, char** argv) {
  set_program_name("scale_model");
  if (argc != 2 && argc != 3) {
    fmt::print(stderr, "usage: scale_model CONSTANTS [PAGE]\n");
    return exit_usage;
  }
  try {
    const auto constants =
        value_or_throw(bench::read_scale_constants(value_or_throw(read_file(argv[1]))));
    if (argc == 2) {
      fmt::print("{}", bench::scale_tables(constants));
      return exit_done;
    }
    const auto page = value_or_throw(read_file(argv[2]));
    const auto updated = bench::with_scale_tables(page, constants);
    if (updated != page) value_or_throw(write_output(argv[2], updated));
  } catch (const std::exception& error) {
    say(error.what());
    return exit_failure;
  }
  return exit_done;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) { return heddle::run(argc, argv); }
