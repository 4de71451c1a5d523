// SPDX-License-Identifier: MIT
#pragma once

// One page shared by all guided processes of a run (the file HEDDLE_COUNTERS): the audit library
// adds to it with relaxed atomics, fs-gen reads it for its report. Native endianness.

#include <cstdint>

namespace heddle {

inline constexpr char kCountersMagic[8] = {'H', 'E', 'D', 'D', 'L', 'C', 'T', '1'};

struct Counters {
  char magic[8];
  std::uint64_t guided_processes;    ///< with a program of the index
  std::uint64_t unguided_processes;  ///< others that loaded the audit library
  std::uint64_t names_guided;        ///< la_objsearch calls answered with a path of the index
  std::uint64_t names_unknown;       ///< names left to ld.so
  std::uint64_t probes;              ///< candidate paths ld.so itself tried, in guided processes
  std::uint64_t probes_unguided;     ///< the same in unguided processes
  /// CLOCK_MONOTONIC nanoseconds: set by fs-gen just before exec of APP; the first guided process
  /// with pid `app_pid` stores the moment its libraries are ready (la_preinit).
  std::uint64_t app_pid;
  std::uint64_t exec_ns;
  std::uint64_t ready_ns;
  /// Of the unguided: programs that the index knows, with another LD_LIBRARY_PATH than this one.
  std::uint64_t other_library_path;
  std::uint64_t app_start;     ///< AppStart of the first program with pid `app_pid`
  std::uint64_t start_probes;  ///< `probes` at the moment ready_ns
  std::uint64_t found;         ///< of probes and probes_unguided: libraries, which were then mapped
  std::uint64_t left;          ///< processes that went on without the audit library

  /// Paths that ld.so tried without finding a file.
  std::uint64_t failed() const {
    const auto tried = probes + probes_unguided;
    return tried > found ? tried - found : 0;
  }
};

/// How APP started.
enum class AppStart : std::uint64_t {
  unknown,  ///< it ended before its libraries were loaded, or without the audit library
  guided,
  unguided,            ///< not in the index
  other_library_path,  ///< in the index with another LD_LIBRARY_PATH
};

}  // namespace heddle
