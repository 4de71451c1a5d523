// SPDX-License-Identifier: MIT
//
// Makes an ElfFarm for shell scripts (`./dev demo`) and prints the program's path.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/run_main.hpp"
#include "tests/support/elf_farm.hpp"

int main(int argc, char** argv) {
  heddle::test::FarmOptions options;
  std::string directory;
  CLI::App app("Builds a program with N libraries in N directories");
  app.add_option("directory", directory, "where; made when missing")->required();
  app.add_option("-n,--libraries", options.libraries, "how many libraries");
  CLI11_PARSE(app, argc, argv);
  return heddle::run_main("make_farm", [&] {
    fmt::print("{}\n", heddle::test::ElfFarm::build(directory, options).program);
    return 0;
  });
}
