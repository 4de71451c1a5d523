// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fd.hpp"
#include "resolver/search/name_set.hpp"
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
  static Result<OsWorld> below(FactsSource& source, const std::string& root);
  OsWorld(OsWorld&&) noexcept;
  ~OsWorld() override;

  DirId directory(std::string_view path) override;
  DirId subdirectory(DirId base, std::string_view relative) override;
  DirState state(DirId dir) override;
  Presence entry(DirId dir, const EntryName& name) override;
  Result<FileFacts> facts(const std::string& path) override;
  void prefetch(const std::vector<std::string>& paths) override;
  Result<std::string> head(const std::string& path) override;
  Result<std::string> read(const std::string& path) override;
  std::string real_path(const std::string& path) override;

 private:
  struct Folder;
  Result<Fd> open(const std::string& path, int flags);
  /// The path to hand to the facts source: `path` itself, or where it lies below the other root.
  Result<std::string> outside_path(const std::string& path);
  DirId add(std::string path, Folder folder);
  void list(Folder& folder, int fd);

  FactsSource* source_;
  Fd root_;  ///< valid: paths are looked up below it
  std::vector<std::unique_ptr<Folder>> folders_;
  std::unordered_map<std::string, DirId> by_path_;
  std::unordered_map<FileId, std::shared_ptr<const NameSet>> listings_;
  std::unordered_map<std::string, std::shared_ptr<const Result<FileFacts>>> facts_;
};

}  // namespace heddle
