// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/content_hash.hpp"
#include "base/fd.hpp"
#include "base/file_stamp.hpp"

namespace heddle {

/// Copies of files on the node's own storage, named by their SHA-256, shared by all mounts of one
/// user: `DIR/heddle-UID/{objects,copying,users}`, which nobody else may write nor read. Copies of
/// another user are not trusted: that user could change them at any time.
///
/// Each mount has a file in users/, locked for as long as the mount stands, that lists the copies
/// it claims. All that is claimed, and the unclaimed copies that are left, fit the budget: so the
/// budget is looked at once, when a mount makes its claim.
///
/// A copy is written to copying/HASH under flock(2), so one process makes it however many want it,
/// and a dead one's lock is gone with it; it is hashed, then renamed to objects/HASH. No process
/// takes a copy that it has not hashed itself: no fsync is needed.
class StageDirectory {
 public:
  struct Item {
    ContentHash hash;
    std::uint64_t size = 0;
  };

  /// `directory` must exist, be writable for us, and others may not rename what is ours in it.
  static Result<StageDirectory> open(const std::string& directory);

  /// A file in users/ that claims nothing yet. Its claim holds while any process has it open.
  Result<Fd> join() const;
  /// Claims as many of `items`, from the first on, as the budget can hold beside what other mounts
  /// claim, and removes the least recently used of the copies that nobody claims. Result: how many.
  Result<std::size_t> claim(const Fd& user, std::span<const Item> items,
                            std::uint64_t budget) const;
  /// Removes unclaimed copies of `bytes` or more, for a disk that is full. False: there are none.
  bool make_room(std::uint64_t bytes) const;

  /// The stamp of the copy, all of which was read and is right; it counts as used now. One that is
  /// wrong is removed. nullopt: there is none.
  std::optional<FileStamp> verify(const Item& item) const;

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
  Result<Copy> copy(int source, const Item& item) const;

  /// The directory of the copies, for openat(2) by ContentHash::hex().
  int objects() const noexcept { return objects_.get(); }
  std::vector<int> descriptors() const { return {objects_.get(), copying_.get(), users_.get()}; }
  const std::string& path() const noexcept { return path_; }

 private:
  StageDirectory() = default;
  using Claims = std::unordered_map<std::string, std::uint64_t>;  ///< size by hex()
  Result<Fd> lock() const;
  Claims claimed(const Fd* except) const;
  bool remove_unclaimed(const Claims& claims, std::uint64_t most, std::uint64_t least_freed) const;
  Result<Copy> fill(const Fd& file, int source, const Item& item) const;
  std::string path_;
  Fd objects_;
  Fd copying_;
  Fd users_;
};

}  // namespace heddle
