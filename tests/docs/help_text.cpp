// SPDX-License-Identifier: MIT
#include "tests/docs/help_text.hpp"

#include <algorithm>
#include <cctype>
#include <regex>
#include <sstream>

#include "base/result.hpp"
#include "tests/support/run.hpp"

namespace heddle::test {
namespace {

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

/// {a, b} of `a|b REQUIRED`; none of `DIR|MAP`.
std::vector<std::string> choices_of(const std::string& value) {
  const auto word = value.substr(0, value.find(' '));
  const auto is_of_choice = [](char c) { return c == '|' || std::islower(c); };
  if (word.find('|') == word.npos || !std::all_of(word.begin(), word.end(), is_of_choice))
    return {};
  std::vector<std::string> out;
  std::istringstream words(word);
  for (std::string choice; std::getline(words, choice, '|');) out.push_back(choice);
  return out;
}

/// `-o,--out MAP REQUIRED      where to write`: CLI11 puts two spaces or a new line before the
/// description.
HelpOption parse_option(const std::string& line) {
  HelpOption option;
  const auto gap = line.find("  ");
  const auto head = line.substr(0, gap);
  if (gap != std::string::npos) option.description = trimmed(line.substr(gap));
  const auto names_end = head.find(' ');
  std::istringstream names(head.substr(0, names_end));
  for (std::string name; std::getline(names, name, ',');)
    if (!name.empty()) option.names.push_back(name.substr(0, name.find('{')));
  option.takes_value = names_end != std::string::npos;
  if (option.takes_value) option.choices = choices_of(head.substr(names_end + 1));
  return option;
}

}  // namespace

HelpText parse_help(const std::string& text) {
  HelpText help;
  std::istringstream lines(text);
  enum class Section { head, options, subcommands, other } section = Section::head;
  std::string last_subcommand;
  for (std::string line; std::getline(lines, line);) {
    const auto body = trimmed(line);
    if (body.empty()) continue;
    const bool indented = line[0] == ' ';
    if (!indented) {
      // "Options:", and groups of options that a program names itself: "Mounting:".
      if (body == "Subcommands:")
        section = Section::subcommands;
      else if (body == "Positionals:" || body.starts_with("Usage:"))
        section = Section::other;
      else if (body.ends_with(":"))
        section = Section::options;
      else if (help.summary.empty())
        help.summary = body;
      continue;
    }
    const bool fresh = line.size() > 2 && line[2] != ' ';
    if (section == Section::options && fresh && body[0] == '-')
      help.options.push_back(parse_option(body));
    else if (section == Section::options && !fresh && !help.options.empty())
      help.options.back().description +=
          (help.options.back().description.empty() ? "" : " ") + body;
    else if (section == Section::subcommands && fresh) {
      last_subcommand = body.substr(0, body.find(' '));
      help.subcommands[last_subcommand] = trimmed(body.substr(last_subcommand.size()));
    } else if (section == Section::subcommands && !last_subcommand.empty()) {
      auto& description = help.subcommands[last_subcommand];
      description += (description.empty() ? "" : " ") + body;
    }
  }
  return help;
}

ProgramHelp ask_for_help(const std::string& path) {
  ProgramHelp program;
  program.name = path.substr(path.rfind('/') + 1);
  program.top = parse_help(run_checked({path, "--help"}).out);
  for (const auto& [name, description] : program.top.subcommands)
    program.subcommands[name] = parse_help(run_checked({path, name, "--help"}).out);
  return program;
}

std::map<std::string, std::vector<std::string>> man_page_options(const std::string& scdoc) {
  static const std::regex kBold(R"(\*(--?[A-Za-z0-9][-A-Za-z0-9]*)\*)");
  std::map<std::string, std::vector<std::string>> found;
  std::istringstream lines(scdoc);
  std::string subcommand;
  bool in_commands = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# ")) {
      in_commands = line == "# COMMANDS";
      subcommand.clear();
    }
    if (in_commands && line.starts_with("## ")) subcommand = line.substr(3, line.find(' ', 3) - 3);
    if (!line.starts_with("*-")) continue;
    for (auto it = std::sregex_iterator(line.begin(), line.end(), kBold);
         it != std::sregex_iterator(); ++it)
      found[subcommand].push_back((*it)[1]);
  }
  return found;
}

}  // namespace heddle::test
