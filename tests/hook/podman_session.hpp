// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "tests/support/run.hpp"

namespace heddle::test {

/// podman of a user, or of root, as it runs here: all its files are in a directory of the test's.
class PodmanSession {
 public:
  /// Makes `directory` his; others may pass through it.
  PodmanSession(std::string directory, std::string runtime, unsigned uid);
  /// A user's podman leaves a process that keeps his namespaces, with a copy of each mount that was
  /// there, other tests' too: ends it.
  ~PodmanSession();
  PodmanSession(const PodmanSession&) = delete;
  PodmanSession& operator=(const PodmanSession&) = delete;

  const std::string& runtime() const { return runtime_; }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  /// Its directory of hooks is "hooks.d".
  std::vector<std::string> words() const;
  /// `podman run`.
  std::vector<std::string> run_words(const std::vector<std::string>& options) const;
  /// Runs `words` as him. /mnt is his $XDG_RUNTIME_DIR. `before`: a script of root's, in the
  /// session's mount namespace.
  RunResult run(const std::vector<std::string>& words, const std::string& before = "true") const;

 private:
  std::string directory_;
  std::string runtime_;
  unsigned uid_;
};

}  // namespace heddle::test
