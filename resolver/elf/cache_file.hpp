// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "resolver/store/databases.hpp"

namespace heddle {

/// One generation of a cache: an LMDB database with a trailer that vouches for its bytes,
/// immutable, replaced by rename.
///
/// The file is read into memory, never mapped: it lies in the user's home, which may well be NFS,
/// and an I/O error is then an errno. LMDB does not read it (resolver/store/databases.hpp).
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
  std::unique_ptr<const std::string> bytes_;
  store::Records records_;  ///< views into `bytes_`
};

}  // namespace heddle
