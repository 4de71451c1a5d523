// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

namespace heddle::test {

struct HelpOption {
  std::vector<std::string> names;  ///< {"-o", "--out"}
  bool takes_value = false;
  std::vector<std::string> choices;  ///< `a|b`, where these are all its values
  std::string description;
};

/// What `program [subcommand] --help` says.
struct HelpText {
  std::string summary;  ///< its first line
  std::vector<HelpOption> options;
  std::map<std::string, std::string> subcommands;  ///< name -> description
};

/// A program with its subcommands' own help.
struct ProgramHelp {
  std::string name;
  HelpText top;
  std::map<std::string, HelpText> subcommands;
};

/// Parses what CLI11's formatter prints.
HelpText parse_help(const std::string& text);

/// Runs `path --help` and each subcommand's; throws heddle::Error when one fails.
ProgramHelp ask_for_help(const std::string& path);

/// Completion scripts for one program, generated from its help.
std::string bash_completion(const ProgramHelp& program);
std::string zsh_completion(const ProgramHelp& program);
std::string fish_completion(const ProgramHelp& program);

/// The options that an scdoc page defines: all that a line beginning with `*-` names in bold, by
/// the subcommand whose section (`## build`) it stands in; "" is the program itself.
std::map<std::string, std::vector<std::string>> man_page_options(const std::string& scdoc);

}  // namespace heddle::test
