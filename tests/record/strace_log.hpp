// SPDX-License-Identifier: MIT
#pragma once

#include <map>
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

/// The file tree as it was at each call of a log: the files below `work` as they were before the
/// run, all else as it is now, and what the calls made and removed.
class ReplayedTree {
 public:
  /// Takes in what is below `work` now: before the run.
  explicit ReplayedTree(const std::string& work);

  /// The first component of `path` that is not there, in its resolved directory: what a file system
  /// is asked for and misses. Empty when all are there, or the path ends at a file used as a
  /// directory.
  std::string first_missing(const std::string& path, bool follow_last) const;
  /// `path` with its links resolved, the last component as it is.
  std::string place_of(const std::string& path) const;
  /// Whether the log made a FIFO, a socket or a device there.
  bool is_special(const std::string& path) const { return special_.contains(path); }
  /// Makes the change that a call which went well has made.
  void apply(const FileCall& call);

 private:
  struct Entry {
    bool there = false;
    std::string link;  ///< where it leads, when it is a link
  };
  struct Walk {
    std::string end;       ///< resolved as far as it went
    bool missing = false;  ///< `end` is not there
    bool blocked = false;  ///< `end` is no directory, and more was to come
  };
  Entry look(const std::string& path) const;
  Walk walk(std::string path, bool follow_last) const;
  void move(const std::string& from, const std::string& to);

  std::string work_;
  std::map<std::string, Entry> known_;
  std::set<std::string> special_;
};

}  // namespace heddle::test
