// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/fd.hpp"
#include "record/loopback/access_log.hpp"
#include "record/loopback/shared_pages.hpp"

namespace heddle {

/// Events on their way from the threads of a worker to the supervisor, which writes them. It holds
/// kEvents at most; who puts in more waits for the writer. An event is in it from one store
/// on, and stays in it when the worker dies: nothing is lost, and nothing is told twice.
/// Made by the supervisor, before its workers.
class EventRing {
 public:
  static constexpr std::uint64_t kEvents = 4096;
  static constexpr std::uint64_t kBytes = 1U << 20;

  /// Fails where there is no descriptor left for the bell.
  static Result<std::unique_ptr<EventRing>> create();

  /// In a worker. Copies the event but for `exe`, whose bytes must stay; any thread. `telling` is
  /// noted so that told() knows of it; an event noted as told before is passed over.
  void add(const trace::Event& event, const loopback::Telling& telling);
  /// How many events are in the ring of those that a dead worker's note stands for.
  unsigned told(std::uint64_t note) const;
  /// In a new worker: goes on where the one before stopped.
  void take_over();

  // In the supervisor.
  bool empty() const { return shared().head == shared().tail; }
  /// Calls take(event) for all there are, oldest first.
  template <class Take>
  void drain(Take take) {
    const std::uint64_t head = shared().head;
    for (std::uint64_t at = shared().tail; at != head; ++at) {
      const Entry& entry = entry_at(at);
      take(entry.event);
      shared().freed = entry.bytes_end;
      shared().tail = at + 1;
    }
    wake_waiting();
  }
  /// bell() becomes readable once `events` more than now are there, or a worker waits for room.
  void ring_after(std::uint64_t events) { shared().ring_at = shared().tail + events; }
  int bell() const { return bell_.get(); }
  /// Makes bell() silent again.
  void answer_bell() const;

 private:
  struct Entry {
    trace::Event event;
    std::uint64_t bytes_end;  ///< up to here the bytes are this event's and earlier ones'
  };
  struct Shared {
    std::atomic<std::uint64_t> head;   ///< events put in
    std::atomic<std::uint64_t> tail;   ///< events taken out
    std::atomic<std::uint64_t> freed;  ///< bytes that those used
    std::atomic<std::uint64_t> ring_at;
    std::atomic<std::uint32_t> waiting;  ///< a futex: 1 while somebody waits for room
  };
  static constexpr std::size_t kEntriesAt = 4096;
  static constexpr std::size_t kBytesAt = kEntriesAt + kEvents * sizeof(Entry);

  explicit EventRing(Fd bell) : pages_(kBytesAt + kBytes), bell_(std::move(bell)) {}
  Shared& shared() const { return *reinterpret_cast<Shared*>(pages_.data()); }
  Entry& entry_at(std::uint64_t number) const {
    return reinterpret_cast<Entry*>(pages_.data() + kEntriesAt)[number % kEvents];
  }
  std::uint64_t room_for(std::size_t size);
  void wake_waiting();

  loopback::SharedPages pages_;
  Fd bell_;
  std::mutex mutex_;  ///< of the threads that put in
  std::uint64_t next_byte_ = 0;
};

}  // namespace heddle
