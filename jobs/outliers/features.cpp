// SPDX-License-Identifier: MIT
#include "jobs/outliers/features.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/escape.hpp"
#include "base/result.hpp"
#include "jobs/store/render.hpp"

namespace heddle::jobs::store {

JobTable load_jobs(Database& database, const Selection& selection,
                   const std::vector<std::string>& features) {
  JobTable table{features, {}, std::vector<Values>(features.size())};
  for (const std::string& feature : features)
    if (std::ranges::find(job_features(), feature) == job_features().end())
      throw Error("--feature", "unknown feature '" + escape_for_terminal(feature) + "'", {},
                  fmt::format("one of {}", fmt::join(job_features(), ", ")));
  for (const Row& row : select_jobs(
           database,
           fmt::format("id, start, jobid, username, jobname, {}", fmt::join(features, ", ")),
           selection)) {
    table.jobs.push_back(
        {to_int(row[0]), to_int(row[1]), to_text(row[2]), to_text(row[3]), to_text(row[4])});
    for (std::size_t f = 0; f < features.size(); ++f)
      table.columns[f].push_back(is_null(row[f + 5]) ? std::numeric_limits<double>::quiet_NaN()
                                                     : to_double(row[f + 5]));
  }
  return table;
}

void require_enough(const JobTable& table) {
  if (table.jobs.size() < kFewestJobs)
    throw Error("", counted(table.jobs.size(), "job is", "jobs are") + " too few to compare",
                fmt::format("at least {} are needed", kFewestJobs),
                "select more, or compare with a model: fs-job model");
}

std::vector<std::vector<int>> judge_jobs(const JobTable& table, const References* references) {
  std::vector<std::vector<int>> out;
  for (std::size_t f = 0; f < table.features.size(); ++f) {
    auto& marks = out.emplace_back(table.jobs.size(), 0);
    std::vector<Reference> of_model;
    if (references) {
      const auto found = references->find(table.features[f]);
      if (found == references->end()) continue;
      of_model = found->second;
    }
    Values known;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < table.jobs.size(); ++i)
      if (!std::isnan(table.columns[f][i])) {
        known.push_back(table.columns[f][i]);
        places.push_back(i);
      }
    const auto counts = count_outliers(known, of_model);
    for (std::size_t i = 0; i < places.size(); ++i) marks[places[i]] = counts[i];
  }
  return out;
}

Values pattern_scores(const JobTable& table) {
  const auto rows = static_cast<Eigen::Index>(table.jobs.size());
  Eigen::MatrixXd data =
      Eigen::MatrixXd::Zero(rows, static_cast<Eigen::Index>(table.features.size()));
  for (std::size_t f = 0; f < table.features.size(); ++f) {
    Values known;
    for (const double value : table.columns[f])
      if (!std::isnan(value)) known.push_back(value);
    const double median = median_of(known);
    double deviation = robust_deviation(known, median);
    if (deviation == 0) deviation = std::abs(median);
    if (deviation == 0) continue;
    for (Eigen::Index i = 0; i < rows; ++i) {
      const double value = table.columns[f][static_cast<std::size_t>(i)];
      if (!std::isnan(value)) data(i, static_cast<Eigen::Index>(f)) = (value - median) / deviation;
    }
  }
  const auto split = robust_pca(data);
  Values out;
  for (Eigen::Index i = 0; i < rows; ++i) out.push_back(split.sparse.row(i).norm());
  return out;
}

}  // namespace heddle::jobs::store
