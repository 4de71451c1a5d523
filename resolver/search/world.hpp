// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_stamp.hpp"
#include "base/result.hpp"
#include "resolver/elf/elf_facts.hpp"

namespace heddle {

/// A file name with its hash, made once per search and looked up in many directories.
struct EntryName {
  explicit EntryName(std::string_view name);
  std::string_view text;
  std::uint64_t hash;
};

/// The file system as the search sees it, so that tests can fake it and see what was asked. Paths
/// are the loader's (inside `--into ROOTFS` they are the container's). Each directory is listed
/// once.
class World {
 public:
  virtual ~World() = default;
  enum class Presence : std::uint8_t {
    absent,   ///< open(2) would give ENOENT, or what state() says
    present,  ///< there is such a name (a dangling link counts: facts() then fails with ENOENT)
  };
  /// A directory, existing or not; valid as long as the World.
  using DirId = std::uint32_t;

  /// The directory `path` (ends in '/'; empty: the current one). Asks the system once per path.
  virtual DirId directory(std::string_view path) = 0;
  /// The directory `relative` ("tls/x86_64/") below `base`. A missing one costs no system call when
  /// the listing of `base` shows it: ld.so has eleven such directories for each search directory.
  virtual DirId subdirectory(DirId base, std::string_view relative) = 0;
  /// What stat(2) says of it. ld.so does not look again into what is no directory.
  struct DirState {
    int stat_error = 0;  ///< errno; 0: there is something by that name
    bool is_directory = true;
    /// The errno of opening any name in it; 0: depends on the name.
    int open_error() const { return is_directory ? 0 : stat_error != 0 ? stat_error : ENOTDIR; }
  };
  virtual DirState state(DirId dir) = 0;
  /// Whether `dir` has an entry `name`, from the directory's listing; one that cannot be listed
  /// (mode 0711) is probed for this one name instead.
  virtual Presence entry(DirId dir, const EntryName& name) = 0;
  /// The file's facts, as FactsSource::facts gives them.
  virtual Result<FileFacts> facts(const std::string& path) = 0;
  virtual void prefetch(const std::vector<std::string>& paths) = 0;
  /// Content of a small file (/etc/ld.so.cache, /etc/ld.so.preload, the loader itself), or the
  /// first bytes of any: an ELF header's length, fewer if the file is shorter. These are asked for
  /// when facts() cannot parse a file, to tell what ld.so skips from what it dies of.
  enum class Part : bool { head, whole };
  virtual Result<std::string> read(const std::string& path, Part part) = 0;
  Result<std::string> read(const std::string& path) { return read(path, Part::whole); }
  /// Absolute, symlink-free form of `path` (as /proc/self/exe shows a program, for its $ORIGIN;
  /// "." gives the current directory); empty when it does not exist.
  virtual std::string real_path(const std::string& path) = 0;
};

}  // namespace heddle
