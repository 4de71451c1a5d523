// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/run.hpp"

namespace heddle::test {

/// File system calls of one program while it starts, from execve to main and later.
struct ProgramStart {
  std::string program;  ///< the path execve was given
  int pid = 0;
  /// Failed open, stat, access and readlink calls from exec until ld.so has relocated the last
  /// library, without ld.so's own one of /etc/ld.so.preload.
  std::vector<std::string> failed;
  /// Library paths opened in the same time.
  std::vector<std::string> opened;
  /// Failed calls for names of libraries (`*.so`, `*.so.*`) after it: dlopen.
  std::vector<std::string> failed_later;
};

struct StraceResult {
  RunResult run;
  std::vector<ProgramStart> starts;  ///< in the order of the execs, children included

  /// The start of the last program whose path ends in `suffix`; throws heddle::Error without one.
  const ProgramStart& start_of(const std::string& suffix) const;
};

/// Runs `argv` under `strace -f` and sorts its file calls. The first prlimit64(RLIMIT_STACK) marks
/// the end of ld.so's work: glibc's __libc_early_init makes it after the last relocation and before
/// the first constructor. A static program has no such call before main, so all calls up to it
/// count. Throws heddle::Error when strace cannot run (see strace_works()).
StraceResult strace_counts(const std::vector<std::string>& argv, const RunOptions& options = {});

/// {pid, call} of each line of a log of `strace -f -o`; interrupted calls are joined.
std::vector<std::pair<int, std::string>> strace_calls(const std::string& log);

/// Whether strace is installed and may trace.
bool strace_works();
/// Whether strace leaves alone a daemon that the traced program starts and waits for. It does not
/// under a seccomp filter (base/child.cpp), which ./dev test --old-kernel sets; since Linux 5.2
/// another process starts the daemon of a shared mount.
bool strace_leaves_daemons();

}  // namespace heddle::test

#define HEDDLE_NEEDS_UNTRACED_DAEMONS()         \
  if (!::heddle::test::strace_leaves_daemons()) \
  HEDDLE_SKIP("under a seccomp filter strace stops the daemon that the program waits for")
