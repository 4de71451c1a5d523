// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/content_hash.hpp"
#include "base/fd.hpp"
#include "base/file_stamp.hpp"

namespace heddle {

/// Copies of files on the node's own storage, named by their SHA-256, shared by all mounts of one
/// user: `DIR/heddle-UID/{objects,copying,users,rooms}`, which nobody else may write nor read.
/// Copies of another user are not trusted: that user could change them at any time.
///
/// A copy is written to copying/HASH under flock(2), so one process makes it however many want it,
/// and a dead one's lock is gone with it; it is hashed, then renamed to objects/HASH. No process
/// takes a copy that it has not hashed itself: no fsync is needed.
class StageDirectory {
 public:
  /// `directory` must exist, be writable for us, and others may not rename what is ours in it.
  static Result<StageDirectory> open(const std::string& directory);

  /// Protects the copies of `hashes` from trim() while any process has the result open.
  Result<Fd> announce(std::span<const ContentHash> hashes) const;

  /// The stamp of the copy of `hash`, all of which was read and is right; it counts as used now.
  /// One that is wrong is removed. nullopt: there is none.
  std::optional<FileStamp> verify(const ContentHash& hash, std::uint64_t size) const;

  enum class Copied : std::uint8_t {
    done,
    again,  ///< another process makes it, or just did
    no,     ///< the source cannot be read, or is not what it was
  };
  struct Copy {
    Copied how = Copied::again;
    FileStamp stamp;  ///< of the copy, when it is done
  };
  /// Copies `source` (a descriptor, read from its begin) and hashes the copy. Failure: this side's,
  /// ENOSPC and such.
  Result<Copy> copy(int source, const ContentHash& hash, std::uint64_t size) const;

  /// Bytes of all copies.
  std::uint64_t used() const;
  /// Removes copies, least recently used first, until `budget` holds them and `wanted` bytes more;
  /// those that a mount has announced stay. Result: whether it does; with `wanted` bytes none is
  /// removed when it would not.
  bool trim(std::uint64_t budget, std::uint64_t wanted) const;
  /// Whether trim() would succeed.
  bool could_hold(std::uint64_t budget, std::uint64_t wanted) const;

  /// Bytes that living processes have set aside.
  std::uint64_t set_aside() const;

  /// Removes what dead processes left half made.
  void sweep() const;

  /// The directory of the copies, for openat(2) by ContentHash::hex().
  int objects() const noexcept { return objects_.get(); }
  std::vector<int> descriptors() const {
    return {objects_.get(), copying_.get(), users_.get(), rooms_.get()};
  }
  const std::string& path() const noexcept { return path_; }

 private:
  struct Entry {
    std::int64_t used_ns = 0;
    std::uint64_t size = 0;
    std::string name;
  };
  /// What is to go, in this order, for the rest to fit.
  struct Plan {
    std::vector<Entry> goes;
    bool fits = true;
  };
  friend class StageRoom;
  StageDirectory() = default;
  /// One at a time looks how much is set aside and sets more aside: held while the result is open.
  Result<Fd> lock_rooms() const;
  /// An empty file in `rooms/`, locked.
  Result<Fd> make_room_file() const;
  std::vector<Entry> entries() const;
  Plan plan(std::uint64_t budget, std::uint64_t wanted) const;
  std::unordered_set<std::string> announced() const;
  Result<Copy> fill(const Fd& file, int source, const ContentHash& hash, std::uint64_t size) const;
  std::string path_;
  Fd objects_;
  Fd copying_;
  Fd users_;
  Fd rooms_;
};

/// Room that one process has set aside in a StageDirectory for copies it is about to make, so that
/// all that stage there at once keep to the budget together. The room is a file in `rooms/` that is
/// locked while its process lives, and is of that size (and has no blocks).
class StageRoom {
 public:
  /// `directory` must outlive it.
  StageRoom(const StageDirectory& directory, std::uint64_t budget)
      : directory_(directory), budget_(budget) {}

  enum class Got : std::uint8_t {
    yes,
    later,  ///< others have set too much aside
    no,     ///< the copies in use leave too little
  };
  /// Room for one more copy; removes copies that nobody uses to make it. Failure: this side's.
  Result<Got> take(std::uint64_t size);
  /// The copy that the room was for is there.
  void used(std::uint64_t size);
  /// What is left is free for others.
  void release() { set(0); }

 private:
  void set(std::uint64_t size);

  const StageDirectory& directory_;
  std::uint64_t budget_;
  std::uint64_t left_ = 0;
  Fd file_;
};

}  // namespace heddle
