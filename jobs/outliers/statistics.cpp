// SPDX-License-Identifier: MIT
#include "jobs/outliers/statistics.hpp"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace heddle::jobs::store {
namespace {

/// numpy's round(4): half to even.
double round4(double value) {
  return std::isfinite(value) ? std::nearbyint(value * 1e4) / 1e4 : value;
}

double mean_of(const Values& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// numpy's percentile, method "linear".
double percentile(const Values& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const auto high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

Values distances(const Values& values, double centre) {
  Values out;
  for (const double value : values) out.push_back(std::abs(value - centre));
  return out;
}

}  // namespace

double median_of(Values values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

double robust_deviation(const Values& values, double median) {
  return 1.4826 * median_of(distances(values, median));
}

Scores z_score(const Values& values, const Reference* reference) {
  Scores out;
  double& mean = out.reference.centre;
  double& deviation = out.reference.spread;
  if (reference) {
    mean = reference->centre;
    deviation = reference->spread;
  } else {
    const double exact = mean_of(values);
    double squares = 0;
    for (const double value : values) squares += (value - exact) * (value - exact);
    mean = round4(exact);
    deviation = round4(std::sqrt(squares / static_cast<double>(values.size())));
  }
  for (const double value : values) {
    double score = round4(std::abs((value - mean) / deviation));
    // numpy's nan_to_num
    if (std::isnan(score)) score = 0;
    if (std::isinf(score)) score = std::numeric_limits<double>::max();
    out.scores.push_back(score);
    out.reference.worst = std::max(out.reference.worst, score);
  }
  return out;
}

Scores iqr(const Values& values, const Reference* reference) {
  Scores out;
  Values sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const double q1 = reference ? reference->centre : percentile(sorted, 0.25);
  const double q3 = reference ? reference->spread : percentile(sorted, 0.75);
  const double reach = (q3 - q1) * 1.5;
  for (const double value : values)
    out.scores.push_back(value > q3 + reach || value < q1 - reach ? 1 : 0);
  out.reference.centre = round4(3 * sorted.back() / 8 + 5 * sorted.front() / 8);
  out.reference.spread = round4(5 * sorted.back() / 8 + 3 * sorted.front() / 8);
  return out;
}

Scores modified_z_score(const Values& values, const Reference* reference) {
  const double median = reference ? reference->centre : median_of(values);
  const Values away = distances(values, median);
  double spread = reference ? reference->spread : median_of(away);
  if (!reference && spread == 0) spread = mean_of(away);
  Scores out;
  for (const double distance : away) {
    const double score = spread > 0     ? round4(0.6745 * distance / spread)
                         : distance > 0 ? std::numeric_limits<double>::infinity()
                                        : 0;
    out.scores.push_back(score);
    out.reference.worst = std::max(out.reference.worst, score);
  }
  out.reference.centre = round4(median);
  out.reference.spread = round4(spread);
  return out;
}

std::vector<int> count_outliers(const Values& values, const std::vector<Reference>& references) {
  std::vector<int> out(values.size(), 0);
  if (values.empty()) return out;
  for (std::size_t m = 0; m < kMethods.size(); ++m) {
    const Reference* reference = references.empty() ? nullptr : &references[m];
    const double limit = reference ? reference->worst : kMethods[m].threshold;
    const auto scored = kMethods[m].score(values, reference);
    for (std::size_t i = 0; i < values.size(); ++i) out[i] += scored.scores[i] > limit ? 1 : 0;
  }
  return out;
}

RobustPca robust_pca(const Eigen::MatrixXd& data) {
  using Eigen::MatrixXd;
  using Eigen::VectorXd;
  constexpr int kMost = 200;
  constexpr double kTolerance = 1e-7;
  RobustPca out{MatrixXd::Zero(data.rows(), data.cols()), MatrixXd::Zero(data.rows(), data.cols())};
  const double whole = data.norm();
  if (whole == 0) return out;
  // Features are few: the singular vectors come from the small matrix X'X.
  const auto eigen = [](const MatrixXd& x) {
    return Eigen::SelfAdjointEigenSolver<MatrixXd>(x.transpose() * x);
  };
  const auto shrink = [](const MatrixXd& x, double by) {
    return MatrixXd(x.cwiseSign().array() * (x.cwiseAbs().array() - by).max(0.0));
  };
  const double lambda = 1 / std::sqrt(static_cast<double>(std::max(data.rows(), data.cols())));
  const double norm = std::sqrt(std::max(eigen(data).eigenvalues().maxCoeff(), 0.0));
  MatrixXd dual = data / std::max(norm, data.cwiseAbs().maxCoeff() / lambda);
  double mu = 1.25 / norm;
  const double most_mu = mu * 1e7;
  for (int round = 0; round < kMost; ++round) {
    out.sparse = shrink(data - out.low_rank + dual / mu, lambda / mu);
    const MatrixXd rest = data - out.sparse + dual / mu;
    const auto solved = eigen(rest);
    const VectorXd singular = solved.eigenvalues().cwiseMax(0.0).cwiseSqrt();
    VectorXd kept = VectorXd::Zero(singular.size());
    for (Eigen::Index i = 0; i < singular.size(); ++i)
      if (singular[i] * mu > 1) kept[i] = 1 - 1 / (mu * singular[i]);
    out.low_rank =
        rest * solved.eigenvectors() * kept.asDiagonal() * solved.eigenvectors().transpose();
    const MatrixXd gap = data - out.low_rank - out.sparse;
    dual += mu * gap;
    mu = std::min(mu * 1.5, most_mu);
    if (gap.norm() < kTolerance * whole) break;
  }
  return out;
}

}  // namespace heddle::jobs::store
