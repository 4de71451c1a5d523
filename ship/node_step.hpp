// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "base/fd.hpp"
#include "ship/engine.hpp"
#include "ship/receive_bundle.hpp"

namespace heddle::ship {

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
