// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "fsgen/gen_options.hpp"
#include "resolver/build/map_builder.hpp"
#include "resolver/map/map_content.hpp"

namespace heddle {

/// The map of one run, and what it says of APP.
struct PreparedMap {
  std::string path;  ///< absolute
  MapContent content;
  std::optional<std::size_t> program;  ///< APP's place in content.programs; nullopt: runs unguided
  std::string unguided_reason;
  std::uint64_t resolve_ns = 0;

  const MapProgram* app() const { return program ? &content.programs[*program] : nullptr; }
};

/// Opens --map, or resolves APP (as found: `app_path`) and the programs that its arguments name
/// (`mpirun -n 2 ./app`), and writes the map to `default_path` or --out. That APP cannot be guided
/// (static, another libc, damaged) is no failure: it runs as it is, with the reason. `learned`:
/// what a run showed goes into the map too, programs as well as libraries.
Result<PreparedMap> prepare_map(const GenOptions& options, const std::string& app_path,
                                const std::string& default_path, const LearnedRun& learned = {});

}  // namespace heddle
