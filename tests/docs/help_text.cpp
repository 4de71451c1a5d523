// SPDX-License-Identifier: MIT
#include "tests/docs/help_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

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
      // Any other heading begins a group of options: "Options:", "Mounting:".
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

namespace {

constexpr const char* kHead =
    "# SPDX-License-Identifier: MIT\n# Made by `./dev completions` from {} --help; do not edit.\n";

std::string joined(const std::vector<std::string>& words, const char* between) {
  return fmt::format("{}", fmt::join(words, between));
}

std::string option_words(const HelpText& help) {
  std::vector<std::string> words;
  for (const auto& option : help.options)
    words.insert(words.end(), option.names.begin(), option.names.end());
  return joined(words, " ");
}

/// `description` for single quotes, with `special` characters escaped.
std::string quoted(const std::string& description, const std::string& special = "") {
  std::string out;
  for (const char c : description) {
    if (c == '\'') out += "'\\'";
    if (special.find(c) != std::string::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string function_name(const std::string& program) {
  std::string name = "_" + program;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string zsh_value(const HelpOption& option) {
  if (!option.takes_value) return "";
  return ":value:" + (option.choices.empty() ? "_files" : "(" + joined(option.choices, " ") + ")");
}

std::string zsh_arguments(const HelpText& help, const std::string& indent) {
  std::string out;
  for (const auto& option : help.options)
    for (const auto& name : option.names)
      out += fmt::format("{}'{}[{}]{}' \\\n", indent, name, quoted(option.description, "[]:\\"),
                         zsh_value(option));
  return out;
}

std::string fish_options(const std::string& program, const HelpText& help,
                         const std::string& condition) {
  std::string out;
  for (const auto& option : help.options) {
    out += "complete -c " + program + condition;
    for (const auto& name : option.names)
      out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    if (!option.choices.empty())
      out += " -x -a '" + joined(option.choices, " ") + "'";
    else if (option.takes_value)
      out += " -r";
    out += fmt::format(" -d '{}'\n", quoted(option.description));
  }
  return out;
}

/// Arms of a `case` of the previous word: the values of `help`'s options.
std::string bash_values(const HelpText& help, const std::string& indent) {
  std::string out;
  for (const auto& option : help.options)
    if (!option.choices.empty())
      out += fmt::format("{}{}) values='{}' ;;\n", indent, joined(option.names, "|"),
                         joined(option.choices, " "));
  return out;
}

/// Sets `values` by the option before the cursor.
std::string bash_values(const ProgramHelp& program) {
  std::string arms = bash_values(program.top, "    ");
  for (const auto& [name, help] : program.subcommands) arms += bash_values(help, "    ");
  return arms.empty() ? "" : "  case ${COMP_WORDS[COMP_CWORD-1]} in\n" + arms + "  esac\n";
}

}  // namespace

std::string bash_completion(const ProgramHelp& program) {
  const auto function = function_name(program.name);
  std::string out = fmt::format(kHead, program.name);
  out += function + "() {\n  local word=${COMP_WORDS[COMP_CWORD]} words=";
  out += fmt::format("'{}'\n", option_words(program.top));
  const auto values = bash_values(program);
  if (!values.empty()) out += "  local values=\n" + values;
  if (!program.subcommands.empty()) {
    out += "  case ${COMP_WORDS[1]} in\n";
    std::string subcommands;
    for (const auto& [name, help] : program.subcommands) {
      out += fmt::format("    {}) ((COMP_CWORD < 2)) || words='{}' ;;\n", name, option_words(help));
      subcommands += " " + name;
    }
    out += fmt::format("  esac\n  ((COMP_CWORD != 1)) || words+='{}'\n", subcommands);
  }
  if (!values.empty())
    out +=
        "  if [[ $values ]]; then\n    mapfile -t COMPREPLY < <(compgen -W \"$values\" -- "
        "\"$word\")\n"
        "    return\n  fi\n";
  out += program.subcommands.empty() ? "  if [[ $word == -* ]]; then\n"
                                     : "  if [[ $word == -* || $COMP_CWORD == 1 ]]; then\n";
  out += "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n  fi\n}\n";
  // Without matches bash completes files.
  out += fmt::format("complete -o default -F {} {}\n", function, program.name);
  return out;
}

std::string zsh_completion(const ProgramHelp& program) {
  std::string out = "#compdef " + program.name + "\n" + fmt::format(kHead, program.name);
  const auto plain =
      "  _arguments -S \\\n" + zsh_arguments(program.top, "    ") + "    '*:file:_files'\n";
  if (program.subcommands.empty()) return out + plain.substr(2);
  out += "if ((CURRENT == 2)) && [[ $PREFIX != -* ]]; then\n  _values subcommand \\\n";
  std::size_t left = program.subcommands.size();
  for (const auto& [name, help] : program.subcommands)
    out += fmt::format("    '{}[{}]'{}\n", name, quoted(program.top.subcommands.at(name), "[]:\\"),
                       --left ? " \\" : "");
  out += "  return\nfi\ncase $words[2] in\n";
  for (const auto& [name, help] : program.subcommands)
    out += fmt::format("{})\n  _arguments -S \\\n{}    '*:file:_files'\n  ;;\n", name,
                       zsh_arguments(help, "    "));
  return out + "*)\n" + plain + "  ;;\nesac\n";
}

std::string fish_completion(const ProgramHelp& program) {
  std::string out = fmt::format(kHead, program.name);
  if (program.subcommands.empty()) return out + fish_options(program.name, program.top, "");
  out += fish_options(program.name, program.top, " -n __fish_use_subcommand");
  for (const auto& [name, help] : program.subcommands)
    out += fmt::format("complete -c {} -n __fish_use_subcommand -a {} -d '{}'\n", program.name,
                       name, quoted(program.top.subcommands.at(name)));
  for (const auto& [name, help] : program.subcommands)
    out +=
        fish_options(program.name, help, fmt::format(" -n '__fish_seen_subcommand_from {}'", name));
  return out;
}

}  // namespace heddle::test
