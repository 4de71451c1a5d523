// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace heddle::test {

/// A directory for one test case, removed when the case passes; removal does not descend into
/// mounts. After a failure it stays, and its name and the command that repeats the case are
/// printed.
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

/// Polls `predicate` every few milliseconds until it is true or `deadline` has passed; its last
/// value. Tests wait in no other way.
bool wait_until(std::chrono::milliseconds deadline, const std::function<bool()>& predicate);

/// The installed program `name` (`fs-mount`) in $HEDDLE_STAGE's bin, libexec/heddle or lib/heddle;
/// empty when it is not there. `./dev test` and `meson test` set HEDDLE_STAGE.
std::string staged_program(const std::string& name);

/// Whether `pid` is a live process; a zombie is not.
bool is_running(int pid);

/// Number of lines of /proc/self/mountinfo that contain `text`.
std::size_t mounts_with(const std::string& text);

}  // namespace heddle::test

/// Ends the case as skipped. Under CI a skip that tests/expected_skips.txt does not list fails the
/// run of `dev`.
#define HEDDLE_SKIP(reason) GTEST_SKIP() << "skipped: " << (reason)

/// `variable`: the staged program's path. Skips without it.
#define HEDDLE_STAGED(variable, name)                                \
  const std::string variable = ::heddle::test::staged_program(name); \
  if (variable.empty()) HEDDLE_SKIP(std::string(name) + " is not installed in $HEDDLE_STAGE")
