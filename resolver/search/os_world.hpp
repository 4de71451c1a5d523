// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/fd.hpp"
#include "resolver/search/world.hpp"

namespace heddle {

/// The listings that contain a name. One table for all directories: a search looks up its name
/// once, and each of hundreds of directories then costs one load (300 us instead of 10 ms for the
/// 125,000 probes of 500 libraries).
class NameIndex {
 public:
  using ListingId = std::uint32_t;

  void add(ListingId listing, const EntryName& name) {
    const auto [head, is_new] = heads_.try_emplace(name.hash, kEnd);
    entries_.push_back({static_cast<std::uint32_t>(arena_.size()),
                        static_cast<std::uint32_t>(name.text.size()), listing, head->second});
    head->second = static_cast<std::uint32_t>(entries_.size() - 1);
    arena_.append(name.text);
  }

  /// Calls `visit(listing)` for each listing that contains `name`.
  template <class Visit>
  void for_each(const EntryName& name, const Visit& visit) const {
    const auto head = heads_.find(name.hash);
    for (auto at = head == heads_.end() ? kEnd : head->second; at != kEnd; at = entries_[at].next)
      if (std::string_view(arena_).substr(entries_[at].offset, entries_[at].length) == name.text)
        visit(entries_[at].listing);
  }

 private:
  static constexpr std::uint32_t kEnd = ~std::uint32_t{0};
  struct Entry {
    std::uint32_t offset;
    std::uint32_t length;
    ListingId listing;
    std::uint32_t next;  ///< another one of that hash
  };
  std::string arena_;
  std::vector<Entry> entries_;
  std::unordered_map<std::uint64_t, std::uint32_t> heads_;  ///< by hash
};

/// The state of the file system that a search depends on, to be compared later: unchanged files and
/// directories give the same answers.
struct Seen {
  struct Path {
    std::string path;
    std::optional<FileStamp> stamp;  ///< following links; nullopt: it did not exist
    bool is_directory = false;
    /// Of a listed directory: digest_of() those of its entries that are in `names`. A directory
    /// whose stamp has changed gives the same answers if this has not.
    std::uint64_t digest = 0;
    bool is_listed = false;
  };
  std::vector<Path> paths;
  std::vector<std::string> names;  ///< that were looked up in directories, sorted
  static std::uint64_t digest_of(std::string_view name) { return EntryName(name).hash; }  ///< xor
};
template <class Coder, IsRecord<FileStamp> T>
void fields(Coder& coder, T& s) {
  coder(s.id.dev, s.id.ino, s.size, s.mtime_ns, s.ctime_ns);
}
template <class Coder, IsRecord<Seen::Path> T>
void fields(Coder& coder, T& p) {
  coder(p.path, p.stamp, p.is_directory, p.digest, p.is_listed);
}
template <class Coder, IsRecord<Seen> T>
void fields(Coder& coder, T& seen) {
  coder(seen.paths, seen.names);
}

/// The real file system, or what is below another root: a container's, inside which absolute paths
/// and symbolic links are resolved (openat2 RESOLVE_IN_ROOT). Caches all answers: for one run over
/// unchanging files. Not for concurrent use.
class OsWorld final : public World {
 public:
  /// `source` must outlive this.
  explicit OsWorld(FactsSource& source);
  /// For the directory `root`, whose facts `source` gives (facts_below()). Fails when it cannot be
  /// opened.
  static Result<OsWorld> below(FactsSource& source, const std::string& root);

  DirId directory(std::string_view path) override;
  DirId subdirectory(DirId base, std::string_view relative) override;
  DirState state(DirId dir) override;
  Presence entry(DirId dir, const EntryName& name) override;
  Result<FileFacts> facts(const std::string& path) override;
  /// With the exported and undefined symbols.
  Result<FileFacts> facts_with_symbols(const std::string& path);
  void prefetch(const std::vector<std::string>& paths) override;
  void prefetch_directories(const std::vector<std::string>& paths) override;
  Result<std::string> read(const std::string& path, Part part) override;
  using World::read;
  /// The loaded segments of an ELF file without pure code, which is nine tenths of an MPI library
  /// and contains no strings; all of any other file. EFBIG: too large.
  Result<std::string> read_data(const std::string& path);
  std::string real_path(const std::string& path) override;

  /// With another root: all that the answers depend on, existing or not: opened paths, and names
  /// looked up in directories; for many names of one directory its path and a slash. Sorted.
  std::vector<std::string> asked() const;
  /// Without another root: all that the answers depend on; of relative paths, below `cwd`. nullopt:
  /// a path is relative and `cwd` empty, or the system did not answer.
  std::optional<Seen> seen(const std::string& cwd = {}) const;
  /// A directory, or by O_PATH anything.
  Result<Fd> open(const std::string& path, int flags);
  /// As base/open_regular.hpp.
  Result<Fd> open_regular(const std::string& path);

 private:
  struct Directory {
    std::string path;  ///< ends in '/', or empty
    DirState state;
    std::optional<FileStamp> stamp{};
  };
  /// The path outside the other root; for messages and comparisons only, since it may change.
  Result<std::string> outside_path(const std::string& path);
  /// What a directory's path leads to, and its names, before they are indexed.
  struct ReadDirectory {
    DirState state;
    bool is_listed = false;
    std::optional<FileStamp> stamp{};
    std::vector<std::string> names{};
  };
  /// Safe for concurrent use.
  ReadDirectory read_directory(const std::string& path) const;
  DirId add(const std::string& path, const ReadDirectory& read);
  void note_opened(const std::string& path);
  Result<Fd> open_unnoted(const std::string& path, int flags) const;
  void look_for(const EntryName& name);
  bool probe(DirId dir, const EntryName& name);
  void note(DirId dir, const EntryName& name);

  static constexpr NameIndex::ListingId kNothing = 0;   ///< of what is no directory
  static constexpr NameIndex::ListingId kUnlisted = 1;  ///< of what cannot be listed
  static constexpr DirId kMissing = 0;                  ///< any missing subdirectory

  FactsSource* source_;
  Fd root_;  ///< valid: paths are looked up below it
  std::vector<Directory> directories_;
  std::vector<NameIndex::ListingId> listing_;  ///< by directory; apart, because each probe reads it
  std::unordered_map<std::string, DirId> by_path_;
  std::unordered_map<FileId, NameIndex::ListingId> by_id_;
  std::unordered_map<std::string, bool> probed_;
  NameIndex names_;
  /// By listing: equal to round_ when it contains wanted_.
  std::vector<std::uint32_t> holds_;
  std::uint32_t round_ = 0;
  std::string wanted_;
  const char* wanted_at_ = nullptr;
  std::uint64_t wanted_hash_ = 0;
  std::unordered_map<std::string, std::shared_ptr<const Result<FileFacts>>> facts_;
  std::unordered_set<std::string> opened_;
  std::unordered_map<std::string, std::optional<FileStamp>> read_;  ///< nullopt: no such file
  std::unordered_set<std::string> names_asked_;
  std::vector<std::unordered_set<std::string>> looked_for_;  ///< by directory
};

}  // namespace heddle
