// SPDX-License-Identifier: MIT
#pragma once

// The outlier methods of epmt (epmt_stat.py), with its conventions, so that its users find the same
// jobs: scores are rounded to four digits, standard deviations are those of the population,
// percentiles are interpolated linearly. And a robust principal component analysis.

#include <Eigen/Core>
#include <array>
#include <vector>

namespace heddle::jobs::store {

using Values = std::vector<double>;

/// What a reference model keeps of one feature and method; `spread` is Q3 for iqr.
struct Reference {
  double worst = 0;   ///< the greatest score in the reference; 0 for iqr
  double centre = 0;  ///< mean, median, or the Q1 that just lets the least value in
  double spread = 0;  ///< deviation, or the Q3 that just lets the greatest value in
};

struct Scores {
  Values scores;  ///< one a value; iqr: 1 for an outlier, else 0
  Reference reference;
};

/// Absolute z-scores; an outlier is above 3.0.
Scores z_score(const Values& values, const Reference* reference = nullptr);
/// 1.5 interquartile ranges beyond the quartiles.
Scores iqr(const Values& values, const Reference* reference = nullptr);
/// 0.6745 |y - median| / MAD; the mean absolute deviation where MAD is 0, infinity where both are;
/// an outlier is above 3.5.
Scores modified_z_score(const Values& values, const Reference* reference = nullptr);

struct Method {
  Scores (*score)(const Values&, const Reference*);
  double threshold;
};
inline constexpr std::array<Method, 3> kMethods = {
    {{iqr, 0}, {modified_z_score, 3.5}, {z_score, 3.0}}};

/// For each value the number of methods that call it an outlier; with `references`, one for each
/// method, that are above all of the reference.
std::vector<int> count_outliers(const Values& values,
                                const std::vector<Reference>& references = {});

double median_of(Values values);
/// 1.4826 MAD, which estimates the standard deviation; 0 if more than half are equal.
double robust_deviation(const Values& values, double median);

struct RobustPca {
  Eigen::MatrixXd low_rank;
  Eigen::MatrixXd sparse;  ///< what does not follow the common pattern
};
/// Principal component pursuit (Candes, Li, Ma, Wright 2011) by the inexact augmented Lagrangian
/// method (Lin, Chen, Ma 2010): `data` is the sum of both parts. Rows are jobs. Deterministic.
RobustPca robust_pca(const Eigen::MatrixXd& data);

}  // namespace heddle::jobs::store
