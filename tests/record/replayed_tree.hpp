// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <string>

#include "tests/record/strace_log.hpp"

namespace heddle::test {

/// The file tree as it was at each call of a log: the files below `work` as they were before the
/// run, all else as it is now, and what the calls made and removed.
class ReplayedTree {
 public:
  /// Takes in what is below `work` now: before the run.
  explicit ReplayedTree(const std::string& work);

  /// The first component of `path` that is not there, in its resolved folder: what a file system is
  /// asked for and misses. Empty when all are there, or the path ends at a file used as a folder.
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
    bool blocked = false;  ///< `end` is no folder, and more was to come
  };
  Entry look(const std::string& path) const;
  Walk walk(std::string path, bool follow_last) const;
  void move(const std::string& from, const std::string& to);

  std::string work_;
  std::map<std::string, Entry> known_;
  std::set<std::string> special_;
};

}  // namespace heddle::test
