// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/fd.hpp"
#include "resolver/store/store.hpp"

namespace heddle {

/// One generation of a cache: an LMDB database with a trailer that vouches for its bytes,
/// immutable, replaced by rename.
///
/// LMDB believes its pages: a damaged or truncated file makes it assert or die of SIGBUS, as would
/// any mapping of a file that is cut while it is mapped. So the file is read (read(2): an I/O error
/// is an errno), its trailer checked, and LMDB is given a private copy in memory (memfd_create(2)).
/// It never maps a file in the user's home, which may well be NFS.
class CacheFile {
 public:
  /// An empty generation.
  CacheFile() = default;
  /// The generation at `path`; empty when there is none, or it is not ours (another user may have
  /// written what we would believe), of another version or machine, or damaged in any way.
  static CacheFile load(const std::string& path);

  /// The value of `key`; the view lives as long as this object.
  std::optional<std::string_view> get(std::string_view key) const;
  /// All entries; views as of get().
  std::map<std::string_view, std::string_view> all() const;

  /// Writes a new generation aside as `path`.new and renames it. The caller holds the lock on
  /// `path`. Not synced: after a crash of the machine the trailer tells.
  static Result<void> publish(const std::string& path,
                              const std::map<std::string_view, std::string_view>& entries);

  /// Largest file that is read or written. Bytes.
  static constexpr std::size_t kMaxSize = std::size_t{256} << 20;

 private:
  struct Open {
    store::Env env;
    store::ReadTxn txn;
    store::Dbi dbi;
  };
  std::optional<Open> open_;
};

}  // namespace heddle
