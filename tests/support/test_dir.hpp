// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace heddle::test {

/// A private directory for one test case, removed when the case passed. After a failure it stays,
/// and its name and the command that repeats the case are printed. Never descends into a mount.
class TestDir {
 public:
  TestDir();
  TestDir(const TestDir&) = delete;
  TestDir& operator=(const TestDir&) = delete;
  ~TestDir();

  const std::string& path() const noexcept { return path_; }
  /// `path()/name`.
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// Polls `predicate` every few milliseconds until it is true or `deadline` has passed; returns its
/// last value. The only way a test may wait.
bool wait_until(std::chrono::milliseconds deadline, const std::function<bool()>& predicate);

/// The installed program `name` (`fs-mount`) in $HEDDLE_STAGE's bin, libexec/heddle or lib/heddle;
/// empty when it is not there. `./dev test` and `meson test` set HEDDLE_STAGE.
std::string staged_program(const std::string& name);

/// Whether `pid` names a process that runs: a zombie that no one has reaped yet does not.
bool is_running(int pid);

/// Number of entries in /proc/self/mountinfo whose line holds `text`.
std::size_t mounts_with(const std::string& text);

}  // namespace heddle::test

/// Ends the case as skipped, with its reason. Under CI a skip that tests/expected_skips.txt does
/// not list fails the run (`dev` looks through the results for all of them).
#define HEDDLE_SKIP(reason) GTEST_SKIP() << "skipped: " << (reason)

/// Skips unless `name` is staged; else `variable` is its path.
#define HEDDLE_STAGED(variable, name)                                \
  const std::string variable = ::heddle::test::staged_program(name); \
  if (variable.empty()) HEDDLE_SKIP(std::string(name) + " is not installed in $HEDDLE_STAGE")
