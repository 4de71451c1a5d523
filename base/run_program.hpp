// SPDX-License-Identifier: MIT
#pragma once

// Programs that are run for what they print. Each has a time limit: a program of the machine may
// wait without end for a server, and so would heddle.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/channel.hpp"
#include "base/fd.hpp"

namespace heddle {

/// What becomes of a program's standard error.
enum class Messages : std::uint8_t { shown, dropped, collected };

struct ReadOptions {
  /// Then the program gets SIGTERM, two seconds later SIGKILL, and the failure is ETIMEDOUT.
  /// kNoLimit is for heddle's own programs, which have limits, and those that a user watches.
  std::chrono::milliseconds limit;
  /// Of standard output, and of standard error. With more the program is killed: EFBIG.
  std::size_t most_bytes = 1U << 20;
  Messages messages = Messages::shown;
  /// As SpawnOptions::fds. Standard input is /dev/null and standard output is collected unless they
  /// are here.
  std::vector<std::pair<int, int>> fds{};
  /// As SpawnOptions::environment.
  std::optional<std::vector<std::string>> environment{};
  /// The write end of a pipe, or -1: the program is killed when its read end is closed: ECANCELED.
  int reader = -1;
};

struct Output {
  int status = 0;  ///< as of Child::wait()
  std::string out;
  std::string err;
};

/// Starts `path` by spawn() and waits for its end, not for that of processes that it leaves behind,
/// even if they hold its output. A program that does not die is abandoned.
Result<Output> run_and_read(const std::string& path, const std::vector<std::string>& argv,
                            const ReadOptions& options);

/// Reads what a program of another process writes into the two pipes, until both end. Failures as
/// of run_and_read(); `name` is for messages.
Result<Output> read_output(const std::string& name, const Fd& out, const Fd& err,
                           std::chrono::milliseconds limit, std::size_t most_bytes);

/// A file in memory with `text`, as a program's standard input.
Result<Fd> memory_file(std::string_view text);

}  // namespace heddle
