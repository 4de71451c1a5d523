// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace heddle {

/// A command line `PROGRAM [options] [--] APP ARGS`, split before APP, whose arguments must not
/// reach the option parser.
struct SplitCommandLine {
  std::vector<std::string> options;  ///< without argv[0], in order
  std::vector<std::string> command;  ///< APP ARGS, may be empty
};
/// `app` defines which options take a value.
SplitCommandLine split_command_line(const CLI::App& app, int argc, const char* const* argv);

/// Sets the help format of `app` and of subcommands that are added later: `Usage: ` and this text
/// (empty: CLI11's), and for each option its names, its value's type and its description.
void set_usage(CLI::App& app, std::string usage);

/// Makes an empty value of any option or argument an error, since it may be a script's unset
/// variable.
void forbid_empty_values(CLI::App& app);

/// Adds an option whose value is one of `choices`. The help and the error list them.
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
  // A check and not a conversion, whose message CLI11 would replace.
  return app
      .add_option_function<std::string>(
          names, [](const std::string&) {}, text)
      ->check(CLI::Validator(choose, ""))
      ->type_name(list);
}

/// A check that an option's value is a number from `least` to `most`, and of this type. CLI11's own
/// says in another form each time what is wrong.
template <class Number>
CLI::Validator number_from(Number least, Number most = std::numeric_limits<Number>::max()) {
  const auto look = [least, most](const std::string& given) -> std::string {
    Number number{};
    const char* const end = given.data() + given.size();
    const auto parsed = std::from_chars(given.data(), end, number);
    if (parsed.ec == std::errc() && parsed.ptr == end && number >= least && number <= most)
      return {};
    auto wanted =
        fmt::format("'{}' is not a {}number ", given, std::integral<Number> ? "whole " : "");
    if (most == std::numeric_limits<Number>::max())
      return wanted + fmt::format("of {} or more", least);
    return wanted + fmt::format("from {} to {}", least, most);
  };
  return CLI::Validator(look, "");
}

/// Reports an error of the command line, with `--help` as the hint. Result: exit_usage.
int usage_error(const std::string& program, const std::string& what);

/// Parses `options`; prints help, version or an error. Result: -1 to continue, else the exit
/// status.
int parse_options(CLI::App& app, std::vector<std::string> options);

/// The bytes of `256M` or `1.5G`: a number, optionally with K, M, G or T (powers of 1024), and B or
/// iB. nullopt: not a size, or beyond 1e18.
std::optional<std::uint64_t> parse_byte_size(std::string_view text);

}  // namespace heddle
