// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace heddle::test {

struct RunOptions {
  /// Changes to our environment: "NAME=value" sets, "NAME" alone removes.
  std::vector<std::string> env;
  std::string cwd;    ///< empty: ours
  std::string input;  ///< what the child reads from its stdin
  /// Then the child's process group is killed, and timed_out is set.
  std::chrono::milliseconds deadline{60'000};
};

struct RunResult {
  int status = -1;  ///< exit status, 128+n for signal n
  std::string out;
  std::string err;
  bool timed_out = false;
};

/// The file that the kernel executes for `program`: that, or in a cross build, whose tests run in
/// qemu-user (HEDDLE_EMULATOR), a copy of the emulator beside it. Each program has one of its own:
/// a program that asks for the attributes of /proc/self/exe gets those of the emulator.
std::string executed_file(const std::string& program);

/// Runs `argv` (argv[0] is searched in PATH, no shell) in a new process group and collects its
/// output. Returns when the child ends, even if a daemon of the child still holds the pipes. Throws
/// heddle::Error when the child cannot be started.
RunResult run(const std::vector<std::string>& argv, const RunOptions& options = {});

/// As run(), for set-up: throws heddle::Error with the child's stderr unless it exits with 0.
RunResult run_checked(const std::vector<std::string>& argv, const RunOptions& options = {});

/// The shell-quoted form of `argv`, for messages.
std::string to_shell(const std::vector<std::string>& argv);

}  // namespace heddle::test
