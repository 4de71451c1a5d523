// SPDX-License-Identifier: MIT
#pragma once

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "jobs/outliers/statistics.hpp"
#include "jobs/store/selection.hpp"

namespace heddle::jobs::store {

/// Jobs with the numbers they are compared by.
struct JobTable {
  std::vector<std::string> features;
  struct Job {
    std::int64_t id = 0, start = 0;
    std::string jobid, user, name;
  };
  std::vector<Job> jobs;
  std::vector<Values> columns;  ///< one a feature; NaN: unknown
};

/// Throws for a feature that is none of job_features().
JobTable load_jobs(Database& database, const Selection& selection,
                   const std::vector<std::string>& features);

/// How many methods call each job an outlier: [feature][job]. A feature that a job lacks is not
/// judged. `references`: those of a model by feature; a feature without is left out.
using References = std::map<std::string, std::vector<Reference>>;
std::vector<std::vector<int>> judge_jobs(const JobTable& table, const References* references);

/// The norm of each job's part that does not follow the others' pattern, after each feature was
/// scaled to its median and deviation.
Values pattern_scores(const JobTable& table);

/// Fewer say nothing about what is usual.
inline constexpr std::size_t kFewestJobs = 4;
void require_enough(const JobTable& table);

/// The score of a feature that does not vary elsewhere.
inline constexpr double kNeverVaries = std::numeric_limits<double>::max();

/// Why a job is unlike others, in words.
struct Cause {
  std::string kind;     ///< library, memory, lookups, faults, node, processes, io
  std::string subject;  ///< the library, the host, the feature
  std::string text;
  std::string hint;
};
struct Ranked {
  std::string feature;
  double value = 0, median = 0, score = 0;  ///< in deviations of the others
};
struct Diagnosis {
  std::vector<Cause> causes;     ///< the one that explains most first
  std::vector<Ranked> features;  ///< the most unusual first
};
/// `table` has the job and the others; `job` is its place there.
Diagnosis find_causes(Database& database, const JobTable& table, std::size_t job);

/// The page of `fs-job report`.
std::string page_of(Database& database, const JobTable& table,
                    const std::vector<std::vector<int>>& marks);

}  // namespace heddle::jobs::store
