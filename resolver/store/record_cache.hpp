// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fd.hpp"

namespace heddle::store {

/// Records that a user's processes on one node share: one file, to which each appends. It is read
/// into memory as a whole, so that nothing that happens to it can end a process; what follows the
/// first damaged record is not used, and the next one that is added replaces it. Nothing is synced.
///
///     16 bytes   XXH3-128 of the rest of the record
///     key, value each a u32 length and bytes; of two records with one key the later counts
class RecordCache {
 public:
  using Record = std::pair<std::string, std::string>;

  /// The file `path`, of at most `limit` bytes. It is made (mode 0600), also in the place of a
  /// link, of another user's file and of one that others may write to. nullopt: it cannot be used.
  static std::optional<RecordCache> open(const std::string& path, std::size_t limit);

  /// Valid until add().
  std::optional<std::string_view> find(std::string_view key) const;
  /// When the file is full, all older records go. False: nothing was added, since another process
  /// adds at this moment or the disk is full.
  bool add(const std::vector<Record>& records);

 private:
  RecordCache(Fd file, std::size_t limit) : file_(std::move(file)), limit_(limit) { read(); }
  void read();

  Fd file_;
  std::size_t limit_;
  std::string bytes_;  ///< the file up to the first damaged record
  std::unordered_map<std::string_view, std::string_view> records_;
};

}  // namespace heddle::store
