// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/process.hpp"

namespace heddle {

/// Whether a map can be served on this node: it is the one that was asked for, and every file of
/// the host is still as it says. Found out by a process of its own: files may lie where nothing
/// answers for long, and other containers must not wait for that.
class NodeCheck {
 public:
  /// Starts it. `id`: the hash of the map's bytes; `limit`: how long a file system may take for one
  /// answer.
  static Result<NodeCheck> start(const std::string& id, const std::string& map,
                                 std::chrono::milliseconds limit);

  /// Readable when it is done.
  int ended() const { return ended_.get(); }
  /// ESTALE: files differ from the map.
  Result<void> result();

 private:
  NodeCheck(Child child, Fd ended, Fd words)
      : child_(std::move(child)), ended_(std::move(ended)), words_(std::move(words)) {}
  Child child_;
  Fd ended_;  ///< a pidfd
  Fd words_;
};

}  // namespace heddle
