// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "resolver/build/app_inputs.hpp"
#include "resolver/map/map_content.hpp"
#include "resolver/search/search.hpp"
#include "resolver/search/world.hpp"

namespace heddle {

/// A library that a program loaded in a run beyond those of the map.
struct LearnedLibrary {
  std::string caller;  ///< path of the library that requested it; empty: the program
  std::string name;
  std::string path;  ///< that ld.so found
  auto operator<=>(const LearnedLibrary&) const = default;
};
template <class Coder, IsRecord<LearnedLibrary> T>
void fields(Coder& coder, T& library) {
  coder(library.caller, library.name, library.path);
}

/// The programs of one run, by the path of /proc/PID/exe.
using LearnedRun = std::map<std::string, std::set<LearnedLibrary>>;

/// Reads the auditor's log (resolver/map/learn_format.hpp) up to the first incomplete record, and
/// of its names those that are is_plain_name() and requested by a library with an absolute path.
Result<LearnedRun> read_learned_run(const std::string& path);

struct BuildOptions {
  SearchOptions search;
  std::vector<std::string> plugin_directories;
  /// Applies to the roots only. A name is guided only for its caller, and only where the search
  /// from there finds that file whatever else is loaded.
  LearnedRun learned;
  /// Also search the files' directories for other names of the files. A mount needs them: there a
  /// file has another inode than under a name that is not in the map, and ld.so would load it
  /// twice.
  bool aliases = true;
};

/// A library that no search found, and the file that needs it.
struct MissingReport {
  std::string program;
  std::string name;
  std::string needed_by;
  std::string reason;
};

/// A root that was not required and could not be resolved.
struct LeftOut {
  std::string path;
  Error reason;
};

struct BuildResult {
  MapContent content;
  std::vector<MissingReport> missing;
  std::vector<LeftOut> left_out;
  std::uint64_t late_probes = 0;  ///< failed opens and stats that the learned names save
  /// One line each: warnings of the search, and libraries that import dladdr and may look for files
  /// beside themselves.
  std::vector<std::string> notes;
};

/// Resolves the roots as ld.so would and arranges the closures as views. Fails when a required root
/// cannot be read or its loader is not glibc's; other such roots go to `left_out`. Missing
/// libraries are no failure.
Result<BuildResult> build_map(World& world, const std::vector<AppRoot>& roots,
                              const BuildOptions& options);

/// The files below the plugin directory `directory` as (absolute path, name in the view): "<last
/// part of directory>/<path below it>", so that a library that looks beside itself finds them.
/// Links are followed. Sorted; fails when the directory cannot be listed.
Result<std::vector<std::pair<std::string, std::string>>> list_plugin_directory(
    const std::string& directory);

}  // namespace heddle
