// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <algorithm>
#include <vector>

#include "base/fd.hpp"

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

/// Whether poll(2) has said something of `fd`, which may be none.
inline bool has_input(const std::vector<pollfd>& polled, const Fd& fd) {
  return fd && std::any_of(polled.begin(), polled.end(), [&](const pollfd& entry) {
           return entry.fd == fd.get() && entry.revents != 0;
         });
}

}  // namespace heddle
