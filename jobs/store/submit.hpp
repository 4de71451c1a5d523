// SPDX-License-Identifier: MIT
#pragma once

#include "jobs/store/archive.hpp"
#include "jobs/store/database.hpp"

namespace heddle::jobs::store {

/// Stores `archive` in one transaction: its rows, and the row of its job, derived from all of the
/// job's archives. False: it is in the database already, which is unchanged.
bool submit(Database& database, Archive archive);

struct JoinedTrace {
  std::size_t files = 0, processes = 0;
  std::uint64_t unknown = 0;  ///< events of no process of the job
};
/// What a hostile trace may cost: its runs, and what is kept of it.
struct TraceLimits {
  int runs = 1000;
  std::size_t files = std::size_t{1} << 20;
  std::size_t bytes = std::size_t{512} << 20;  ///< of their paths
};
/// Stores which files each process of `job` used, in one transaction, as fs-record's trace `file`
/// has it. Every byte of it may be chosen by another user: the worst is rows of nonsense in
/// the own job.
JoinedTrace submit_trace(Database& database, std::int64_t job, const std::string& file,
                         const TraceLimits& limits = {});

}  // namespace heddle::jobs::store
