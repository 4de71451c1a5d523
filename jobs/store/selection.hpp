// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

#include "jobs/metadata.hpp"
#include "jobs/store/database.hpp"

namespace heddle::jobs::store {

/// Which jobs a command is about.
struct Selection {
  std::vector<std::string> jobs;  ///< [CLUSTER/]JOBID[@START]
  std::vector<std::string> tags;  ///< `k:v;k:v`: all of one, any of several; an empty one: untagged
  std::vector<std::string> hosts, users, names;
  std::string before, after, when, order;
  std::int64_t limit = 0, offset = 0;
  bool incomplete = false;  ///< only those with hosts missing
};

/// Checks that an option's value is a time as parse_time() takes it, or one of `columns`.
CLI::Validator time_check();
CLI::Validator column_check(std::vector<std::string> columns);

/// Adds its options, and the argument JOB.
void add_selection(CLI::App& app, Selection& selection);

/// `SELECT columns FROM jobs` of these jobs, in order; by default the newest last.
std::vector<Row> select_jobs(Database& database, const std::string& columns,
                             const Selection& selection);

/// How a job is named that one of `repeated` may be: ID, or ID@START where several have this id.
std::string name_of_job(const std::set<std::string>& repeated, const std::string& id,
                        std::int64_t start);
/// The ids that several jobs have, as all runs of one shell have outside a scheduler.
std::set<std::string> repeated_ids(Database& database);

/// The id of the one job that `name` means. Throws if there is none, or several.
std::int64_t find_job(Database& database, const std::string& name);

/// Microseconds since the epoch of `2026-11-23[ 20:15[:30]]`, `11/23/2026[ 20:15]` (local time), 0
/// or -DAYS before now, or a positive number of seconds since the epoch.
std::int64_t parse_time(const std::string& text);
/// `2026-11-23 20:15:30`, local time.
std::string time_text(std::int64_t us);

/// `k:v;k:v` as pairs; a tag without colon has the value "1".
std::vector<std::pair<std::string, std::string>> parse_tags(const std::string& text);

/// The columns of the view jobs that are numbers, and may be ordered by and compared.
const std::vector<std::string>& job_features();

}  // namespace heddle::jobs::store
