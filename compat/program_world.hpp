// SPDX-License-Identifier: MIT
#pragma once

#include <set>
#include <string>

#include "resolver/search/world.hpp"

namespace heddle::compat {

/// Is told before a look at something in `folder`, which may never end where a file system hangs,
/// and after it.
class LookObserver {
 public:
  virtual ~LookObserver() = default;
  virtual void begin(std::string_view folder) = 0;
  virtual void end() = 0;
};

/// The directories that may be opened for an artifact of somebody else. It names paths as it likes:
/// RPATH, RUNPATH, PT_INTERP, names with a slash. Without a limit the answers would tell which
/// files exist anywhere that this process can look.
///
/// `..` is taken away by the text and that form is what is opened: where a link stands before a
/// `..` the kernel would go elsewhere, and the search then finds less, never more.
class LibraryFolders {
 public:
  /// `folder` and all below it. The root itself, and what is not absolute, is not taken.
  void add(const std::string& folder);
  /// But not `folder`, nor anything below it.
  void leave_out(const std::string& folder);
  /// Whether `path` lies in one; nothing is looked at for that.
  bool contain(const std::string& path) const;

  LookObserver* observer = nullptr;

 private:
  std::set<std::string> folders_, left_out_;  ///< lexically normal, with a '/' at the end
};

/// `path` without `.`, `..` and doubled slashes; empty when it is not absolute.
std::string normal_path(std::string_view path);

/// A machine's files, and one program among them that is known by its facts alone: an artifact's.
class ProgramWorld final : public World {
 public:
  /// Borrows `base` and `allowed`. nullptr: all may be opened. Else what lies elsewhere is said not
  /// to be there, without a look at it.
  ProgramWorld(World& base, const LibraryFolders* allowed, std::string path, ElfFacts elf)
      : base_(base), allowed_(allowed), path_(std::move(path)) {
    file_.elf = std::move(elf);
  }

  DirId directory(std::string_view path) override;
  DirId subdirectory(DirId base, std::string_view relative) override;
  DirState state(DirId dir) override;
  Presence entry(DirId dir, const EntryName& name) override;
  Result<FileFacts> facts(const std::string& path) override;
  void prefetch(const std::vector<std::string>& paths) override;
  Result<std::string> head(const std::string& path) override;
  Result<std::string> read(const std::string& path) override { return base_.read(path); }
  /// The program's path as its folder is here; as it was described when there is no such folder.
  std::string real_path(const std::string& path) override;

  /// Directories that were not looked into; of many, the first ones.
  const std::set<std::string>& refused() const { return refused_; }

 private:
  /// The folder that stands for each one that may not be opened.
  static constexpr DirId kRefused = ~DirId{0};
  bool may_open(const std::string& path) const {
    return allowed_ == nullptr || allowed_->contain(path);
  }
  bool refuse(const std::string& path);

  World& base_;
  const LibraryFolders* allowed_;
  std::string path_;
  FileFacts file_;
  std::set<std::string> refused_;
};

}  // namespace heddle::compat
