// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "tests/docs/help_text.hpp"

namespace heddle::test {
namespace {

constexpr const char* kHead =
    "# SPDX-License-Identifier: MIT\n# Made by `./dev completions` from {} --help; do not edit.\n";

std::string option_words(const HelpText& help) {
  std::string words;
  for (const auto& option : help.options)
    for (const auto& name : option.names) words += (words.empty() ? "" : " ") + name;
  return words;
}

std::string subcommand_words(const ProgramHelp& program) {
  std::string words;
  for (const auto& [name, help] : program.subcommands) words += (words.empty() ? "" : " ") + name;
  return words;
}

/// `description` within single quotes, and without what `special` characters would mean.
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
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  return fmt::format("{}", fmt::join(words, between));
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

/// Words for the values of `help`'s options, as arms of a case of the word before.
std::string bash_values(const HelpText& help, const std::string& indent) {
  std::string out;
  for (const auto& option : help.options)
    if (!option.choices.empty())
      out += fmt::format("{}{}) values='{}' ;;\n", indent, joined(option.names, "|"),
                         joined(option.choices, " "));
  return out;
}

/// Sets `values` by the option that the word before is.
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
    for (const auto& [name, help] : program.subcommands)
      out += fmt::format("    {}) ((COMP_CWORD < 2)) || words='{}' ;;\n", name, option_words(help));
    out +=
        fmt::format("  esac\n  ((COMP_CWORD != 1)) || words+=' {}'\n", subcommand_words(program));
  }
  if (!values.empty())
    out +=
        "  if [[ $values ]]; then\n    mapfile -t COMPREPLY < <(compgen -W \"$values\" -- "
        "\"$word\")\n"
        "    return\n  fi\n";
  out += program.subcommands.empty() ? "  if [[ $word == -* ]]; then\n"
                                     : "  if [[ $word == -* || $COMP_CWORD == 1 ]]; then\n";
  out += "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n  fi\n}\n";
  // No words of ours: files and programs, as for any command.
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
