// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/store/database.hpp"

namespace heddle::jobs::store {

inline constexpr int kSchemaVersion = 2;

enum class Total {
  sum,
  max,
  min
};  ///< what the numbers of several threads, or nodes, are together

struct Metric {
  std::string_view name;
  Total total;
};
/// Of each thread, and so columns of processes, threads, hosts and jobs. The names are those of
/// epmt's dictionary, and failed_lookups, a process's; docs/jobs.md has the units.
inline constexpr std::array<Metric, 23> kMetrics = {
    {{"usertime", Total::sum},      {"systemtime", Total::sum},
     {"rssmax", Total::max},        {"minflt", Total::sum},
     {"majflt", Total::sum},        {"inblock", Total::sum},
     {"outblock", Total::sum},      {"vol_ctxsw", Total::sum},
     {"invol_ctxsw", Total::sum},   {"delayacct_blkio_time", Total::sum},
     {"guest_time", Total::sum},    {"rchar", Total::sum},
     {"wchar", Total::sum},         {"syscr", Total::sum},
     {"syscw", Total::sum},         {"read_bytes", Total::sum},
     {"write_bytes", Total::sum},   {"cancelled_write_bytes", Total::sum},
     {"time_oncpu", Total::sum},    {"time_waiting", Total::sum},
     {"timeslices", Total::sum},    {"rdtsc_duration", Total::sum},
     {"failed_lookups", Total::sum}}};
/// Of a node and a job, from its cgroup: bytes, and microseconds in which a task waited.
inline constexpr std::array<Metric, 6> kTotals = {{{"memory_peak", Total::max},
                                                   {"memory_max", Total::min},
                                                   {"oom_kills", Total::sum},
                                                   {"cpu_stall", Total::sum},
                                                   {"memory_stall", Total::sum},
                                                   {"io_stall", Total::sum}}};

/// Opens the database at `url`, or where it is by default if that is empty: $FS_JOB_DB, else
/// $XDG_DATA_HOME/heddle/jobs.db. `create`: a missing SQLite file is made, and
/// its directory where it is by default.
std::unique_ptr<Database> open_any(const std::string& url, bool create);
/// As open_any(); `create` makes the schema in SQLite too. Throws if it is missing or not of this
/// version.
std::unique_ptr<Database> open_store(const std::string& url, bool create = false);

/// Creates the schema, if there is none. Throws if it is of another version. Result: the version
/// that was found, 0: none.
int migrate(Database& database);

}  // namespace heddle::jobs::store
