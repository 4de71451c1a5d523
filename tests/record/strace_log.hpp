// SPDX-License-Identifier: MIT
#pragma once

#include <set>
#include <string>
#include <vector>

namespace heddle::test {

/// One system call of a `strace -f -y -e trace=%file,%process,fchdir -o` log.
struct FileCall {
  int tid = 0;
  std::string name;
  std::vector<std::string> args;   ///< as strace writes them
  std::vector<std::string> paths;  ///< absolute, not resolved, in the order of the arguments
  std::string link_target;         ///< of symlink
  long result = -1;
  std::string error;   ///< ENOENT; empty: it went well
  std::string opened;  ///< the file that the descriptor it gave is of, resolved by the kernel

  bool has_flag(const std::string& flag) const;
};

/// The calls that name files, in the log's order, and the threads that made them. `cwd`: where the
/// first process began.
struct StraceLog {
  std::vector<FileCall> calls;
  std::set<int> tids;
};
StraceLog parse_file_calls(const std::string& log, const std::string& cwd);

}  // namespace heddle::test
