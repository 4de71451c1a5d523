// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <cstdint>
#include <vector>

#include "base/fd.hpp"

namespace heddle {

/// Whether poll(2) has said something of `fd`, which may be none.
bool has_input(const std::vector<pollfd>& polled, const Fd& fd);

/// A listening socket in a poll(2) loop. A client that cannot be taken, for want of a descriptor or
/// of memory, stays in line, and poll(2) would say so again at once: it is left alone for a moment.
class Listener {
 public:
  Listener() = default;
  explicit Listener(Fd socket) : socket_(std::move(socket)) {}

  explicit operator bool() const { return static_cast<bool>(socket_); }
  int get() const { return socket_.get(); }
  /// Listens no more.
  void reset() { *this = Listener(); }

  /// For poll(2); nothing while it is left alone.
  void add_to(std::vector<pollfd>& polled) const;
  /// When to ask again in any case, monotonic_ms(); 0: never.
  std::int64_t wakes_at() const { return rests_until_; }
  /// Whether to accept(), by what poll(2) said and the time.
  bool is_due(const std::vector<pollfd>& polled) const;
  /// The next client, close-on-exec; none: nobody waits, or nobody who can be taken now. Waits
  /// never.
  Fd accept();

 private:
  Fd socket_;
  std::int64_t rests_until_ = 0;  ///< 0: it does not
};

}  // namespace heddle
