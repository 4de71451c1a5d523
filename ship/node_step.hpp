// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "base/fd.hpp"
#include "ship/receive_bundle.hpp"

namespace heddle::ship {

using Words = std::vector<std::string>;

/// Splits `text` into the words of a command, as a shell would without expanding anything.
Words split_words(const std::string& text);
/// Replaces each `{name}` of `values` in each word; a word stays one word.
Words fill_in(Words words, const std::vector<std::pair<std::string, std::string>>& values);

/// Runs a command, found in PATH, with stdout on the descriptor `out` if it is >= 0, and without
/// stdin, which may be the batch script's. Result: its stdout otherwise, and its exit status.
struct Output {
  int status = 0;
  std::string text;
};
Result<Output> run_command(const Words& words, int out = -1);

/// A running launcher (srun, ...) with one fs-ship --receive a node.
class NodeStep {
 public:
  static Result<NodeStep> start(const Words& words);

  /// Reads answers, in any order, until `until` returns true for one, or the launcher has ended, or
  /// `end`, which `until` may change.
  void gather(const std::chrono::steady_clock::time_point& end,
              const std::function<bool(const Answer&)>& until);
  /// Tells all receivers that the bundle has been sent.
  void go();
  /// Ends receivers that still wait, and the launcher.
  void stop();

 private:
  NodeStep(Child child, Fd in, Fd out)
      : child_(std::move(child)), in_(std::move(in)), out_(std::move(out)) {}
  std::optional<Child> child_;
  Fd in_;
  Fd out_;
  std::string rest_;  ///< of a line
};

}  // namespace heddle::ship
