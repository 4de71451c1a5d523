// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/child.hpp"

namespace heddle::hook {

// fs-hook itself and the programs of heddle that it starts, installed beside it.

/// Runs this program anew, from a read-only mount of its file or a sealed copy in memory, and
/// returns in that one only. A process of a container that shares a PID namespace with the hook, or
/// that it enters, may reach the hook's file by /proc/PID/exe: to write there must not be to write
/// the host's program (CVE-2019-5736; runc does the same).
Result<void> run_sealed(char** argv);

/// The installed fs-hook's path, of a sealed one too, after a check that it and the programs that
/// it starts are trusted (base/trusted_path.hpp).
Result<std::string> trusted_hook();

struct HelperRequest {
  std::string name;  ///< of the program
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  ///< besides PATH and LC_ALL: nothing of the caller's
  std::vector<std::pair<int, int>> fds;
  /// The write end of a pipe: when its read end is closed, the program is killed. -1: none.
  int reader = -1;
};

/// Starts it; its stdout and stderr are ours unless `fds` says otherwise.
Result<Child> start_helper(const HelperRequest& request);

struct Output {
  int status = 0;
  std::string out;
  std::string err;
};
/// Runs it to its end and collects what it prints: at most `limit` bytes each.
Result<Output> run_helper(const HelperRequest& request, std::size_t limit);

/// Reads both pipes to their ends, so that neither can fill up and stop the writer. `name` is for
/// messages. Failure: more than `limit` bytes each; ETIMEDOUT after `time`; ECANCELED when nobody
/// reads the pipe `reader` any more.
Result<Output> read_output(const std::string& name, const Pipe& out, const Pipe& err,
                           std::size_t limit, std::optional<std::chrono::milliseconds> time,
                           int reader = -1);

/// `name: a: b: c\nhint: d\n` as `a: b: c (d)`: runtimes show one line.
std::string one_line(const std::string& name, const std::string& messages);

}  // namespace heddle::hook
