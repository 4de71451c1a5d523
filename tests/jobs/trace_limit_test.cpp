// SPDX-License-Identifier: MIT
// A hostile trace is refused before it costs more than its limits, here smaller ones.
#include "jobs/store/schema.hpp"
#include "jobs/store/selection.hpp"
#include "jobs/store/submit.hpp"
#include "tests/jobs/job_store_support.hpp"

namespace heddle::jobs::store {
namespace {

TEST(TraceLimits, each_refuses_the_trace_and_stores_nothing) {
  const test::TestDir dir;
  test::FakeJob job;
  job.processes = {{.pid = 10}};
  const auto database = open_store(dir / "jobs.db", true);
  ASSERT_TRUE(submit(*database, read_archive(test::write_archive(job, dir / "1.tgz"))));
  const auto id = find_job(*database, "1");
  const std::string begin = "#heddle-trace\t1\n#host\tn1\n#start\t" +
                            std::to_string(test::kStart * 1000) +
                            "\t2020-09-13T12:26:40.000000000Z\n"
                            "#events\tns\tpid\ttid\top\tresult\tpath\tdetails\n";
  std::string text = begin;
  for (int i = 0; i < 100; ++i)  // each twice
    text += "1000\t10\t10\topen\tOK\t/" + std::string(1000, static_cast<char>('a' + i % 50 / 2)) +
            std::to_string(i % 50) + "\n";
  test::write_text_file(dir / "trace", text);
  test::write_text_file(dir / "twice", text + text);
  const auto files = [&] { return to_int(database->query("SELECT COUNT(*) FROM t_file")[0][0]); };
  const auto refusal = [&](const std::string& file, const TraceLimits& limits) -> std::string {
    try {
      submit_trace(*database, id, dir / file, limits);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal("trace", {.files = 49}), ::testing::HasSubstr("too many files"));
  EXPECT_THAT(refusal("trace", {.bytes = 50'000}), ::testing::HasSubstr("too many files"));
  EXPECT_THAT(refusal("twice", {.runs = 1}), ::testing::HasSubstr("too many runs"));
  EXPECT_EQ(files(), 0);
  EXPECT_EQ(refusal("twice", {.runs = 2, .files = 50, .bytes = 51'000}), "");
  EXPECT_EQ(files(), 50);
}

}  // namespace
}  // namespace heddle::jobs::store
