// SPDX-License-Identifier: MIT
#pragma once

// The machines that programs are checked against: this node or a root file system (NodeTarget), or
// a map (MapTarget). None of their files is executed.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"
#include "compat/artifact.hpp"
#include "compat/verdict.hpp"
#include "resolver/elf/elf_facts.hpp"
#include "resolver/map/map_content.hpp"
#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"

namespace heddle::compat {

/// Not for concurrent use.
class Target {
 public:
  virtual ~Target() = default;

  struct Loaded {
    std::optional<Reason> refused;  ///< the kernel would not start it: nothing else is set
    Closure closure;
    int glibc_minor = 0;
    std::set<std::string> not_searched;  ///< directories that this target may not open
  };
  /// What would be mapped for `program` here: objects[0] is the program itself. Fails when that is
  /// unknown (a loader other than glibc's), which is no verdict.
  virtual Result<Loaded> load(const Program& program) = 0;
  /// What the closure depends on besides the target: programs with equal keys share it.
  virtual std::string closure_key(const Program& program) = 0;
  /// Facts with symbols of the library at `path`, a LoadedObject's; nullopt: unknown.
  virtual std::optional<ElfFacts> symbols(const std::string& path) = 0;
  virtual void prefetch_symbols(const std::vector<std::string>& paths) {
    source_->prefetch(paths, FactsDetail::symbols);
  }
  /// The notes of the library at `path`; empty when they cannot be read.
  virtual ElfNotes notes(const std::string& path) = 0;
  /// The file that `soname` would give if `program` needed it; empty: none.
  virtual std::string find_library(const Program& program, const std::string& soname) = 0;
  virtual bool has_file(const std::string& path) = 0;
  /// "libc6 2.36-9"; empty: unknown.
  virtual std::string package_of(const std::string& /*path*/) { return {}; }
  /// GNU_PROPERTY_X86_ISA_1_*, of this node's CPU; 0: unknown.
  virtual std::uint32_t isa_levels();
  /// As uname -r gives it; empty: unknown.
  virtual std::string kernel();

 protected:
  explicit Target(FactsSource* source = nullptr) : source_(source) {}
  FactsSource* source_;
};

/// The directories that may be opened for an untrusted artifact, which can name any path: RPATH,
/// RUNPATH, PT_INTERP, names with a slash. Without a limit, verdicts would reveal which files exist
/// anywhere that this process has access.
///
/// `..` is removed from the text, and the result is opened. The kernel would resolve `..` after a
/// symlink differently; the search then finds less, never more.
class LibraryDirectories {
 public:
  /// Adds `directory` and all below it; not the root itself, nor relative paths.
  void add(const std::string& directory);
  /// Excludes `directory` and all below it.
  void leave_out(const std::string& directory);
  /// Whether `path` lies in one, by its text alone.
  bool contain(const std::string& path) const;

  /// Called with the directory before each access to it, which may hang with its file system, and
  /// with an empty name after it. May be empty.
  std::function<void(std::string_view directory)> on_look;

 private:
  std::set<std::string> added_, left_out_;  ///< lexically normal, with a '/' at the end
};

/// This node, or the root file system below a directory: its own ld.so, ld.so.cache and preloads;
/// CPU and kernel are this node's in both cases. Files are read once, at the first access.
class NodeTarget final : public Target {
 public:
  /// `root` empty: this node. `search`: the environment's part. `source` must outlive this.
  static Result<NodeTarget> open(FactsSource& source, const std::string& root,
                                 SearchOptions search);

  Result<Loaded> load(const Program& program) override;
  std::string closure_key(const Program& program) override;
  std::optional<ElfFacts> symbols(const std::string& path) override;
  ElfNotes notes(const std::string& path) override;
  std::string find_library(const Program& program, const std::string& soname) override;
  bool has_file(const std::string& path) override;
  /// From dpkg's database, which is read at the first call.
  std::string package_of(const std::string& path) override;

  /// From now on only `allowed` is opened for a program. Its own file is never opened.
  void open_only(std::shared_ptr<const LibraryDirectories> allowed) {
    allowed_ = std::move(allowed);
  }
  World& world() { return world_; }
  /// The prefix of the target's paths on this node: without symlinks, or empty.
  const std::string& root() const { return root_; }
  /// The path on this node of the target's `path`; empty: it does not exist.
  std::string outside(const std::string& path);
  /// Fails as read_loader_profile() does.
  Result<const LoaderProfile*> loader(const std::string& interpreter);

 private:
  NodeTarget(FactsSource& source, OsWorld world, std::string root, SearchOptions search)
      : Target(&source),
        world_(std::move(world)),
        root_(std::move(root)),
        search_(std::move(search)) {}
  bool may_open(const std::string& path) const { return !allowed_ || allowed_->contain(path); }
  std::string name_of(const std::string& path) const;
  Result<std::string> read_database(const std::string& file);
  std::string search_package(const std::string& path);

  std::shared_ptr<const LibraryDirectories> allowed_;  ///< nullptr: all
  OsWorld world_;
  std::string root_;  ///< without trailing '/'
  SearchOptions search_;
  std::unordered_map<std::string, std::string> packages_;  ///< by path
  std::unordered_map<std::string, LoaderProfile> loaders_;
  std::unordered_map<std::string, std::string> found_;  ///< find_library()
};

/// A map. A soname is looked up in the program's view if the map has the program, else in all views
/// in order. Symbols are read from the origins, if they have not changed; CPU and kernel are this
/// node's.
class MapTarget final : public Target {
 public:
  /// `source` must outlive this. Fails as MapReader does.
  static Result<MapTarget> open(FactsSource& source, const std::string& path);

  Result<Loaded> load(const Program& program) override;
  std::string closure_key(const Program& program) override;
  std::optional<ElfFacts> symbols(const std::string& path) override;
  ElfNotes notes(const std::string& path) override;
  std::string find_library(const Program& program, const std::string& soname) override;
  bool has_file(const std::string& path) override { return by_path_.contains(path); }

  const MapContent& content() const { return content_; }

 private:
  MapTarget(FactsSource& source, MapContent content);
  const MapObject* find(const Program& program, const std::string& name) const;

  MapContent content_;
  std::unordered_map<std::string, ObjectId> by_path_;
};

/// Reads an ELF file's notes from the program headers of the open file `fd`; `path` is for
/// messages. Big-endian files and damaged notes have none. Fails only when it is no ELF file.
Result<ElfNotes> read_elf_notes(int fd, const std::string& path);

/// Whether this kernel executes programs of `machine` natively.
bool runs_here(std::uint16_t machine);

/// A file's loader: PT_INTERP; for a library, that of its machine.
std::string interpreter_of(const ElfFacts& elf);

/// A library's soname, else its file's name.
std::string shown_name(const LoadedObject& object);

}  // namespace heddle::compat
