// SPDX-License-Identifier: MIT
#include "fuseovl/files/bundle_frames.hpp"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>

#include "base/log.hpp"
#include "ship/bundle/frame.hpp"

namespace heddle {
namespace {

/// After this time without a read the cache is emptied: the kernel has what programs use.
constexpr std::chrono::seconds kIdle{30};

}  // namespace

BundleFrames::BundleFrames(std::vector<BundleSource> sources,
                           std::shared_ptr<const BundleIndex> index, std::size_t room)
    : sources_(std::move(sources)),
      index_(std::move(index)),
      room_(std::max<std::size_t>(room, 2)),
      was_decoded_(index_->frames.size()),
      is_bad_(index_->frames.size()),
      is_reported_(sources_.size()) {
  // Else malloc() puts frames beside its small blocks, and keeps their memory when they go.
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

BundleFrames::~BundleFrames() {
  {
    const std::lock_guard hold(mutex_);
    ending_ = true;
  }
  moved_.notify_all();
  if (ahead_) ahead_->join();
}

std::vector<int> BundleFrames::descriptors() const {
  std::vector<int> out;
  for (const auto& source : sources_) out.push_back(source.file.get());
  return out;
}

void BundleFrames::start() {
  const std::lock_guard hold(mutex_);
  if (ahead_ || index_->frames.empty()) return;
  try {
    ahead_.emplace([this] { run_ahead(); });
  } catch (const std::system_error&) {  // frames are decoded when they are needed
  }
}

tl::expected<void, int> BundleFrames::read(std::uint64_t place, std::span<char> into,
                                           MayBlock block) {
  if (place > index_->stream_size || into.size() > index_->stream_size - place)
    return tl::unexpected(EIO);
  while (!into.empty()) {
    const auto number = static_cast<std::size_t>(place / kFrameSize);
    const auto from = static_cast<std::size_t>(place % kFrameSize);
    const std::size_t size = std::min(into.size(), index_->frame_length(number) - from);
    int code = 0;
    std::unique_lock hold(mutex_);
    const auto piece = use(hold, number, size, block, code);
    hold.unlock();
    if (!piece) return tl::unexpected(code);
    piece->copy(into.data(), size, from);
    into = into.subspan(size);
    place += size;
  }
  return {};
}

/// The frame, decoded here or by another thread. Null: `code` says why.
std::shared_ptr<const std::string> BundleFrames::use(std::unique_lock<std::mutex>& hold,
                                                     std::size_t number, std::size_t bytes,
                                                     MayBlock block, int& code) {
  for (bool tried = false;;) {
    const auto at = frames_.find(number);
    if (at != frames_.end() && at->second.piece) {
      at->second.served += bytes;
      at->second.used = ++uses_;
      moved_to(number);
      return at->second.piece;
    }
    code = block == MayBlock::no ? EAGAIN : EIO;
    if (block == MayBlock::no || tried || is_bad_[number]) return nullptr;
    if (at != frames_.end()) {
      decoded_.wait(hold);
    } else {
      load(hold, number, 1);
      tried = true;
    }
  }
}

/// Decodes frames that are not in the cache, `hold` released meanwhile; those that no source has
/// are not in it afterwards.
void BundleFrames::load(std::unique_lock<std::mutex>& hold, std::size_t first, std::size_t count) {
  make_room(count);
  const std::size_t end = first + count;
  std::size_t next = first;
  try {
    for (std::size_t number = first; number < end; ++number) frames_[number].used = ++uses_;
    hold.unlock();
    const BundleFrame& last = index_->frames[end - 1];
    const std::uint64_t begin = index_->frames[first].offset;
    const auto stored =
        read_stored(0, begin, static_cast<std::size_t>(last.offset + last.size - begin));
    while (next < end) {
      const BundleFrame& frame = index_->frames[next];
      const auto from = std::min(stored.size(), static_cast<std::size_t>(frame.offset - begin));
      auto piece = decode(next, std::string_view(stored).substr(from, frame.size));
      hold.lock();
      if (piece)
        frames_[next].piece = std::move(piece);
      else
        frames_.erase(next);
      decoded_.notify_all();
      if (++next < end) hold.unlock();
    }
  } catch (...) {  // no memory: no thread must wait for frames that none decodes
    if (!hold.owns_lock()) hold.lock();
    frames_.erase(frames_.lower_bound(next), frames_.lower_bound(end));
    decoded_.notify_all();
    throw;
  }
}

/// `stored`: what the first source has of the frame.
std::shared_ptr<const std::string> BundleFrames::decode(std::size_t number,
                                                        std::string_view stored) {
  const BundleFrame& frame = index_->frames[number];
  auto out = std::make_shared<std::string>(index_->frame_length(number), '\0');
  std::string other;
  bool is_bad = true;
  for (std::size_t source = 0; source < sources_.size(); ++source) {
    if (source > 0) stored = other = read_stored(source, frame.offset, frame.size);
    if (decode_frame(frame, stored, *out)) {
      counters_->decoded.fetch_add(1, std::memory_order_relaxed);
      if (was_decoded_[number].exchange(true, std::memory_order_relaxed))
        counters_->again.fetch_add(1, std::memory_order_relaxed);
      return out;
    }
    is_bad = is_bad && stored.size() == frame.size;  // else it could not be read, now
    if (!is_reported_[source].exchange(true, std::memory_order_relaxed))
      warn(Error(sources_[source].path, "is damaged or has changed",
                 "frame " + std::to_string(number) + " has another hash",
                 "fs-resolve verify names all damaged frames"));
  }
  is_bad_[number] = is_bad;
  counters_->bad.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

/// Less where the file ends or cannot be read.
std::string BundleFrames::read_stored(std::size_t source, std::uint64_t offset, std::size_t size) {
  std::string out(size, '\0');
  const auto got =
      read_at(sources_[source].file.get(), out, static_cast<off_t>(offset), MayBlock::yes);
  out.resize(got.value_or(0));
  counters_->reads.fetch_add(1, std::memory_order_relaxed);
  counters_->bytes.fetch_add(out.size(), std::memory_order_relaxed);
  return out;
}

/// For `count` more frames: those go first whose bytes the kernel has all got, then those that were
/// not used for the longest time. One that is being decoded stays.
void BundleFrames::make_room(std::size_t count) {
  while (frames_.size() + count > room_) {
    auto worst = frames_.end();
    const auto key = [&](const auto& entry) {
      const bool is_spent = entry.second.served >= index_->frame_length(entry.first);
      return std::pair(!is_spent, entry.second.used);
    };
    for (auto it = frames_.begin(); it != frames_.end(); ++it)
      if (it->second.piece && (worst == frames_.end() || key(*it) < key(*worst))) worst = it;
    if (worst == frames_.end()) return;
    frames_.erase(worst);
  }
}

/// Notes which frame is used. A trace's order of files is that of their use, so mostly it is the
/// last one or the next; after a jump nothing is read ahead until that goes on.
void BundleFrames::moved_to(std::size_t number) {
  const bool is_near = number + 1 >= last_ && number <= last_ + kAhead;
  in_sequence_ = is_near && (in_sequence_ || number > last_);
  if (!is_near) next_ = number + 1;
  last_ = is_near ? std::max(last_, number) : number;
  if (in_sequence_) moved_.notify_one();
}

void BundleFrames::run_ahead() {
  std::unique_lock hold(mutex_);
  for (std::uint64_t uses = 0; !ending_; uses = uses_) {
    const std::size_t ahead = std::min(kAhead, room_ / 2);
    const std::size_t end = std::min(index_->frames.size(), last_ + 1 + ahead);
    while (next_ < end && frames_.contains(next_)) ++next_;
    std::size_t count = 0;
    while (next_ + count < end && !frames_.contains(next_ + count)) ++count;
    // Large reads: half of what may be ahead, or the rest of the stream.
    if (in_sequence_ && count > 0 && (count >= ahead / 2 || end == index_->frames.size())) {
      const std::size_t first = next_;
      next_ += count;
      try {
        load(hold, first, count);
      } catch (const std::bad_alloc&) {  // frames are decoded when they are needed
      }
    } else if (moved_.wait_for(hold, kIdle) == std::cv_status::timeout && uses == uses_) {
      std::erase_if(frames_, [](const auto& entry) { return entry.second.piece != nullptr; });
    }
  }
}

}  // namespace heddle
