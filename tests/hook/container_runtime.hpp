// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "tests/support/run.hpp"

namespace heddle::test {

/// The user whose containers are not root's.
inline constexpr unsigned kUser = 1500;

/// As on most nodes: /dev/fuse is open to all.
struct Session {
  std::string home;
  std::string run_directory;  ///< $XDG_RUNTIME_DIR
  unsigned uid = kUser;
  std::string fuse = "open";    ///< or "absent"
  std::string before = "true";  ///< a script of root's, in the session's mount namespace
};

/// Words before those of a program that is to run in such a session.
std::vector<std::string> words_of(const Session& session);

/// runc or crun as it runs here.
class Runtime {
 public:
  explicit Runtime(const std::string& name, const std::string& state_directory);
  std::vector<std::string> command(const std::vector<std::string>& arguments) const;
  /// `run` of a bundle.
  RunResult run(const std::string& bundle, const std::string& id,
                const RunOptions& options = {}) const;
  std::vector<std::string> run_command(const std::string& bundle, const std::string& id) const;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::string state_;
};

/// Why `name` cannot run a container on this machine; empty: it can. Asked once a process.
std::string why_not(const std::string& name);

}  // namespace heddle::test
