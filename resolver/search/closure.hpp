// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "resolver/elf/facts_source.hpp"

namespace heddle {

/// By which of ld.so's ways a library was found.
enum class FoundBy : std::uint8_t {
  program,  ///< the root itself
  preload,  ///< LD_PRELOAD or /etc/ld.so.preload
  rpath,
  runpath,
  ld_library_path,
  cache,         ///< ld.so.cache
  default_path,  ///< the loader's built-in directories
  path,          ///< the name had a slash
  interpreter,   ///< ld.so itself, mapped by the kernel
};
/// `preload`, `rpath`, ... `default` as the JSON spells them.
const char* to_string(FoundBy found_by);

/// Numbers of system calls ld.so makes while it searches, libraries and directories alike.
struct ProbeCount {
  std::uint64_t opens_failed = 0;
  std::uint64_t opens_done = 0;
  std::uint64_t stats_failed = 0;  ///< stat(2) of directories after a miss (dl-load.c, open_path)
  std::uint64_t stats_done = 0;
  std::uint64_t failed() const { return opens_failed + stats_failed; }
};

/// One file mapped into the process.
struct LoadedObject {
  std::string path;  ///< as ld.so spells it (l_name): not resolved, may be relative to nothing
  FileFacts file;
  FoundBy found_by = FoundBy::program;
  /// Index of the object whose search directories were used, for rpath and runpath.
  std::optional<std::size_t> searched_by;
  std::optional<std::size_t> needed_by;  ///< first requester; nullopt for the root and preloads
  std::string requested_as;              ///< the name that first led here, tokens expanded
  /// Every name this process asked for and got this object: sonames, aliases, paths.
  std::vector<std::string> names;
  /// Objects its dependencies led to, in the file's order (an index may repeat).
  std::vector<std::size_t> needs;
  /// A filtee of the root itself (a library loaded as a program): ld.so chains it ahead of the
  /// root, so that LD_TRACE_LOADED_OBJECTS does not print it. Stands at the end of
  /// Closure::objects.
  bool before_program = false;
};

/// A dependency without which the program does not start; once for each object that asks for it.
/// One that may be missing (DT_AUXILIARY, LD_PRELOAD) is a line of Closure::warnings instead.
struct MissingLibrary {
  std::string name;
  std::size_t needed_by = 0;  ///< index into Closure::objects
  std::string reason;         ///< "not found", or what is wrong with the file that was
};

/// One probe of a search, for `why`.
struct Probe {
  enum class Outcome : std::uint8_t {
    found,
    missing,
    no_directory,
    wrong_class,
    unreadable,
    not_elf,
    in_system_dir
  };
  std::string path;
  FoundBy by = FoundBy::path;
  std::size_t searched_by = 0;  ///< object whose RPATH/RUNPATH lists it; the requester else
  Outcome outcome = Outcome::missing;
};
const char* to_string(Probe::Outcome outcome);

/// One search for one name: what ld.so tries, in order. A name already loaded makes no search.
struct Search {
  std::string name;
  std::size_t requester = 0;
  std::optional<std::size_t> result;  ///< object found
  std::vector<Probe> probes;
};

/// All that ld.so maps for one program, in the order that LD_TRACE_LOADED_OBJECTS prints (breadth
/// first; objects[0] is the program). ld.so itself stands where something needs it; up to
/// glibc 2.40 it is left out when nothing does.
struct Closure {
  std::vector<LoadedObject> objects;
  std::vector<MissingLibrary> missing;
  ProbeCount probes;
  std::vector<Search> searches;  ///< filled only when SearchOptions::explain
  std::vector<std::string> warnings;
};

}  // namespace heddle
