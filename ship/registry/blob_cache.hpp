// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "base/atomic_file.hpp"
#include "base/fd.hpp"

namespace heddle::registry {

/// What was pulled before, by digest, and what tags meant: a folder with `sha256/<hex>` and
/// `refs/<hash>`. For many processes: files appear whole, and are held against their names when
/// they are read. A cache that cannot be written keeps nothing, and nobody fails of it.
class BlobCache {
 public:
  /// `folder` empty: keeps nothing.
  explicit BlobCache(std::string folder) : folder_(std::move(folder)) {}
  /// The file, at its begin.
  std::optional<Fd> blob(const std::string& digest) const;
  std::optional<std::string> manifest(const std::string& digest) const;
  void keep(const std::string& content);
  /// Where a blob is to be written, aside, and committed when it is whole; nullopt: nowhere here.
  std::optional<AtomicFile> room_for(const std::string& digest) const;
  void note(const std::string& reference, const std::string& digest);
  std::optional<std::string> noted(const std::string& reference) const;

 private:
  std::string folder_;
};

}  // namespace heddle::registry
