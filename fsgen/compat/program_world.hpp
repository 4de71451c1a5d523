// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "resolver/search/world.hpp"

namespace heddle::compat {

/// A machine's files, and one program among them that is known by its facts alone: an artifact's.
class ProgramWorld final : public World {
 public:
  /// Borrows `base`.
  ProgramWorld(World& base, std::string path, ElfFacts elf) : base_(base), path_(std::move(path)) {
    file_.elf = std::move(elf);
  }

  DirId directory(std::string_view path) override { return base_.directory(path); }
  DirId subdirectory(DirId base, std::string_view relative) override {
    return base_.subdirectory(base, relative);
  }
  DirState state(DirId dir) override { return base_.state(dir); }
  Presence entry(DirId dir, const EntryName& name) override { return base_.entry(dir, name); }
  Result<FileFacts> facts(const std::string& path) override {
    return path == path_ ? Result<FileFacts>(file_) : base_.facts(path);
  }
  void prefetch(const std::vector<std::string>& paths) override { base_.prefetch(paths); }
  Result<std::string> head(const std::string& path) override { return base_.head(path); }
  Result<std::string> read(const std::string& path) override { return base_.read(path); }
  /// The program's path as its folder is here; as it was described when there is no such folder.
  std::string real_path(const std::string& path) override;

 private:
  World& base_;
  std::string path_;
  FileFacts file_;
};

}  // namespace heddle::compat
