// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "compat/package_index.hpp"
#include "compat/program_world.hpp"
#include "compat/target.hpp"
#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"

namespace heddle::compat {

/// This node, or the root file system below a folder: its own ld.so, ld.so.cache and preloads; CPU
/// and kernel are this node's in both cases. It sees the files as they are when it first looks.
class NodeTarget final : public Target {
 public:
  /// `root` empty: this node. `search` is what the environment adds. Facts come from `source`,
  /// which must outlive this.
  static Result<NodeTarget> open(FactsSource& source, const std::string& root,
                                 SearchOptions search);

  Result<Loaded> load(const Program& program) override;
  std::string closure_key(const Program& program) override;
  std::optional<Result<ElfFacts>> symbols(const std::string& path) override;
  void prefetch_symbols(const std::vector<std::string>& paths) override;
  ElfNotes notes(const std::string& path) override;
  std::string find_library(const Program& program, const std::string& soname) override;
  bool has_file(const std::string& path) override;
  std::string package_of(const std::string& path) override;
  std::uint32_t isa_levels() override;
  std::string kernel() override;

  /// From now on nothing else is opened for a program. Its own file never is.
  void open_only(std::shared_ptr<const LibraryFolders> allowed) { allowed_ = std::move(allowed); }
  World& world() { return world_; }
  /// What stands before the target's paths on this node: symlink-free, or empty.
  const std::string& root() const { return root_; }
  /// Where `path` lies on this node; empty: it does not exist.
  std::string outside(const std::string& path);
  /// The loader that `program` would get. Fails as read_loader_profile does.
  Result<const LoaderProfile*> loader(const std::string& interpreter);

 private:
  NodeTarget(FactsSource& source, OsWorld world, std::string root, SearchOptions search);

  bool may_open(const std::string& path) const { return !allowed_ || allowed_->contain(path); }

  FactsSource* source_;
  std::shared_ptr<const LibraryFolders> allowed_;  ///< nullptr: all
  OsWorld world_;
  std::string root_;  ///< symlink-free, without trailing '/'; empty: none
  SearchOptions search_;
  PackageIndex packages_;
  std::unordered_map<std::string, LoaderProfile> loaders_;
  std::unordered_map<std::string, std::string> found_;  ///< find_library()
};

/// The loader a file asks for: PT_INTERP, or for a library that of its machine.
std::string interpreter_of(const ElfFacts& elf);

}  // namespace heddle::compat
