// SPDX-License-Identifier: MIT
// epmt's conventions by its own golden vectors, and the robust PCA beside numpy.
#include "jobs/outliers/statistics.hpp"

#include <random>

#include "tests/support/prelude.hpp"

namespace heddle::jobs::store {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

TEST(JobStatistics, z_scores_are_those_of_epmt) {
  const auto scored = z_score({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1000});
  EXPECT_THAT(scored.scores,
              ElementsAre(.332, .3285, .325, .3215, .318, .3145, .311, .3075, .304, .3005, 3.1621));
  EXPECT_EQ(scored.reference.worst, 3.1621);
  EXPECT_EQ(scored.reference.centre, 95.9091);
  EXPECT_EQ(scored.reference.spread, 285.9118);
  EXPECT_THAT(z_score({5, 5, 5}).scores, ElementsAre(0, 0, 0));
}

TEST(JobStatistics, iqr_and_its_fitted_quartiles_are_those_of_epmt) {
  const auto scored = iqr({1, 1, 2, 3, 4, 1, 100});
  EXPECT_THAT(scored.scores, ElementsAre(0, 0, 0, 0, 0, 0, 1));
  EXPECT_EQ(scored.reference.centre, 38.125);
  EXPECT_EQ(scored.reference.spread, 62.875);
  EXPECT_THAT(iqr({100, 100, 100, 45, 100}).scores, ElementsAre(0, 0, 0, 1, 0));
  const auto fitted = iqr({1, 2, 3, 4, 3, 2, 1, 10}).reference;
  EXPECT_EQ(fitted.centre, 4.375);
  EXPECT_EQ(fitted.spread, 6.625);
  EXPECT_THAT(iqr({1, 2, 3, 4, 3, 2, 1, 10}, &fitted).scores, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(iqr({0.9, 10.1, 10}, &fitted).scores, ElementsAre(1, 1, 0));
}

TEST(JobStatistics, modified_z_falls_back_to_the_mean_deviation_and_to_infinity) {
  EXPECT_THAT(modified_z_score({1, 2, 3, 4, 100}).scores,
              ElementsAre(1.349, .6745, 0, .6745, 65.4265));
  EXPECT_THAT(modified_z_score({1, 1, 1, 1, 6}).scores, ElementsAre(0, 0, 0, 0, 3.3725));
  const Reference constant{0, 1, 0};
  EXPECT_THAT(modified_z_score({1, 2}, &constant).scores,
              ElementsAre(0, std::numeric_limits<double>::infinity()));
}

TEST(JobStatistics, methods_are_counted_as_epmt_counts_them) {
  EXPECT_THAT(count_outliers({1, 2, 1, 1, 1, 1, 2, 1, 0, 2, 100, 100}),
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2));
  EXPECT_THAT(count_outliers({1, 2, 1, 1, 1, 1, 2, 1, 0, 2, 100}),
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3));
}

// The same method in numpy, with its singular value decomposition.
constexpr const char* kNumpy = R"(
import sys, numpy as np
X = np.loadtxt(sys.stdin)
lam = 1 / np.sqrt(max(X.shape)); norm = np.linalg.norm(X, 2)
Y = X / max(norm, np.abs(X).max() / lam); mu = 1.25 / norm; top = mu * 1e7; L = np.zeros_like(X)
shrink = lambda A, t: np.sign(A) * np.maximum(np.abs(A) - t, 0)
for _ in range(200):
    S = shrink(X - L + Y / mu, lam / mu)
    U, s, V = np.linalg.svd(X - S + Y / mu, full_matrices=False)
    L = U * np.maximum(s - 1 / mu, 0) @ V
    gap = X - L - S; Y = Y + mu * gap; mu = min(mu * 1.5, top)
    if np.linalg.norm(gap) < 1e-7 * np.linalg.norm(X): break
np.savetxt(sys.stdout, S)
)";

TEST(JobStatistics, robust_pca_is_that_of_numpy) {
  if (test::run({"/usr/bin/python3", "-c", "import numpy"}).status != 0)
    HEDDLE_SKIP("python3-numpy is not installed");
  std::mt19937 random(1);
  std::normal_distribution<> normal;
  Eigen::MatrixXd data(60, 6);
  for (int i = 0; i < 60; ++i) {
    const double common = normal(random);
    for (int f = 0; f < 6; ++f) data(i, f) = common * (f + 1) + 0.01 * normal(random);
  }
  data(7, 2) += 40;
  std::ostringstream text;
  text.precision(17);
  text << data << "\n";
  const auto numpy = test::run({"/usr/bin/python3", "-c", kNumpy}, {.input = text.str()});
  ASSERT_EQ(numpy.status, 0) << numpy.err;
  std::istringstream in(numpy.out);
  const auto split = robust_pca(data);
  for (int i = 0; i < 60; ++i)
    for (int f = 0; f < 6; ++f) {
      double expected = 0;
      in >> expected;
      EXPECT_NEAR(split.sparse(i, f), expected, 1e-5);
    }
  EXPECT_GT(split.sparse(7, 2), 20);
  EXPECT_LT((data - split.sparse - split.low_rank).norm(), 1e-6 * data.norm());
}

}  // namespace
}  // namespace heddle::jobs::store
