// SPDX-License-Identifier: MIT
#include "fuseovl/files/bundle_frames.hpp"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <system_error>

#include "base/log.hpp"
#include "ship/bundle/frame.hpp"

namespace heddle {
namespace {

/// After this time without a read the cache is emptied: the kernel has what programs use.
constexpr std::chrono::seconds kIdle{30};
/// That read and decode ahead: a program at its start waits for the decoding, and leaves processors
/// idle.
constexpr unsigned kMostThreads = 4;

}  // namespace

/// The bytes of a frame, or of stored ones, in pages of their own. While they are offered, the
/// kernel may drop any of the pages at any time, which then read as zeros (MADV_FREE in
/// madvise(2)). So the first byte of each is replaced by one that is not zero, and exchanging that
/// one for the byte tells in one step whether the page is still there and makes it stay: an atomic
/// write either comes before the page is dropped, and prevents that, or finds zeros.
class BundleFrames::Piece {
 public:
  explicit Piece(std::size_t size) : size_(size), firsts_(size / page_size() + 1) {
    // All of it is going to be written: no fault for each page.
    void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<char*>(memory);
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  ~Piece() { ::munmap(memory_, size_); }

  std::span<char> bytes() { return {memory_, size_}; }

  void offer() {
    std::size_t page = 0;
    for (std::size_t at = 0; at < size_; at += page_size())
      firsts_[page++] = std::exchange(memory_[at], kIsThere);
    ::madvise(memory_, size_, MADV_FREE);  // else the memory stays
  }
  /// False: some of it is gone.
  bool take_back() {
    std::size_t page = 0;
    for (std::size_t at = 0; at < size_; at += page_size()) {
      char expected = kIsThere;
      if (!std::atomic_ref(memory_[at]).compare_exchange_strong(expected, firsts_[page++]))
        return false;
    }
    return true;
  }

 private:
  static constexpr char kIsThere = 1;
  static std::size_t page_size() {
    static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return size;
  }

  char* memory_;
  std::size_t size_;
  std::vector<char> firsts_;  ///< of each page, while it is offered
};

std::size_t BundleFrames::default_room() {
  struct sysinfo machine {};
  if (::sysinfo(&machine) != 0) return kFrames;
  const std::uint64_t memory = std::uint64_t{machine.totalram} * machine.mem_unit;
  return std::clamp<std::uint64_t>(memory / 16 / kFrameSize, kFrames, 1024);
}

BundleFrames::BundleFrames(std::vector<BundleSource> sources,
                           std::shared_ptr<const BundleIndex> index, std::size_t room)
    : sources_(std::move(sources)),
      index_(std::move(index)),
      room_(std::max<std::size_t>(room, 2)),
      was_decoded_(index_->frames.size()),
      is_bad_(index_->frames.size()),
      is_reported_(sources_.size()),
      is_known_(index_->frames.size()) {
  // Else malloc() puts large buffers beside its small blocks, and keeps that memory.
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

BundleFrames::~BundleFrames() {
  {
    const std::lock_guard hold(mutex_);
    ending_ = true;
  }
  moved_.notify_all();
  for (auto& thread : ahead_) thread.join();
}

std::vector<int> BundleFrames::descriptors() const {
  std::vector<int> out;
  for (const auto& source : sources_) out.push_back(source.file.get());
  return out;
}

void BundleFrames::start() {
  const std::lock_guard hold(mutex_);
  if (!ahead_.empty() || index_->frames.empty()) return;
  const auto count = std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads);
  try {
    while (ahead_.size() < count) ahead_.emplace_back([this] { run_ahead(); });
  } catch (const std::system_error&) {  // frames are decoded when they are needed
  }
}

tl::expected<void, int> BundleFrames::read(std::uint64_t place, std::span<char> into,
                                           MayBlock block) {
  if (place > index_->stream_size || into.size() > index_->stream_size - place)
    return tl::unexpected(EIO);
  // Else a part would be copied, and count as read, twice.
  if (block == MayBlock::no && into.size() > kFrameSize - place % kFrameSize) {
    const std::lock_guard hold(mutex_);
    for (auto number = place / kFrameSize; number * kFrameSize < place + into.size(); ++number)
      if (const auto at = frames_.find(number); at == frames_.end() || !at->second.piece)
        return tl::unexpected(EAGAIN);
  }
  while (!into.empty()) {
    const auto number = static_cast<std::size_t>(place / kFrameSize);
    const auto from = static_cast<std::size_t>(place % kFrameSize);
    const std::size_t size = std::min(into.size(), index_->frame_length(number) - from);
    int code = 0;
    std::unique_lock hold(mutex_);
    Frame* frame = use(hold, number, block, code);
    if (!frame) return tl::unexpected(code);
    hold.unlock();
    std::ranges::copy(frame->piece->bytes().subspan(from, size), into.begin());
    hold.lock();
    --frame->readers;
    frame->served += size;
    into = into.subspan(size);
    place += size;
  }
  return {};
}

/// The frame, decoded here or by another thread, with one more reader. Null: `code` says why.
BundleFrames::Frame* BundleFrames::use(std::unique_lock<std::mutex>& hold, std::size_t number,
                                       MayBlock block, int& code) {
  for (bool tried = false;;) {
    auto at = frames_.find(number);
    const bool was_offered = at != frames_.end() && std::exchange(at->second.offered, false);
    if (was_offered && !at->second.piece->take_back()) at = (frames_.erase(at), frames_.end());
    if (at != frames_.end() && at->second.piece) {
      ++at->second.readers;
      at->second.used = ++uses_;
      if (was_offered) make_room(0);
      if (tried || number + 1 >= last_) moved_to(number);  // else another reader is ahead
      return &at->second;
    }
    code = block == MayBlock::no ? EAGAIN : EIO;
    if (block == MayBlock::no || tried || is_bad_[number]) return nullptr;
    if (at != frames_.end()) {
      decoded_.wait(hold);
    } else {
      if (is_known_[number])  // it is gone, and what follows may be, too
        for (auto next = number; next < std::min(is_known_.size(), number + 1 + kAhead); ++next)
          is_known_[next] = frames_.contains(next);
      keep_decoded(hold, std::move(fetch(hold, number, 1).front()));
      tried = true;
    }
  }
}

/// Reads frames that are not in the cache, `hold` released meanwhile. Other threads wait for them
/// until keep_decoded().
std::list<BundleFrames::Stored> BundleFrames::fetch(std::unique_lock<std::mutex>& hold,
                                                    std::size_t first, std::size_t count) {
  make_room(count);
  const std::size_t end = first + count;
  try {
    for (std::size_t number = first; number < end; ++number) {
      frames_[number].used = ++uses_;
      is_known_[number] = true;
    }
    hold.unlock();
    const BundleFrame& last = index_->frames[end - 1];
    const std::uint64_t begin = index_->frames[first].offset;
    const auto memory =
        std::make_shared<Piece>(static_cast<std::size_t>(last.offset + last.size - begin));
    const auto got = read_stored(0, begin, memory->bytes());
    std::list<Stored> out;
    for (std::size_t number = first; number < end; ++number) {
      const BundleFrame& frame = index_->frames[number];
      const auto from = std::min(got.size(), static_cast<std::size_t>(frame.offset - begin));
      out.push_back({number, memory, got.substr(from, frame.size)});
    }
    hold.lock();
    return out;
  } catch (...) {  // no memory: no thread must wait for frames that none decodes
    if (!hold.owns_lock()) hold.lock();
    frames_.erase(frames_.lower_bound(first), frames_.lower_bound(end));
    decoded_.notify_all();
    throw;
  }
}

/// Decodes a frame, `hold` released meanwhile. Without memory, or if no source has it, it is not in
/// the cache afterwards.
void BundleFrames::keep_decoded(std::unique_lock<std::mutex>& hold, Stored stored) {
  hold.unlock();
  std::unique_ptr<Piece> piece;
  try {
    piece = decode(stored.number, stored.bytes);
  } catch (...) {  // no memory
  }
  stored.memory.reset();  // unmapped while no reader waits for the lock
  hold.lock();
  if (piece)
    frames_[stored.number].piece = std::move(piece);
  else
    frames_.erase(stored.number);
  decoded_.notify_all();
}

/// `stored`: what the first source has of the frame.
std::unique_ptr<BundleFrames::Piece> BundleFrames::decode(std::size_t number,
                                                          std::string_view stored) {
  const BundleFrame& frame = index_->frames[number];
  auto out = std::make_unique<Piece>(index_->frame_length(number));
  std::optional<Piece> other;
  bool is_bad = true;
  for (std::size_t source = 0; source < sources_.size(); ++source) {
    if (source > 0) {
      if (!other) other.emplace(frame.size);
      stored = read_stored(source, frame.offset, other->bytes());
    }
    if (decode_frame(frame, stored, out->bytes())) {
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

/// What was read into `into`: less where the file ends or cannot be read.
std::string_view BundleFrames::read_stored(std::size_t source, std::uint64_t offset,
                                           std::span<char> into) {
  const auto got =
      read_at(sources_[source].file.get(), into, static_cast<off_t>(offset), MayBlock::yes);
  counters_->reads.fetch_add(1, std::memory_order_relaxed);
  counters_->bytes.fetch_add(got.value_or(0), std::memory_order_relaxed);
  return {into.data(), got.value_or(0)};
}

/// For `count` more frames. Those that are decoded or copied from now stay.
void BundleFrames::make_room(std::size_t count) {
  // The one of those that was not used for the longest time.
  const auto oldest = [this](auto is_meant) {
    auto out = frames_.end();
    for (auto it = frames_.begin(); it != frames_.end(); ++it)
      if (it->second.piece && it->second.readers == 0 && is_meant(*it) &&
          (out == frames_.end() || it->second.used < out->second.used))
        out = it;
    return out;
  };
  const auto is_held = [](const auto& entry) { return !entry.second.offered; };
  const auto is_spent = [&](const auto& entry) {
    return is_held(entry) && entry.second.served >= index_->frame_length(entry.first);
  };
  for (auto held = static_cast<std::size_t>(std::ranges::count_if(frames_, is_held));
       held + count > kFrames; --held) {
    if (const auto spent = oldest(is_spent); spent != frames_.end()) {
      frames_.erase(spent);
    } else if (const auto other = oldest(is_held); other != frames_.end()) {
      other->second.piece->offer();
      other->second.offered = true;
    } else {
      break;
    }
  }
  while (frames_.size() + count > room_) {
    auto gone = oldest(is_spent);
    if (gone == frames_.end()) gone = oldest([](const auto&) { return true; });
    if (gone == frames_.end()) return;
    frames_.erase(gone);
  }
}

/// Notes which frame is used. A trace's order of files is that of their use, so mostly it is the
/// last one or the next; after a jump nothing is read ahead until that goes on.
void BundleFrames::moved_to(std::size_t number) {
  const bool is_near = number + 1 >= last_ && number <= last_ + kAhead;
  in_sequence_ = is_near && (in_sequence_ || number > last_);
  if (!is_near) next_ = number + 1;
  const auto last = std::exchange(last_, is_near ? std::max(last_, number) : number);
  if (in_sequence_ && last_ != last) moved_.notify_all();
}

void BundleFrames::run_ahead() {
  std::unique_lock hold(mutex_);
  for (std::uint64_t uses = 0; !ending_; uses = uses_) {
    if (!stored_.empty()) {
      auto next = std::move(stored_.front());
      stored_.pop_front();
      keep_decoded(hold, std::move(next));
      continue;
    }
    const std::size_t ahead = std::min(kAhead, room_ / 2);
    const std::size_t end = std::min(index_->frames.size(), last_ + 1 + ahead);
    // One that is gone was read, most likely.
    while (next_ < end && is_known_[next_]) ++next_;
    std::size_t count = 0;
    while (next_ + count < end && !is_known_[next_ + count]) ++count;
    // Large reads: half of what may be ahead, or the rest of the stream.
    if (in_sequence_ && !reading_ && count > 0 &&
        (count >= ahead / 2 || end == index_->frames.size())) {
      const std::size_t first = next_;
      next_ += count;
      reading_ = true;
      try {
        auto read = fetch(hold, first, count);
        stored_.splice(stored_.end(), read);
      } catch (const std::bad_alloc&) {  // frames are decoded when they are needed
      }
      reading_ = false;
      moved_.notify_all();
    } else if (moved_.wait_for(hold, kIdle) == std::cv_status::timeout && uses == uses_) {
      std::erase_if(frames_, [](const auto& entry) {
        return entry.second.piece != nullptr && entry.second.readers == 0;
      });
      is_known_.assign(is_known_.size(), false);
      for (const auto& entry : frames_) is_known_[entry.first] = true;  // in use now
    }
  }
}

}  // namespace heddle
