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

/// What one program loaded in a run besides what the map knew.
struct LearnedProgram {
  /// Name -> the file (absolute path) that ld.so found for it.
  std::map<std::string, std::string> libraries;
  /// Names that led to several files, in several processes or at several times.
  std::set<std::string> ambiguous;
};

/// The programs of one run, by the path of /proc/PID/exe.
using LearnedRun = std::map<std::string, LearnedProgram>;

/// Reads the log that the audit library wrote (resolver/map/learn_format.hpp). A record that was
/// cut short, and all behind it, is left out, and so is each name that is not is_plain_name().
Result<LearnedRun> read_learned_run(const std::string& path);

struct BuildOptions {
  SearchOptions search;
  std::vector<std::string> plugin_directories;
  /// What a run showed beyond what the files say: programs that are no roots are not looked at.
  LearnedRun learned;
};

/// A library that no search found, and the file that wants it.
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
  /// One line each: libraries that import dladdr and may look for files beside themselves, what the
  /// search had to say.
  std::vector<std::string> notes;
};

/// Resolves the roots as ld.so would and arranges the closures as views. Fails when a required root
/// cannot be read or its loader is not glibc's; one that is not required is then left out with a
/// note. A missing library is no failure here: the caller looks at `missing` and decides.
Result<BuildResult> build_map(World& world, const std::vector<AppRoot>& roots,
                              const BuildOptions& options);

/// The files below the plugin directory `directory` as (absolute path, name in the view): "<last
/// part of directory>/<path below it>", so that a library that looks beside itself finds them.
/// Links count as the files they lead to. Sorted; fails when the directory cannot be listed.
Result<std::vector<std::pair<std::string, std::string>>> list_plugin_directory(
    const std::string& directory);

/// A library that probably opens plugins which it finds by its own place (dladdr): where it is
/// served from a view, it looks there.
struct PluginSuspect {
  std::string library;
  std::string directory;  ///< that holds them
  bool beside = false;    ///< the library's own directory, so that --plugins cannot bring them
};

/// The suspects among what `program` loads: they import dladdr and dlopen, and libraries that the
/// view has not lie beside them or in a directory there. In the system's library directories, which
/// hold everything, only a directory with a name like the library's counts. Lists directories: for
/// after the run.
std::vector<PluginSuspect> find_plugin_suspects(const MapContent& content,
                                                const MapProgram& program);

}  // namespace heddle
