// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/content_hash.hpp"
#include "base/file_stamp.hpp"

namespace heddle {

using ObjectId = std::uint32_t;  ///< index into MapContent::objects
using ViewId = std::uint32_t;    ///< index into MapContent::views

/// One origin file. Its identity is (dev, ino): identical copies are two objects, because ld.so
/// tells files apart by (dev, ino) and a program may load both.
struct MapObject {
  std::string path;  ///< absolute; the first path the resolver found
  FileStamp stamp;   ///< at build time; dev, ino and ctime are the building node's
  std::uint32_t mode = 0;
  ContentHash hash;
  bool is_elf = true;  ///< false: a data file of a plugin directory
  std::string soname;  ///< empty: none
  std::vector<std::string> needed;
  std::string rpath;
  std::string runpath;
  std::vector<std::string> version_definitions;
  std::vector<std::string> version_needs;  ///< "file:version"
  std::uint64_t flags = 0;
  std::uint64_t flags_1 = 0;
  std::uint64_t tls_size = 0;
  std::uint64_t tls_align = 0;
  bool imports_dladdr = false;
  bool imports_dlopen = false;
};

/// One flat directory. Names may hold '/' only below a plugin directory ("ucx/libuct_cma.so.0").
struct MapView {
  std::string name;  ///< the directory's name in the mount's root, unique
  std::vector<std::pair<std::string, ObjectId>> names;  ///< sorted by name, unique
};

/// One library of a program's closure.
struct MapLibrary {
  ObjectId object = 0;
  std::string requested_as;  ///< the name that first led to it
  std::string found_by;   ///< preload|rpath|runpath|ld_library_path|cache|default|path|interpreter
  std::string needed_by;  ///< path of the first requester; empty: a preload
};

/// A guided program.
struct MapProgram {
  std::string path;  ///< absolute
  ObjectId object = 0;
  ViewId view = 0;
  std::string interpreter;
  /// The LD_LIBRARY_PATH it was resolved with, relative elements made absolute; unset is empty.
  std::string library_path;
  std::string hwcaps_tunable;  ///< likewise glibc.cpu.hwcaps in GLIBC_TUNABLES
  /// Names ld.so may ask for -> object: sonames, aliases and paths; sorted by name, unique. One
  /// that only a certain library asks for at run time is followed by a NUL and that library's path
  /// (the program's: empty).
  std::vector<std::pair<std::string, ObjectId>> guided;
  std::uint64_t static_tls_bytes = 0;  ///< static_tls.hpp's value; 0: glibc's default is enough
  std::uint64_t probes_unguided = 0;   ///< failed opens and stats ld.so makes without us
  std::vector<MapLibrary> libraries;   ///< in ld.so's order, without the program itself
  std::vector<std::string> missing;    ///< sonames that --allow-missing let pass
};

/// The object of `name` in a list that is sorted by name; null: none.
inline const ObjectId* find_name(const std::vector<std::pair<std::string, ObjectId>>& list,
                                 std::string_view name) {
  const auto at =
      std::ranges::lower_bound(list, name, {}, &std::pair<std::string, ObjectId>::first);
  return at == list.end() || at->first != name ? nullptr : &at->second;
}

/// A whole directory tree, served over its own path (tree_index.hpp).
struct MapTree {
  std::string path;   ///< absolute and canonical; no tree is within another
  std::string index;  ///< TreeIndex's bytes
};

/// A mount has inode numbers for so many generated files.
inline constexpr std::size_t kMaxGenerated = 32;

/// All of a map, in memory. Sorted vectors: the same input gives the same bytes.
struct MapContent {
  std::string host;  ///< node that built it (informational; not part of `show --json`)
  std::vector<MapObject> objects;                       ///< sorted by path
  std::vector<MapView> views;                           ///< sorted by name
  std::vector<MapProgram> programs;                     ///< sorted by path
  std::vector<std::pair<std::string, ObjectId>> paths;  ///< original absolute path -> object
  /// Files made by the build, in `.heddle/` or in the mount's root: name below the root -> bytes.
  /// Sorted by name, unique.
  std::vector<std::pair<std::string, std::string>> generated;
  std::vector<MapTree> trees;  ///< sorted by path
};

}  // namespace heddle
