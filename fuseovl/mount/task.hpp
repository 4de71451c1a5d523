// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>

#include "base/listener.hpp"
#include "base/process.hpp"

namespace heddle {

/// Work in a process of its own, for a loop that must not wait for it: files may lie where nothing
/// answers. It ends with this process.
class Task {
 public:
  /// Starts `work`, which has our standard descriptors, `kept` and no other. `limit`: how long it
  /// may take (0: it knows itself).
  static Result<Task> start(const std::function<Result<void>()>& work,
                            std::chrono::milliseconds limit = {}, int kept = -1);

  /// Readable when it has ended.
  int ended() const { return ended_.get(); }
  bool has_ended(const std::vector<pollfd>& polled) const { return has_input(polled, ended_); }
  /// When it takes too long, monotonic_ms(); 0: never.
  std::int64_t late_at() const { return late_at_; }
  /// Of one that has ended or is late: what `work` said or threw, errno included; ETIMEDOUT when it
  /// is late.
  Result<void> result();

 private:
  Task(Child child, Fd ended, Fd words, std::int64_t late_at)
      : child_(std::move(child)),
        ended_(std::move(ended)),
        words_(std::move(words)),
        late_at_(late_at) {}
  Child child_;
  Fd ended_;  ///< readable when it has ended
  Fd words_;
  std::int64_t late_at_;
};

}  // namespace heddle
