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

/// The map of one run.
struct PreparedMap {
  std::string path;  ///< absolute
  MapContent content;
  std::optional<std::size_t> program;  ///< APP's index in content.programs; nullopt: unguided
  std::string unguided_reason;
  std::uint64_t resolve_ns = 0;

  const MapProgram* app() const { return program ? &content.programs[*program] : nullptr; }
};

/// Opens --map, or resolves APP (at `app_path`) and the programs that its arguments name
/// (`mpirun -n 2 ./app`), and writes the map to `default_path` or --out. An APP that cannot be
/// guided (static, another libc, damaged) is no failure but an unguided_reason. The map also holds
/// the programs and libraries of `learned`.
Result<PreparedMap> prepare_map(const GenOptions& options, const std::string& app_path,
                                const std::string& default_path, const LearnedRun& learned = {});

}  // namespace heddle
