// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "record/trace/event.hpp"

namespace heddle::trace {

inline constexpr int kTraceVersion = 1;

enum class Format { heddle_text, heddle_json, compat_lib };
std::string_view format_name(Format format);

/// What stands above a run's events. Unknown is empty, 0 or nullopt.
struct RunHeader {
  Format format = Format::heddle_text;  ///< set by the reader
  std::string run_id;
  std::vector<std::string> argv;
  std::string cwd;
  std::string host;
  std::uint64_t start_unix_ns = 0;
  std::optional<int> rank;
  std::string map_id;
  std::string method;               ///< how it was recorded: "namespace", "fusermount3", "proot"
  std::vector<std::string> scopes;  ///< `--scope` folders; none: everything
  std::vector<std::string> notes;   ///< folders left native, limits met: one sentence each

  bool operator==(const RunHeader&) const = default;
};

/// What stands below them. Counts are the writer's own; the recorder gives the rest.
struct RunFooter {
  bool complete = false;
  std::optional<int> exit_status;  ///< 128+n for a signal
  std::uint64_t end_ns = 0;        ///< since start
  std::uint64_t events = 0;
  std::uint64_t failed = 0;  ///< events whose result is not OK
  std::array<std::uint64_t, kOpCount> by_op{};

  bool operator==(const RunFooter&) const = default;
};

}  // namespace heddle::trace
