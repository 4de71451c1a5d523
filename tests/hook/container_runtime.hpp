// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "tests/support/run.hpp"

namespace heddle::test {

/// The uid of the unprivileged user in these tests.
inline constexpr unsigned kUser = 1500;

/// A login session of a user.
struct Session {
  std::string home;
  std::string run_directory;  ///< $XDG_RUNTIME_DIR
  unsigned uid = kUser;
  std::string fuse = "open";    ///< mode of /dev/fuse: open to all, or "absent"
  std::string before = "true";  ///< a script that root runs in the session's mount namespace
};

/// The command line that runs the words after it in `session`.
std::vector<std::string> session_command(const Session& session);

/// runc or crun.
class Runtime {
 public:
  explicit Runtime(const std::string& name, const std::string& state_directory);
  std::vector<std::string> command(const std::vector<std::string>& arguments) const;
  /// Runs `run` for a bundle, to its end.
  RunResult run(const std::string& bundle, const std::string& id,
                const RunOptions& options = {}) const;
  std::vector<std::string> run_command(const std::string& bundle, const std::string& id) const;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::string state_;
};

/// Why `name` cannot run a container on this machine; empty: it can. Tried once per process.
std::string why_not(const std::string& name);

}  // namespace heddle::test
