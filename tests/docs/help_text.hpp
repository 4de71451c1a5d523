// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

namespace heddle::test {

struct HelpOption {
  std::vector<std::string> names;  ///< {"-o", "--out"}
  bool takes_value = false;
  std::vector<std::string> choices;  ///< `a|b`: all its values
  std::string description;
};

/// The output of `program [subcommand] --help`.
struct HelpText {
  std::string summary;  ///< the first line
  std::vector<HelpOption> options;
  std::map<std::string, std::string> subcommands;  ///< name -> description
};

/// The help of a program and of its subcommands.
struct ProgramHelp {
  std::string name;
  HelpText top;
  std::map<std::string, HelpText> subcommands;
};

/// Parses the output of CLI11's formatter.
HelpText parse_help(const std::string& text);

/// Runs `path --help` and that of each subcommand. Throws heddle::Error when one fails.
ProgramHelp ask_for_help(const std::string& path);

/// Completion scripts for one program, generated from its help.
std::string bash_completion(const ProgramHelp& program);
std::string zsh_completion(const ProgramHelp& program);
std::string fish_completion(const ProgramHelp& program);

/// The options that an scdoc page defines, that is, names in bold in a line that begins with `*-`,
/// by the subcommand of the section (`## build`); "" is the program.
std::map<std::string, std::vector<std::string>> man_page_options(const std::string& scdoc);

}  // namespace heddle::test
