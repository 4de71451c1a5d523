// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/fd.hpp"
#include "resolver/search/world.hpp"

namespace heddle {

/// Which listings hold a name. One table for all directories: a search looks for one name in
/// hundreds of them, so the name is looked up once and each directory then costs one load (300 us
/// instead of 10 ms for the 125,000 probes of 500 libraries).
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

  /// Calls `visit(listing)` for each that holds `name`.
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

/// The real file system, optionally the one below another root (a container's root directory:
/// absolute paths and symbolic links are then resolved inside it, by openat2 RESOLVE_IN_ROOT). What
/// it has seen it remembers for good: one World for one run over unchanging files. Not for
/// concurrent use.
class OsWorld final : public World {
 public:
  /// Facts come from `source`, which must outlive this.
  explicit OsWorld(FactsSource& source);
  /// As above, below the directory `root`. Fails when it cannot be opened.
  /// `source` gives the facts of that root's files (facts_below()).
  static Result<OsWorld> below(FactsSource& source, const std::string& root);
  OsWorld(OsWorld&&) noexcept;
  ~OsWorld() override;

  DirId directory(std::string_view path) override;
  DirId subdirectory(DirId base, std::string_view relative) override;
  DirState state(DirId dir) override;
  Presence entry(DirId dir, const EntryName& name) override;
  Result<FileFacts> facts(const std::string& path) override;
  /// As facts(), with the exported and undefined symbols.
  Result<FileFacts> facts_with_symbols(const std::string& path);
  void prefetch(const std::vector<std::string>& paths) override;
  Result<std::string> read(const std::string& path, Part part) override;
  using World::read;
  /// All that the segments of an ELF file load but pure code, which is nine tenths of an MPI
  /// library and holds no string; any other file comes whole. EFBIG: too much.
  Result<std::string> read_data(const std::string& path);
  std::string real_path(const std::string& path) override;

  /// All that its answers hang on, below another root: each path that was looked at, there or not,
  /// and each name that was looked for in a directory. Of a directory in which many were it is the
  /// directory itself with a slash behind it, meaning all its names. Sorted. Nothing without
  /// another root.
  std::vector<std::string> asked() const;
  /// The directory there, or by O_PATH anything.
  Result<Fd> open(const std::string& path, int flags);
  /// As the function of that name (base/open_regular.hpp).
  Result<Fd> open_regular(const std::string& path);

 private:
  struct Directory {
    std::string path;  ///< ends in '/', or empty
    DirState state;
  };
  /// Where `path` below the other root lies, for the eye: it may be another's by now.
  Result<std::string> outside_path(const std::string& path);
  DirId add(std::string path, DirState state, NameIndex::ListingId listing);
  /// The listing of the directory that `fd` is open on; kUnlisted when it cannot be read to its
  /// end.
  NameIndex::ListingId list(int fd);
  void look_for(const EntryName& name);
  bool probe(DirId dir, const EntryName& name);
  void note(DirId dir, const EntryName& name);

  /// Listings that are none: of what is no directory, and of what cannot be listed.
  static constexpr NameIndex::ListingId kNothing = 0;
  static constexpr NameIndex::ListingId kUnlisted = 1;
  /// The directory that no path stands for: any missing subdirectory.
  static constexpr DirId kMissing = 0;

  FactsSource* source_;
  Fd root_;  ///< valid: paths are looked up below it
  std::vector<Directory> directories_;
  std::vector<NameIndex::ListingId> listing_;  ///< by directory; apart, because each probe reads it
  std::unordered_map<std::string, DirId> by_path_;
  std::unordered_map<FileId, NameIndex::ListingId> by_id_;
  std::unordered_map<std::string, bool> probed_;
  NameIndex names_;
  /// By listing: equal to round_ when it holds the name that is looked for now.
  std::vector<std::uint32_t> holds_;
  std::uint32_t round_ = 0;
  std::string wanted_;
  const char* wanted_at_ = nullptr;
  std::uint64_t wanted_hash_ = 0;
  std::unordered_map<std::string, std::shared_ptr<const Result<FileFacts>>> facts_;
  std::unordered_set<std::string> opened_;
  std::vector<std::unordered_set<std::string>> looked_for_;  ///< by directory
};

}  // namespace heddle
