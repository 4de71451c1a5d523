// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>

#include "record/trace/event.hpp"

namespace heddle::loopback {

/// Which event of a request this is, so that none is told twice when a worker dies and the request
/// comes again.
struct Telling {
  std::atomic<std::uint64_t>* told = nullptr;  ///< the request's note, the log's to write; none: no
  unsigned number = 0;                         ///< from 1
};

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
  /// exe is then ended by a NUL and stays, for the workers after this one too. It may wait while
  /// its writer is behind.
  virtual void add(trace::Event& event, const Telling& telling) = 0;
  /// How many events the note of a dead worker's request stands for.
  virtual unsigned told(std::uint64_t note) const = 0;
};

/// Looked up in the root by fs-record's own child just before exec: the sign for start().
inline constexpr const char* kStartName = ".heddle-record-start";

}  // namespace heddle::loopback
