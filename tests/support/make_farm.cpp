// SPDX-License-Identifier: MIT
//
// ElfFarm for shell scripts (`./dev demo`, by hand). Prints the program's path.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>

#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "tests/support/elf_farm.hpp"

int main(int argc, char** argv) {
  heddle::set_program_name("make_farm");
  heddle::test::FarmOptions options;
  std::string directory;
  const std::map<std::string, heddle::test::FarmShape> shapes = {
      {"star", heddle::test::FarmShape::star},
      {"chain", heddle::test::FarmShape::chain},
      {"random", heddle::test::FarmShape::random}};
  const std::map<std::string, heddle::test::FarmTag> tags = {
      {"rpath", heddle::test::FarmTag::rpath},
      {"runpath", heddle::test::FarmTag::runpath},
      {"none", heddle::test::FarmTag::none},
      {"absolute", heddle::test::FarmTag::absolute}};
  CLI::App app("Builds a program with N libraries in N directories");
  app.add_option("directory", directory, "where; made when missing")->required();
  app.add_option("-n,--libraries", options.libraries, "how many libraries");
  app.add_option("--shape", options.shape)->transform(CLI::CheckedTransformer(shapes));
  app.add_option("--tag", options.tag)->transform(CLI::CheckedTransformer(tags));
  app.add_option("--functions", options.functions, "exported functions a library");
  app.add_option("--prefix", options.prefix, "start of every soname");
  app.add_option("--first-number", options.first_number, "what the first library adds");
  app.add_option("--seed", options.seed, "of the random shape");
  app.add_flag("--odd-names", options.odd_names, "spaces, tabs, newlines and UTF-8");
  app.add_flag("--flat", options.flat, "all libraries in one directory");
  app.add_flag("--dlopen", options.dlopen_roots, "the program dlopens instead of needing");
  CLI11_PARSE(app, argc, argv);
  try {
    const auto farm = heddle::test::ElfFarm::build(directory, options);
    fmt::print("{}\n", farm.program);
  } catch (const heddle::Error& error) {
    heddle::report(error);
    return heddle::exit_failure;
  }
  return heddle::exit_done;
}
