// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <cstdint>
#include <vector>

namespace heddle {

/// Who has work of its own to do in the supervisor's loop, between what the supervisor does. It is
/// no thread: the worker is forked from the supervisor, and would find locked what a thread of its
/// holds at that moment.
class Attendant {
 public:
  Attendant() = default;
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;
  virtual ~Attendant() = default;

  /// Adds the descriptors that it waits for.
  virtual void add_to(std::vector<pollfd>& polled) const = 0;
  /// What poll(2) said, also when nothing came or it was for others. It must not block.
  virtual void hear(const std::vector<pollfd>& polled) = 0;
  /// When it wants to be asked again in any case, monotonic_ms(); 0: never.
  virtual std::int64_t wakes_at() const = 0;
};

}  // namespace heddle
