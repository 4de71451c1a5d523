// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/child.hpp"
#include "base/run_program.hpp"

namespace heddle::hook {

// fs-hook's own file, and the programs that it starts, installed beside it.

/// Executes this program again, from a read-only mount of its file or a sealed copy in memory, and
/// returns only in that process. A container's process may open the hook's file by /proc/PID/exe,
/// and must not be able to write to the host's program (CVE-2019-5736; runc does the same).
Result<void> run_sealed(char** argv);

/// The path of the installed fs-hook. Fails unless it and the programs that it starts are trusted
/// (base/trusted_path.hpp).
Result<std::string> trusted_hook();

struct HelperRequest {
  std::string name;  ///< of the program
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  ///< besides PATH and LC_ALL; the hook's is not passed on
  std::vector<std::pair<int, int>> fds;
  int reader = -1;  ///< as ReadOptions::reader
};

/// Starts the program; it inherits stdout and stderr unless `fds` has others.
Result<Child> start_helper(const HelperRequest& request);

/// run_and_read() of it, without a time limit: the runtime, or the watchdog, ends the hook.
Result<Output> run_helper(const HelperRequest& request, std::size_t most_bytes);

/// `name: a: b: c\nhint: d\n` as `a: b: c (d)`, since runtimes show one line.
std::string one_line(const std::string& name, const std::string& messages);

}  // namespace heddle::hook
