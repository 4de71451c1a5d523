// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>

#include "record/loopback/protocol.hpp"
#include "record/loopback/shared_pages.hpp"

namespace heddle::loopback {

/// How far a worker is with a request. When it dies, the kernel sends the request again, and the
/// next worker goes on from here: what was carried out is not carried out twice.
struct RequestProgress {
  enum class Stage : std::uint8_t {
    taken,   ///< nothing outside has been changed
    acting,  ///< the system call that changes something may have been made
    made,    ///< it has been
    done,    ///< `reply` is the answer; it may have been sent
  };
  static constexpr std::size_t kMostReply = 304;  // of what creates, and of statx

  std::atomic<std::uint64_t> unique;  ///< 0: none
  std::atomic<Stage> stage;
  std::atomic<std::uint64_t> told;    ///< which of its events are in the trace (EventRing)
  std::atomic<std::uint64_t> bound;   ///< a node of which a look-up was counted for it
  std::atomic<std::uint64_t> opened;  ///< the handle that was made for it
  std::uint32_t forgotten;            ///< FORGET: entries seen to
  std::int32_t reply_error;
  std::uint32_t reply_size;
  char reply[kMostReply];

  void clear();
  /// What `other` says, for the request `as`.
  void copy_from(const RequestProgress& other, std::uint64_t as);
};

/// The requests in the hands of a worker's threads, a slot for each, in memory that the next worker
/// sees: the kernel copies them there, so that none is lost between the read and its first use.
/// Made by the supervisor.
class RequestSlots {
 public:
  static constexpr std::size_t kSlots = 64;
  static constexpr std::size_t kBufferSize = kMaxData + 4096;

  RequestSlots();

  char* buffer(std::size_t slot) const;
  RequestProgress& progress(std::size_t slot) const { return shared().progress[slot]; }

  /// Before a thread reads into its slot, and after it has: `progress` becomes what an earlier
  /// worker had come to, when the kernel sends the request again.
  void before_read(std::size_t slot) const;
  void after_read(std::size_t slot) const;

  /// In a new worker, before its threads: hands each request that the one before had to `see`
  /// (which undoes what must be, or carries a FORGET out), and keeps how far it was.
  template <class See>
  void take_over(See see) const {
    drop_answered();
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      if (!has_request(slot)) continue;
      see(slot);
      keep(slot);
    }
  }

  /// Requests that came again and were found to have been carried out by their effect alone, since
  /// the worker that did so was killed before it noted it.
  std::atomic<std::uint64_t>& decided() const { return shared().decided; }
  /// How many requests workers have answered, about.
  std::uint64_t answers() const { return shared().answers; }

 private:
  static constexpr std::size_t kKept = 2 * kSlots;
  struct Shared {
    RequestProgress progress[kSlots];
    RequestProgress kept[kKept];   ///< of dead workers
    std::atomic<bool> all_resent;  ///< what was sent again has been read
    std::atomic<std::uint64_t> decided;
    std::atomic<std::uint64_t> answers;
  };
  static constexpr std::size_t kBuffersAt = (sizeof(Shared) / 4096 + 1) * 4096;
  Shared& shared() const { return *reinterpret_cast<Shared*>(pages_.data()); }
  fuse_in_header& header(std::size_t slot) const;
  bool has_request(std::size_t slot) const;
  RequestProgress* find_kept(std::uint64_t unique) const;
  void clear(std::size_t slot) const;
  void drop_answered() const;
  void keep(std::size_t slot) const;

  SharedPages pages_;
};

/// FORGET and BATCH_FORGET: the kernel neither waits for them nor sends them again.
inline bool is_forget(std::uint32_t opcode) {
  return opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET;
}

}  // namespace heddle::loopback
