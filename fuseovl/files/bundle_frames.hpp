// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tl/expected.hpp>
#include <vector>

#include "base/fd.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/session/shared.hpp"
#include "ship/bundle/bundle_format.hpp"

namespace heddle {

/// An open bundle, the one that is mounted or a copy of it.
struct BundleSource {
  Fd file;
  std::string path;
};

/// The stream of a mounted bundle: frames are read, verified and decoded when they are needed and
/// ahead of that, and stay in a bounded cache. The first source that has a frame's bytes with the
/// right hash is used; nothing else is ever returned. A source may be cut or changed at any time.
/// Safe for many threads; forked processes share the counters, each has its own cache.
///
/// The kernel keeps what it was given, so a frame is of no more use when all its bytes were read.
/// Files that are used in another order than they were packed in leave many frames read in part:
/// the cache keeps up to `room` of them, but in memory that the kernel takes back when it needs it.
class BundleFrames {
 public:
  static constexpr std::size_t kFrames = 48;  ///< that the kernel cannot take back
  /// Frames that are decoded ahead of the last one used. Half of them is one read.
  static constexpr std::size_t kAhead = 16;

  struct Counters {
    std::atomic<std::uint64_t> decoded;
    std::atomic<std::uint64_t> again;  ///< of them those that had been in the cache before
    std::atomic<std::uint64_t> bytes;  ///< read from the bundle
    std::atomic<std::uint64_t> reads;
    std::atomic<std::uint64_t> bad;  ///< no source had the frame
  };

  /// A sixteenth of this machine's memory, 1 GiB at most.
  static std::size_t default_room();

  /// No thread starts before start(), so that a process may fork after this.
  BundleFrames(std::vector<BundleSource> sources, std::shared_ptr<const BundleIndex> index,
               std::size_t room = default_room());
  BundleFrames(const BundleFrames&) = delete;
  BundleFrames& operator=(const BundleFrames&) = delete;
  ~BundleFrames();

  const BundleIndex& index() const { return *index_; }
  const std::string& path() const { return sources_[0].path; }
  std::vector<int> descriptors() const;
  const Counters& counters() const { return *counters_; }

  /// Begins to read ahead from the stream's start.
  void start();

  /// Copies all of `into` from the stream. EIO: no source has a frame of it, or it is not within
  /// the stream; with MayBlock::no EAGAIN, unless all of it is in the cache.
  tl::expected<void, int> read(std::uint64_t place, std::span<char> into, MayBlock block);

 private:
  class Piece;
  struct Frame {
    std::unique_ptr<Piece> piece;  ///< null: a thread decodes it
    bool offered = false;          ///< the kernel may take its memory
    unsigned readers = 0;          ///< that copy from it now; it stays meanwhile
    std::uint64_t served = 0;      ///< bytes
    std::uint64_t used = 0;        ///< number of the last use
  };
  using Frames = std::map<std::size_t, Frame>;
  /// A frame as the bundle has it.
  struct Stored {
    std::size_t number;
    std::shared_ptr<Piece> memory;  ///< of one read, with other frames'
    std::string_view bytes;         ///< in it
  };

  Frame* use(std::unique_lock<std::mutex>& hold, std::size_t number, MayBlock block, int& code);
  std::list<Stored> fetch(std::unique_lock<std::mutex>& hold, std::size_t first, std::size_t count);
  void keep_decoded(std::unique_lock<std::mutex>& hold, Stored stored);
  std::unique_ptr<Piece> decode(std::size_t number, std::string_view stored);
  std::string_view read_stored(std::size_t source, std::uint64_t offset, std::span<char> into);
  void make_room(std::size_t count);
  void moved_to(std::size_t number);
  void run_ahead();

  const std::vector<BundleSource> sources_;
  const std::shared_ptr<const BundleIndex> index_;
  const std::size_t room_;
  Shared<Counters> counters_;
  SharedArray<std::atomic<bool>> was_decoded_;  ///< by frame
  SharedArray<std::atomic<bool>> is_bad_;       ///< by frame: all sources have other bytes
  SharedArray<std::atomic<bool>> is_reported_;  ///< by source
  std::mutex mutex_;
  std::condition_variable decoded_;
  std::condition_variable moved_;
  Frames frames_;
  std::vector<bool> is_known_;  ///< by frame: was decoded since the cache was emptied
  std::uint64_t uses_ = 0;
  std::size_t last_ = 0;  ///< the frame that was used last, or the furthest of a sequence
  std::size_t next_ = 0;  ///< to be read ahead
  bool in_sequence_ = true;
  bool ending_ = false;
  std::list<Stored> stored_;  ///< read ahead, to be decoded
  bool reading_ = false;      ///< a thread reads ahead
  std::vector<std::thread> ahead_;
};

}  // namespace heddle
