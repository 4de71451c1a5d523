// SPDX-License-Identifier: MIT
#pragma once

#include <string>
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

/// Makes `--help` begin with `Usage: ` and this text.
void set_usage(CLI::App& app, std::string usage);

/// Makes an empty value of any option or argument an error: a script's variable that is not set
/// must not mean "none".
void forbid_empty_values(CLI::App& app);

/// Parses `options`, printing help, version or the error as CLI11 does. Result: -1 to go on, else
/// the exit status (exit_usage for an error).
int parse_options(CLI::App& app, std::vector<std::string> options);

}  // namespace heddle
