// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fuseovl/supervise/hand_over.hpp"

namespace heddle {

/// What a reload's loader (HandOver::Task::load) made ready, as its supervisor gets it. The
/// envelope is read by a supervisor of another version than the loader's.
struct NextContent {
  std::string bytes;        ///< fuseovl/supervise/parcel.hpp's
  std::vector<int> places;  ///< each descriptor: place among those handed over, or -1-n: `fds`[n]
  std::vector<Fd> fds;      ///< new ones
  bool map_exchanged = false;  ///< false: it is the content that was handed over
  std::string report;          ///< what is different, in one line
  std::string warnings;        ///< lines about files that differ from the map
};

/// From the loader, over HandOver::answer. `fds` in place of next.fds: they stay the caller's.
Result<void> send_next_content(int socket, const NextContent& next, std::span<const int> fds);
void send_load_failure(int socket, const Error& error, const std::string& warnings);

/// Collects what the loader sends, a packet at a time.
class NextContentReceiver {
 public:
  /// One more packet is there. True: that was all of it. Fails as the loader did, or when it ended.
  Result<bool> receive(int socket);
  NextContent take() { return std::move(next_); }
  const std::string& warnings() const { return next_.warnings; }

 private:
  NextContent next_;
};

}  // namespace heddle
