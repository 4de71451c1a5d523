// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "base/listener.hpp"
#include "base/mount_service.hpp"

namespace heddle {

/// The door of a mount service: those who connect stay here until they have said something. Who is
/// not trusted (base/run_directory.hpp) is sent away without a word; who says nothing goes after
/// some seconds, or when many others come: nobody holds anybody up.
class Reception {
 public:
  Reception() = default;
  explicit Reception(Listener listener) : listener_(std::move(listener)) {}

  explicit operator bool() const { return static_cast<bool>(listener_); }
  int listener() const { return listener_.get(); }
  /// Listens no more.
  void close() { *this = Reception(); }

  void add_to(std::vector<pollfd>& polled) const;
  /// When to call hear() in any case, monotonic_ms(); 0: never.
  std::int64_t wakes_at() const;
  /// Takes all in who wait at the door.
  void accept();
  bool is_empty() const { return silent_.empty(); }

  /// One who has spoken; the socket does not block.
  struct Visitor {
    Fd socket;
    MountMessage message;
  };
  /// By what poll(2) said. Those who said nonsense are told so, and gone.
  std::vector<Visitor> hear(const std::vector<pollfd>& polled);

 private:
  struct Silent {
    Fd socket;
    std::int64_t until;
  };
  Listener listener_;
  std::vector<Silent> silent_;  ///< the one who came first is the first
};

}  // namespace heddle
