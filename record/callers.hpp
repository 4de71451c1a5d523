// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace heddle {

/// Who a thread belongs to.
struct Caller {
  std::int32_t pid = 0;
  std::string_view exe;  ///< lives as long as the Callers
};

/// Threads, their processes and executables, as /proc tells. The protocol gives a thread's id only.
/// What was read is believed while the thread keeps asking, until it executes something. Any
/// thread.
class Callers {
 public:
  /// `now_ns` is the event's time.
  Caller of(std::int32_t tid, std::uint64_t now_ns);
  /// `tid` has opened a program for execve: its executable is about to change.
  void executes(std::int32_t tid);

 private:
  struct Known {
    Caller caller;
    std::uint64_t seen_ns = 0;
    unsigned recheck = 0;  ///< how often to look at the executable again
  };
  std::string_view intern(std::string_view text);
  std::string_view read_exe(std::int32_t tid);
  std::mutex mutex_;
  std::unordered_map<std::int32_t, Known> known_;
  std::unordered_set<std::string> texts_;
};

}  // namespace heddle
