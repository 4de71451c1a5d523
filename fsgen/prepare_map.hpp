// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "fsgen/app_trees.hpp"
#include "fsgen/gen_options.hpp"
#include "fsgen/run_cache.hpp"
#include "resolver/build/map_builder.hpp"
#include "resolver/map/map_content.hpp"

namespace heddle {

/// The map of one run.
struct PreparedMap {
  std::string path;            ///< absolute; of no file unless a mount needs it
  Fd file;                     ///< the map that content is of, whatever is at `path` by now; if any
  std::string id;              ///< of that file
  MapContent content;          ///< from the cache and for no mount: only the programs, unguided
  bool mount = true;           ///< Via::best tries mounts first
  bool slow_libraries = true;  ///< else a mount pays only for the trees
  bool is_bundle = false;
  std::string serve;                         ///< fs-mount --serve
  std::string index;                         ///< for Via::direct; empty: index_path, or to be made
  std::string index_path;                    ///< the cache's
  std::vector<std::string> speeds;           ///< "DIR: slow: WHY"
  std::vector<std::string> tree_notes;       ///< why directories are no trees
  std::optional<TreeCandidates> candidates;  ///< nullopt: another rank looked for them
  bool known_names = false;                  ///< of the cached trees, which are left out for it
  std::string key;                           ///< of the cache; empty: not cached
  bool cached = false;                       ///< nothing was resolved
  std::string not_cached;                    ///< why the next run has to resolve, too
  LearnedRun learned;                        ///< in the cache before this run
  std::uint64_t late_probes = 0;             ///< failed look-ups that its names save
  std::optional<std::size_t> program;        ///< APP's index in content.programs; nullopt: unguided
  std::string unguided_reason;
  std::uint64_t resolve_ns = 0;

  const MapProgram* app() const { return program ? &content.programs[*program] : nullptr; }
};

/// The user's cache. Failure: there is none, or an option asks for what it cannot have.
Result<RunCache> cache_for(const GenOptions& options);

/// Equal for runs of one command line in one directory, as long as no file changes.
std::string command_key(const GenOptions& options, const std::string& app_path);

/// Opens --map, or resolves APP (at `app_path`) and the programs that its arguments name
/// (`mpirun -n 2 ./app`), and writes the map to --out, or for a mount to `default_path` (empty:
/// only to the cache). An APP that cannot be guided (static, another libc, damaged) is no failure
/// but an unguided_reason. The map also holds the programs and libraries of `learned`. `cache`, if
/// not null, has the answer of an earlier run or receives this one's. With `before` this is the
/// same run's map once more, whose trees are taken over.
Result<PreparedMap> prepare_map(const GenOptions& options, const std::string& app_path,
                                const std::string& default_path, const RunCache* cache,
                                const LearnedRun& learned = {},
                                const PreparedMap* before = nullptr);

/// Fails if a library of APP in `map`, which must be --map's, is for a CPU of a higher level than
/// this one (`tuned`: less what GLIBC_TUNABLES takes away): its instructions may not be there.
Result<void> check_cpu(const PreparedMap& map, bool tuned);

/// Adds what a run of `map` loaded and executed to its entry of the cache, if that is new.
void learn_for_next_run(const GenOptions& options, const std::string& app_path,
                        const PreparedMap& map, const LearnedRun& run, const RunCache& cache);

}  // namespace heddle
