// SPDX-License-Identifier: MIT
#include "record/event_ring.hpp"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

namespace heddle {
namespace {

constexpr unsigned kNumberBits = 8;  // a request has a handful of events

std::uint64_t note_of(std::uint64_t head, unsigned number) { return head << kNumberBits | number; }
unsigned number_in(std::uint64_t note) { return note & ((1U << kNumberBits) - 1); }

}  // namespace

Result<std::unique_ptr<EventRing>> EventRing::create() {
  Fd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell) return fail_errno("", "cannot start the recorder");
  return std::unique_ptr<EventRing>(new EventRing(std::move(bell)));
}

void EventRing::take_over() {
  const std::uint64_t head = shared().head;
  next_byte_ = head == 0 ? 0 : entry_at(head - 1).bytes_end;
}

/// The place of `size` bytes in one piece, when there is room for them and for one event.
std::uint64_t EventRing::room_for(std::size_t size) {
  auto& ring = shared();
  std::uint64_t at = next_byte_;
  if (at % kBytes + size > kBytes) at += kBytes - at % kBytes;
  const auto has_room = [&] {
    return ring.head - ring.tail < kEvents && at + size - ring.freed <= kBytes;
  };
  while (!has_room()) {
    ring.waiting = 1;
    ::eventfd_write(bell_.get(), 1);
    if (has_room()) break;
    // Not longer than this, in case the supervisor has taken everything meanwhile.
    const timespec moment{0, 20'000'000};
    ::syscall(SYS_futex, &ring.waiting, FUTEX_WAIT, 1, &moment, nullptr, 0);
  }
  return at;
}

void EventRing::wake_waiting() {
  if (shared().waiting.exchange(0) != 0)
    ::syscall(SYS_futex, &shared().waiting, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void EventRing::add(const trace::Event& event, const loopback::Telling& telling) {
  if (telling.told && telling.number <= number_in(*telling.told)) return;
  // A path is PATH_MAX long at most in practice, deeper trees a few times that.
  constexpr std::size_t kLongest = kBytes / 16;
  const auto cut = [](std::string_view text) { return text.substr(0, kLongest); };
  auto& ring = shared();
  const std::lock_guard lock(mutex_);
  std::uint64_t at =
      room_for(cut(event.path).size() + cut(event.resolved).size() + cut(event.target).size());
  const auto keep = [&](std::string_view text) -> std::string_view {
    if (text.empty()) return {};
    char* to = pages_.data() + kBytesAt + at % kBytes;
    std::memcpy(to, text.data(), text.size());
    at += text.size();
    return {to, text.size()};
  };
  const std::uint64_t head = ring.head;
  Entry& entry = entry_at(head);
  entry.event = event;
  entry.event.path = keep(cut(event.path));
  entry.event.resolved = keep(cut(event.resolved));
  entry.event.target = keep(cut(event.target));
  entry.bytes_end = next_byte_ = at;
  if (telling.told)
    telling.told->store(note_of(head + 1, telling.number), std::memory_order_release);
  ring.head = head + 1;
  if (head + 1 >= ring.ring_at && ring.ring_at.exchange(~0ULL) != ~0ULL)
    ::eventfd_write(bell_.get(), 1);
}

unsigned EventRing::told(std::uint64_t note) const {
  const unsigned number = number_in(note);
  return note >> kNumberBits <= shared().head || number == 0 ? number : number - 1;
}

void EventRing::answer_bell() const {
  eventfd_t rung = 0;
  ::eventfd_read(bell_.get(), &rung);
}

}  // namespace heddle
