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
/// user: `DIR/heddle-UID/{objects,copying,users}`, closed to other users, who could change copies
/// of theirs at any time.
///
/// Each mount has a file in users/, locked while mounted, that lists the copies it claims.
/// All claimed copies and the unclaimed ones that are left fit the budget, which is checked once,
/// when a mount makes its claim.
///
/// One process writes a copy to copying/HASH under flock(2), hashes it, and renames it to
/// objects/HASH. Each process hashes a copy before its first use: no fsync is needed.
class StageDirectory {
 public:
  struct Item {
    ContentHash hash;
    std::uint64_t size = 0;
  };

  /// `directory`, made with its parents if it is missing (it is often one of the job's), must be
  /// writable, and others may not rename this user's files in it.
  static Result<StageDirectory> open(const std::string& directory);

  /// A new file in users/. Its claim holds while any process has it open.
  Result<Fd> join() const;
  /// Claims as many of `items`, from the first on, as fit the budget beside the claims of other
  /// mounts, and removes the least recently used unclaimed copies. Result: how many.
  Result<std::size_t> claim(const Fd& user, std::span<const Item> items,
                            std::uint64_t budget) const;
  /// Removes unclaimed copies of `bytes` or more from a full disk. False: there are none.
  bool make_room(std::uint64_t bytes) const;

  /// Hashes the copy and marks it as used now. Result: its stamp; nullopt: there is none, or it was
  /// damaged and is removed.
  std::optional<FileStamp> verify(const Item& item) const;

  enum class Copied : std::uint8_t {
    done,
    again,  ///< another process makes it, or just did
    no,     ///< the source cannot be read or has changed
  };
  struct Copy {
    Copied how = Copied::again;
    FileStamp stamp;  ///< of a copy that is done
  };
  /// Copies the whole of `source` and hashes the copy. Failure: the directory's, such as ENOSPC.
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
