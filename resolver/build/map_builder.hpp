// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "resolver/build/app_inputs.hpp"
#include "resolver/build/learned_run.hpp"
#include "resolver/map/map_content.hpp"
#include "resolver/search/closure.hpp"
#include "resolver/search/search.hpp"
#include "resolver/search/world.hpp"

namespace heddle {

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

}  // namespace heddle
