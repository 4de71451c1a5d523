// SPDX-License-Identifier: MIT
#include "record/loopback/request_slots.hpp"

#include <cstring>

#include "fuseovl/session/succession.hpp"

namespace heddle::loopback {
namespace {

// Each store is there when those before it are: a worker may be killed between any two.
constexpr auto kInOrder = std::memory_order_release;

}  // namespace

void RequestProgress::clear() {
  unique.store(0, kInOrder);
  stage.store(Stage::taken, kInOrder);
  told.store(0, kInOrder);
  bound.store(0, kInOrder);
  opened.store(0, kInOrder);
  forgotten = 0;
}

void RequestProgress::copy_from(const RequestProgress& other, std::uint64_t as) {
  unique.store(0, kInOrder);
  stage.store(other.stage, kInOrder);
  told.store(other.told, kInOrder);
  bound.store(other.bound, kInOrder);
  opened.store(other.opened, kInOrder);
  reply_error = other.reply_error;
  reply_size = other.reply_size;
  std::memcpy(reply, other.reply, sizeof(reply));
  unique.store(as, kInOrder);
}

RequestSlots::RequestSlots() : pages_(kBuffersAt + kSlots * kBufferSize) {}

char* RequestSlots::buffer(std::size_t slot) const {
  return pages_.data() + kBuffersAt + slot * kBufferSize;
}

fuse_in_header& RequestSlots::header(std::size_t slot) const {
  return *reinterpret_cast<fuse_in_header*>(buffer(slot));
}

bool RequestSlots::has_request(std::size_t slot) const { return header(slot).opcode != 0; }

RequestProgress* RequestSlots::find_kept(std::uint64_t unique) const {
  for (auto& kept : shared().kept)
    if (kept.unique == unique) return &kept;
  return nullptr;
}

void RequestSlots::before_read(std::size_t slot) const {
  if (progress(slot).stage.load(std::memory_order_relaxed) == RequestProgress::Stage::done)
    shared().answers.fetch_add(1, std::memory_order_relaxed);
  clear(slot);
}

void RequestSlots::clear(std::size_t slot) const {
  progress(slot).clear();
  *const_cast<volatile std::uint32_t*>(&header(slot).opcode) = 0;
}

void RequestSlots::after_read(std::size_t slot) const {
  auto& now = progress(slot);
  const auto unique = header(slot).unique;
  if ((unique & kResentUnique) == 0) {
    now.unique.store(unique, kInOrder);
    // The kernel puts what it sends again before all others (fs/fuse/dev.c, fuse_resend()), but for
    // those that are in no queue with them.
    const auto opcode = header(slot).opcode;
    if (!shared().all_resent && !is_forget(opcode) && opcode != FUSE_INTERRUPT)
      shared().all_resent = true;
    return;
  }
  RequestProgress* kept = find_kept(unique & ~kResentUnique);
  if (!kept) {
    // Read by a worker, or it would not be sent again; how far it came nobody knows.
    now.stage.store(RequestProgress::Stage::acting, kInOrder);
    now.unique.store(unique & ~kResentUnique, kInOrder);
    return;
  }
  now.copy_from(*kept, kept->unique);
  kept->unique.store(0, kInOrder);
}

/// Once a worker has read a request that is new, what it was not sent again had been answered.
void RequestSlots::drop_answered() const {
  if (!shared().all_resent) return;
  for (auto& kept : shared().kept) {
    const std::uint64_t unique = kept.unique;
    bool in_hand = false;
    for (std::size_t slot = 0; slot < kSlots && unique != 0; ++slot)
      in_hand = in_hand || (has_request(slot) && header(slot).unique == (unique | kResentUnique));
    if (!in_hand) kept.unique.store(0, kInOrder);
  }
  shared().all_resent = false;
}

void RequestSlots::keep(std::size_t slot) const {
  auto& had = progress(slot);
  if (!is_forget(header(slot).opcode)) {
    // Read, and not more: nothing has been done, unless an earlier worker has.
    const bool untouched = had.unique == 0;
    const auto unique = untouched ? header(slot).unique & ~kResentUnique : had.unique.load();
    RequestProgress* place = find_kept(unique);
    if (!place || !untouched) {
      if (!place) place = find_kept(0);
      if (place) place->copy_from(had, unique);
    }
  }
  clear(slot);
}

}  // namespace heddle::loopback
