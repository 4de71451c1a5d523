// SPDX-License-Identifier: MIT
// The table of fs-launch --report: what it says of ranks that did not report.
#include "launch/rank_report.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using launch::RankReport;
using launch::ReportDirectory;
using launch::to_table;

RankReport of(std::uint64_t rank, std::uint64_t size) {
  RankReport out;
  out.node = "n" + std::to_string(rank % 2);
  out.rank = rank;
  out.size = size;
  out.guided = true;
  return out;
}

TEST(ReportTable, ranks_that_did_not_report_are_numbered) {
  EXPECT_THAT(to_table({of(0, 9), of(4, 9), of(5, 9)}, 1),
              AllOf(HasSubstr("3 of 9 ranks guided on 2 nodes in 1.00 s"),
                    HasSubstr("6 ranks did not report (1-3, 6-8): static, setuid or")));
  EXPECT_THAT(to_table({of(0, 2)}, 1), HasSubstr("1 rank did not report (1): "));
  EXPECT_THAT(to_table({of(0, 1)}, 1), Not(HasSubstr("did not report")));
  std::vector<RankReport> even;
  for (std::uint64_t rank = 0; rank < 1000; rank += 2) even.push_back(of(rank, 1000));
  EXPECT_THAT(to_table(even, 1), HasSubstr("500 ranks did not report (1, 3, 5, 7, "));
  EXPECT_THAT(to_table(even, 1), HasSubstr(", 39, ...): "));
}

TEST(ReportTable, nodes_of_which_no_rank_reports_are_named) {
  EXPECT_THAT(to_table({of(0, 4), of(2, 4)}, 1, {0, {"n0.site", "n1"}}),
              HasSubstr("2 ranks did not report (1, 3; none of n1): "));
  EXPECT_THAT(to_table({of(0, 3), of(1, 3)}, 1, {0, {"n0", "n1"}}), HasSubstr(" (2): "));
  EXPECT_THAT(to_table({of(0, 2)}, 1, {0, {"node0", "node1"}}), HasSubstr(" (1): "));
  EXPECT_THAT(to_table({}, 1, {2, {"n0", "n1"}}), HasSubstr(" (0-1): "));
  // Other nodes than this one: if this one alone has reported, no name is another node's.
  EXPECT_THAT(to_table({of(0, 2)}, 1, {0, {"a", "b"}, true}), HasSubstr(" (1): "));
  auto own = of(0, 2);
  own.node = lines_of(run_checked({"uname", "-n"}).out).at(0);
  EXPECT_THAT(to_table({own}, 1, {0, {"a", "b"}, true}), HasSubstr(" (1; none of a, b): "));
}

TEST(ReportTable, job_of_which_no_rank_reports_has_a_reason) {
  EXPECT_THAT(to_table({}, 1), HasSubstr("no rank reported in 1.00 s, "));
  EXPECT_THAT(to_table({}, 1, {4, {}}), HasSubstr("0 of 4 ranks guided"));
  EXPECT_THAT(to_table({}, 1, {4, {}}), HasSubstr("4 ranks did not report (0-3): "));
}

TEST(ReportDirectories, what_killed_launches_left_is_removed_and_no_other) {
  const TestDir dir;
  const auto make = [&](const std::string& name, bool is_old) {
    write_text_file(dir / (name + "/n1"), "0 1 1 1 0 0 0 0\n");
    if (is_old) run_checked({"touch", "-d", "-2 minutes", dir / name});
  };
  const auto host = lines_of(run_checked({"uname", "-n"}).out).at(0);
  make("launch-" + host + "-abcdef", true);
  make("launch-" + host + "-ABCDEF", false);   // may be without its lock yet
  make("launch-" + host + "-x-abcdef", true);  // of the node HOST-x
  make("launch-other-abcdef", true);
  auto first = ReportDirectory::make(dir.path());
  ASSERT_TRUE(first);
  run_checked({"touch", "-d", "-2 minutes", first->path()});
  std::optional<ReportDirectory> second = value_or_throw(ReportDirectory::make(dir.path()));
  EXPECT_TRUE(fs::exists(first->path()));
  EXPECT_FALSE(fs::exists(dir / ("launch-" + host + "-abcdef")));
  EXPECT_TRUE(fs::exists(dir / ("launch-" + host + "-ABCDEF")));
  EXPECT_TRUE(fs::exists(dir / ("launch-" + host + "-x-abcdef")));
  EXPECT_TRUE(fs::exists(dir / "launch-other-abcdef"));
  const auto path = second->path();
  second.reset();
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace heddle::test
