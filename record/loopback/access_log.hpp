// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "record/trace/event.hpp"

namespace heddle::loopback {

/// Who is told of each access. Called by the serving threads, many at once.
class AccessLog {
 public:
  virtual ~AccessLog() = default;
  /// The program is about to be executed: what came before was our own preparation.
  virtual void start() = 0;
  /// Whether events are wanted now; saves making them.
  virtual bool on() const noexcept = 0;
  /// Whether each read and write is an event of its own.
  virtual bool each_io() const noexcept = 0;
  /// `event.tid` is the caller's; ns is the log's to fill in, and so are pid and exe when pid is 0:
  /// the bytes of exe then stay as long as the log. It may wait while the trace cannot be written.
  virtual void add(trace::Event& event) = 0;
};

/// Looked up in the root by fs-record's own child just before exec: the sign for start().
inline constexpr const char* kStartName = ".heddle-record-start";

}  // namespace heddle::loopback
