// SPDX-License-Identifier: MIT
//
// Writes the programs' completions into a directory: `./dev completions`.
#include <fmt/format.h>

#include "base/exit_code.hpp"
#include "base/run_main.hpp"
#include "tests/docs/help_text.hpp"
#include "tests/support/build_elf.hpp"

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: make_completions DIRECTORY PROGRAM...\n");
    return heddle::exit_usage;
  }
  return heddle::run_main("make_completions", [&] {
    const std::string directory = argv[1];
    for (int i = 2; i < argc; ++i) {
      const auto help = heddle::test::ask_for_help(argv[i]);
      heddle::test::write_text_file(directory + "/" + help.name + ".bash", bash_completion(help));
      heddle::test::write_text_file(directory + "/_" + help.name, zsh_completion(help));
      heddle::test::write_text_file(directory + "/" + help.name + ".fish", fish_completion(help));
    }
    return heddle::exit_done;
  });
}
