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

/// The file system as the search sees it; tests fake it. Paths are the loader's (with
/// `--into ROOTFS` the container's). Each directory is listed once.
class World {
 public:
  virtual ~World() = default;
  enum class Presence : std::uint8_t {
    absent,   ///< open(2) fails with ENOENT or DirState::open_error()
    present,  ///< the name exists (for a dangling link facts() fails with ENOENT)
  };
  /// A directory, existing or not; valid as long as the World.
  using DirId = std::uint32_t;

  /// The directory `path` (ends in '/'; empty: the current one). One system call per path.
  virtual DirId directory(std::string_view path) = 0;
  /// The directory `relative` ("tls/x86_64/") below `base`: ld.so has eleven for each search
  /// directory. A missing one costs no system call when `base` could be listed.
  virtual DirId subdirectory(DirId base, std::string_view relative) = 0;
  /// The result of stat(2).
  struct DirState {
    int stat_error = 0;  ///< errno; 0: the name exists
    bool is_directory = true;
    /// The errno of opening any name in it; 0: depends on the name.
    int open_error() const { return is_directory ? 0 : stat_error != 0 ? stat_error : ENOTDIR; }
  };
  virtual DirState state(DirId dir) = 0;
  /// Whether `dir` has an entry `name`, by its listing; a directory that cannot be listed (mode
  /// 0711) is probed for the name.
  virtual Presence entry(DirId dir, const EntryName& name) = 0;
  /// The file's facts, as FactsSource::facts gives them.
  virtual Result<FileFacts> facts(const std::string& path) = 0;
  virtual void prefetch(const std::vector<std::string>& paths) = 0;
  /// Reads directories that directory() will be asked for, many at once.
  virtual void prefetch_directories(const std::vector<std::string>& /*paths*/) {}
  /// The content of a small file (/etc/ld.so.cache, /etc/ld.so.preload, the loader itself), or at
  /// most an ELF header's length of any file: when facts() fails, the header decides whether ld.so
  /// skips the file or ends.
  enum class Part : bool { head, whole };
  virtual Result<std::string> read(const std::string& path, Part part) = 0;
  Result<std::string> read(const std::string& path) { return read(path, Part::whole); }
  /// Absolute, symlink-free form of `path` (as /proc/self/exe shows a program, for its $ORIGIN;
  /// "." gives the current directory); empty when it does not exist.
  virtual std::string real_path(const std::string& path) = 0;
};

}  // namespace heddle
