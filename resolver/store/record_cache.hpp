// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::store {

/// Records that a user's processes on one node share: one LMDB file, which LMDB reads too. It
/// trusts its pages, so this is only for files that nobody else can write, on a file system with
/// working mmap and locks (not NFS or Lustre), and of this boot: nothing is synced. Not for use
/// after fork(2).
class RecordCache {
 public:
  using Record = std::pair<std::string, std::string>;

  /// The file `path`, of at most `limit` bytes, in a directory that only this user can write to. It
  /// is made (mode 0600), or made anew if it is damaged, a link or others may write to it. One
  /// object per file in a process. Null: it cannot be used.
  static std::shared_ptr<RecordCache> open(const std::string& path, std::size_t limit);

  std::optional<std::string> find(std::string_view key) const;
  /// In one transaction. When the file is full, all older records go. False: nothing was added,
  /// since another process adds at this moment or the disk is full.
  bool add(const std::vector<Record>& records);

  ~RecordCache();
  RecordCache(const RecordCache&) = delete;
  RecordCache& operator=(const RecordCache&) = delete;

 private:
  struct Handles;
  explicit RecordCache(std::unique_ptr<Handles> handles);
  std::unique_ptr<Handles> handles_;
};

}  // namespace heddle::store
