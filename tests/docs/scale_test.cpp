// SPDX-License-Identifier: MIT
//
// The scale model agrees with what was measured on one node, with itself and with docs/scale.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/fd.hpp"
#include "bench/scale_model.hpp"
#include "tests/support/source_file.hpp"

namespace heddle::bench {
namespace {

using test::source_file;

class Scale : public ::testing::Test {
 protected:
  ScaleCost cost(const std::string& method, double nodes, double ranks) const {
    for (const auto& one : scale_methods())
      if (method == one.name) return one.cost(constants_, nodes, ranks);
    throw Error(method, "is no method");
  }
  double value(const char* name) const { return constants_.at(name).value; }

  std::string text_ = value_or_throw(read_file(source_file("bench/scale_constants.txt")));
  ScaleConstants constants_ = value_or_throw(read_scale_constants(text_));
};

TEST_F(Scale, one_process_on_one_node_costs_what_was_measured) {
  EXPECT_EQ(cost("stock, nothing cached on the node", 1, 1).requests, value("stock_requests"));
  EXPECT_EQ(cost("stock, nothing cached on the node", 1, 1).seconds, value("stock_seconds"));
  EXPECT_EQ(cost("stock, names cached on the node", 1, 1).requests, value("cached_first"));
  EXPECT_EQ(cost("heddle, map", 1, 1).requests, value("map_requests"));
  EXPECT_EQ(cost("heddle, map", 1, 1).seconds, value("map_seconds"));
  const auto bundle = cost("heddle, bundle on the shared file system", 1, 1);
  EXPECT_EQ(bundle.requests, value("bundle_requests"));
  EXPECT_EQ(bundle.seconds, value("bundle_seconds"));
  EXPECT_EQ(cost("conda-pack: tar by sbcast, unpacked", 1, 1).seconds,
            value("unpack") + value("local_seconds"));
}

TEST_F(Scale, no_cost_shrinks_with_nodes_or_ranks) {
  for (const auto& method : scale_methods()) {
    SCOPED_TRACE(method.name);
    ScaleCost before;
    for (double nodes = 1; nodes <= 10'000; nodes *= 2) {
      const auto now = method.cost(constants_, nodes, 128);
      EXPECT_GE(now.requests, before.requests);
      EXPECT_GE(now.mib, before.mib);
      EXPECT_GE(now.seconds, before.seconds);
      const auto fewer = method.cost(constants_, nodes, 64);
      EXPECT_GE(now.requests, fewer.requests);
      EXPECT_GE(now.seconds, fewer.seconds);
      before = now;
    }
  }
}

TEST_F(Scale, later_ranks_of_a_node_cost_the_origin_nothing_with_heddle) {
  for (const auto& method : scale_methods()) {
    if (!std::string(method.name).starts_with("heddle")) continue;
    EXPECT_EQ(method.cost(constants_, 100, 1).requests, method.cost(constants_, 100, 128).requests);
  }
  EXPECT_EQ(cost("heddle, bundle by sbcast", 1, 128).requests,
            cost("heddle, bundle by sbcast", 10'000, 128).requests);
}

TEST_F(Scale, constants_are_those_of_the_kept_run) {
  const auto kept = source_file("bench/reference/python.json");
  std::map<std::string, double> figures;
  const auto run = nlohmann::json::parse(value_or_throw(read_file(kept)));
  for (const auto& figure : run.at("figures")) figures[figure.at("name")] = figure.at("value");
  int compared = 0;
  for (const auto& [name, constant] : constants_) {
    if (constant.kind != "measured" || !constant.source.starts_with("python.")) continue;
    // A figure, or one divided by a number: `python.copper.8.seconds / 8`.
    const auto words = constant.source.substr(0, constant.source.find_first_of(" ,"));
    const auto slash = constant.source.find(" / ");
    const double divisor =
        slash == std::string::npos ? 1 : std::stod(constant.source.substr(slash + 3));
    ASSERT_TRUE(figures.contains(words)) << name << ": " << words;
    EXPECT_NEAR(constant.value, figures[words] / divisor, 0.006 * constant.value)
        << name << " in bench/scale_constants.txt is not " << words << " of bench/reference";
    ++compared;
  }
  EXPECT_GT(compared, 5);
}

TEST_F(Scale, page_has_the_tables_of_the_program) {
  const auto page = value_or_throw(read_file(source_file("docs/scale.md")));
  EXPECT_EQ(page, with_scale_tables(page, constants_)) << "run ./dev figures";
  for (const auto& method : scale_methods()) EXPECT_THAT(page, ::testing::HasSubstr(method.name));
}

}  // namespace
}  // namespace heddle::bench
