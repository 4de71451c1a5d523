// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

namespace heddle {

/// A command line of the form `PROGRAM [options] [--] APP ARGS`, cut in front of APP: APP's words
/// must reach it as they are, so they are kept from the option parser.
struct SplitCommandLine {
  std::vector<std::string> options;  ///< without argv[0], in order
  std::vector<std::string> command;  ///< APP ARGS, may be empty
};
/// `app` tells which options take a value.
SplitCommandLine split_command_line(const CLI::App& app, int argc, const char* const* argv);

/// Gives `app`, and the sub-commands that are added later, the help that all programs have: `Usage:
/// ` and this text (empty: what CLI11 makes of the options), and of each option its names, its
/// value's type and its meaning; what else only concerns the parser stays out.
void set_usage(CLI::App& app, std::string usage);

/// Makes an empty value of any option or argument an error: a script's variable that is not set
/// must not mean "none".
void forbid_empty_values(CLI::App& app);

/// Adds an option whose value is one of `choices`, which help and the error for another word list.
template <class Value>
CLI::Option* add_choice(CLI::App& app, const std::string& names, Value& value,
                        const std::vector<std::pair<std::string, Value>>& choices,
                        const std::string& text) {
  std::string list;
  for (const auto& [word, meaning] : choices) list += (list.empty() ? "" : "|") + word;
  const auto choose = [&value, choices, list](const std::string& given) -> std::string {
    for (const auto& [word, meaning] : choices) {
      if (given != word) continue;
      value = meaning;
      return {};
    }
    return "'" + given + "' is not one of " + list;
  };
  // As a check, not as a conversion: only its message reaches the user whole.
  return app
      .add_option_function<std::string>(
          names, [](const std::string&) {}, text)
      ->check(CLI::Validator(choose, ""))
      ->type_name(list);
}

/// Says what is wrong with the command line, and where to read how it should be. Result:
/// exit_usage.
int usage_error(const std::string& program, const std::string& what);

/// Parses `options`; prints help and version, says an error as all programs do. Result: -1 to go
/// on, else the exit status (exit_usage for an error).
int parse_options(CLI::App& app, std::vector<std::string> options);

/// Bytes of `256M` or `1.5G`: a number, and K, M, G or T behind it, powers of 1024; `MB` and `MiB`
/// mean the same. nullopt: it is none, or beyond 1e18.
std::optional<std::uint64_t> parse_byte_size(std::string_view text);

}  // namespace heddle
