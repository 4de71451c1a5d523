// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace heddle::jobs {

using Number = std::optional<std::int64_t>;

/// The keys of a thread, in the order of the archive's metrics; then those of --perf.
inline constexpr std::array kKeys = {
    "tid",         "numranks",     "mpirank",     "usertime",
    "systemtime",  "rssmax",       "minflt",      "majflt",
    "inblock",     "outblock",     "vol_ctxsw",   "invol_ctxsw",
    "cminflt",     "cmajflt",      "cutime",      "cstime",
    "num_threads", "starttime",    "processor",   "delayacct_blkio_time",
    "guest_time",  "rchar",        "wchar",       "syscr",
    "syscw",       "read_bytes",   "write_bytes", "cancelled_write_bytes",
    "time_oncpu",  "time_waiting", "timeslices",  "rdtsc_duration"};
inline constexpr std::array kPerfKeys = {
    "PERF_COUNT_SW_CPU_CLOCK", "PERF_COUNT_SW_TASK_CLOCK", "PERF_COUNT_SW_PAGE_FAULTS",
    "PERF_COUNT_SW_CONTEXT_SWITCHES", "PERF_COUNT_SW_CPU_MIGRATIONS"};

using Metrics = std::array<Number, kKeys.size() + kPerfKeys.size()>;

/// A row of processes.tsv (docs/formats/job-archive.md).
struct ProcessRow {
  std::string tags, path, container, ended_by;
  std::vector<std::string> args, marks;
  Number exitcode, exitsignal, finish, failed_lookups, libraries;
  std::int64_t pid = 0, generation = 0, ppid = 0, pgid = 0, sid = 0, numtids = 1, start = 0;
  std::vector<Metrics> threads;
};

struct Library {
  std::string name, path;
  Number failed;
  Number size = {};  ///< of the file, now
  auto operator<=>(const Library&) const = default;
};

struct Collated {
  std::vector<ProcessRow> processes;
  std::vector<std::vector<Library>> libraries;  ///< set 1 is the first
  std::int64_t records = 0, damaged = 0, partial = 0;
  int perf_error = 0;
};

/// The processes that the collector's records at `path` tell of. Damaged records are counted and
/// passed over.
Result<Collated> collate(const std::string& path);

}  // namespace heddle::jobs
