// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "tests/support/run.hpp"

namespace heddle::test {

/// What one execve'd program image asked of the file system while it started.
struct ProgramStart {
  std::string program;  ///< the path execve was given
  int pid = 0;
  /// open, stat, access and readlink calls that failed between exec and main, constructors included
  /// only as far as they come before ld.so is done; /etc/ld.so.preload is ld.so's own and left out.
  std::vector<std::string> failed;
  /// Library paths opened with success in the same time.
  std::vector<std::string> opened;
  /// Failed calls for names of libraries (`*.so`, `*.so.*`) after that: dlopen.
  std::vector<std::string> failed_later;
};

struct StraceResult {
  RunResult run;
  std::vector<ProgramStart> starts;  ///< in the order of the execs, children included

  /// The start of the last program whose path ends in `suffix`; throws heddle::Error without one.
  const ProgramStart& start_of(const std::string& suffix) const;
};

/// Runs `argv` under `strace -f` and sorts its file calls. ld.so is taken to be done at the first
/// prlimit64(RLIMIT_STACK): glibc's __libc_early_init makes it after the last library is relocated
/// and before the first constructor. A static program has no such call before main: everything up
/// to it counts. Throws heddle::Error when strace cannot run (see strace_works()).
StraceResult strace_counts(const std::vector<std::string>& argv, const RunOptions& options = {});

/// Whether strace is there and may trace.
bool strace_works();
/// Whether a daemon that a traced program starts and waits for runs untraced: not under a seccomp
/// filter (base/child.cpp), as ./dev test --old-kernel sets one. A mount that others share has been
/// started elsewhere (Linux 5.2).
bool strace_leaves_daemons();

}  // namespace heddle::test

#define HEDDLE_NEEDS_UNTRACED_DAEMONS()         \
  if (!::heddle::test::strace_leaves_daemons()) \
  HEDDLE_SKIP("under a seccomp filter strace stops the daemon that the program waits for")
