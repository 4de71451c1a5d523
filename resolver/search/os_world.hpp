// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/fd.hpp"
#include "resolver/search/name_index.hpp"
#include "resolver/search/world.hpp"

namespace heddle {

/// The real file system, optionally the one below another root (a container's root folder: absolute
/// paths and symbolic links are then resolved inside it, by openat2 RESOLVE_IN_ROOT). What it has
/// seen it remembers for good: one World for one run over unchanging files. Not for concurrent use.
class OsWorld final : public World {
 public:
  /// Facts come from `source`, which must outlive this.
  explicit OsWorld(FactsSource& source);
  /// As above, below the folder `root`. Fails when it cannot be opened.
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
  Result<std::string> head(const std::string& path) override;
  Result<std::string> read(const std::string& path) override;
  /// The strings and data of an ELF file, without its code (read_data_segments()).
  Result<std::string> read_data(const std::string& path);
  std::string real_path(const std::string& path) override;

  /// All that its answers hang on, below another root: each path that was looked at, there or not,
  /// and each name that was looked for in a folder. Of a folder in which many were it is the folder
  /// itself with a slash behind it, meaning all its names. Sorted. Nothing without another root.
  std::vector<std::string> asked() const;
  /// The folder there, or by O_PATH anything.
  Result<Fd> open(const std::string& path, int flags);
  /// As the function of that name (base/open_regular.hpp).
  Result<Fd> open_regular(const std::string& path);

 private:
  struct Folder {
    std::string path;  ///< ends in '/', or empty
    DirState state;
  };
  /// Where `path` below the other root lies, for the eye: it may be another's by now.
  Result<std::string> outside_path(const std::string& path);
  DirId add(std::string path, DirState state, NameIndex::ListingId listing);
  /// The listing of the folder that `fd` is open on; kUnlisted when it cannot be read to its end.
  NameIndex::ListingId list(int fd);
  void look_for(const EntryName& name);
  bool probe(DirId dir, const EntryName& name);
  void note(DirId dir, const EntryName& name);

  /// Listings that are none: of what is no folder, and of what cannot be listed.
  static constexpr NameIndex::ListingId kNothing = 0;
  static constexpr NameIndex::ListingId kUnlisted = 1;
  /// The folder that no path stands for: any missing sub-folder.
  static constexpr DirId kMissing = 0;

  FactsSource* source_;
  Fd root_;  ///< valid: paths are looked up below it
  std::vector<Folder> folders_;
  std::vector<NameIndex::ListingId> listing_;  ///< by folder; apart, because each probe reads it
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
  std::vector<std::unordered_set<std::string>> looked_for_;  ///< by folder
};

}  // namespace heddle
