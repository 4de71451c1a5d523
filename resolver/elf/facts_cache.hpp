// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file_systems.hpp"
#include "resolver/elf/facts_source.hpp"

namespace heddle {

/// `$XDG_CACHE_HOME/heddle` or `~/.cache/heddle`; empty when neither variable is an absolute path.
std::string default_cache_dir();

/// Facts kept across runs, for one FactsDetail, by the file's FileStamp. It is never in the way:
/// with no directory, no right to it or a damaged file there are just no hits.
///
/// A stamp stands for a content only if the content cannot change without it. Hence a file that was
/// changed less than two seconds before the cache was opened is not kept (its next change may fall
/// into the same tick of the file system's clock: git's "racily clean" rule, racy-git.txt), nor one
/// on a file system whose ctime is not kept by a kernel (see FileSystems).
///
/// The file: a Checksum of all that follows, then, by base/coder.hpp, kFactsVersion and a list of
/// (key, value), the oldest first. It is read into memory, never mapped: it lies in the user's
/// home, which may be on NFS, and an I/O error is then an errno.
class FactsCache {
 public:
  /// `dir` is made (mode 0700) by save() when it is missing; empty: nothing is kept. `now_ns`: when
  /// files began to be opened, for tests; 0: now.
  FactsCache(std::string dir, FactsDetail detail, std::int64_t now_ns = 0);

  /// What was read of this very file, FileFacts::mode being left 0.
  /// `file_system` as FileSystems::of() gave it.
  std::optional<FileFacts> find(const FileStamp& stamp, std::uint64_t file_system) const;
  /// Keeps `facts` for save(), unless its stamp is too young.
  void add(const FileFacts& facts, std::uint64_t file_system);
  /// Publishes what was added: reads the newest generation, adds, writes aside, renames. When
  /// another process does the same at this moment, or the disk is full, nothing happens.
  void save();

 private:
  using Entries = std::vector<std::pair<std::string_view, std::string_view>>;
  /// A generation of the file at path_, and its entries, which are views into it.
  struct Generation {
    std::string bytes;
    Entries entries;
  };
  Generation load() const;
  void write(const Entries& entries) const;

  std::string dir_;
  std::string path_;
  std::size_t limit_ = 0;
  std::int64_t opened_ns_;
  Generation kept_;
  std::unordered_map<std::string_view, std::string_view> by_key_;  ///< kept_'s entries
  std::unordered_map<std::string, std::string> fresh_;
};

}  // namespace heddle
