// SPDX-License-Identifier: MIT
#pragma once

// One case a database: a store of jobs in SQLite or in a PostgreSQL server of the test's own.

#include "tests/jobs/archive_text.hpp"
#include "tests/jobs/job_store_support.hpp"

namespace heddle::test {

inline std::unique_ptr<PostgresServer> server;
inline std::string no_server;  ///< why there is none

/// A job of 20,000 processes in groups below a shell.
inline FakeJob large_job() {
  FakeJob job{.id = "large", .duration = 30'000'000'000};
  job.processes = {{.pid = 1'000'000, .finish = 29'000'000'000, .exename = "sh"}};
  for (int i = 1; i < 20'000; ++i)
    job.processes.push_back({.pid = 1'000'000 + i,
                             .ppid = 1'000'000 + i / 5,
                             .start = i * 1000LL,
                             .finish = i < 5000 ? 29'000'000'000 : i * 1000LL + 900,
                             .exename = "p" + std::to_string(i % 50),
                             .args = std::string(100, 'x'),
                             .threads = 1 + i % 2});
  return job;
}

class Store : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    program_ = staged_program("fs-job");
    if (program_.empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
    url_ = dir_ / "jobs.db";
    if (GetParam() == "postgres"s) {
      if (!server) HEDDLE_SKIP(no_server);
      server->sql("admin", "DROP SCHEMA IF EXISTS fs_job CASCADE");
      url_ = server->url("admin");
      ASSERT_EQ(job({"migrate"}).status, 0);
    }
  }
  RunResult job(const Strings& words, std::chrono::milliseconds deadline = 60s) const {
    return test::run(
        Strings{program_} + words,
        {.env = {"FS_JOB_DB=" + url_, "TZ=UTC"}, .cwd = dir_.path(), .deadline = deadline});
  }
  std::string out(const Strings& words) const {
    const auto done = job(words);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.out;
  }
  Strings ids(const Strings& words) const {
    return lines_of(out(Strings{"query", "--columns", "jobid", "--format", "csv"} + words));
  }
  std::string archive(const FakeJob& job) const {
    return write_archive(job, dir_ / (job.id + "-" + job.host + ".tar.gz"));
  }
  /// One line on standard error besides hints, and status 3.
  void expect_refused(const Strings& words, const std::string& why) const {
    const auto done = job(words);
    EXPECT_EQ(done.status, 3) << done.out;
    EXPECT_THAT(done.err, HasSubstr(why));
    auto lines = lines_of(done.err);
    std::erase_if(lines,
                  [](const std::string& line) { return line.find("hint:") != std::string::npos; });
    EXPECT_EQ(lines.size(), 1U) << done.err;
  }

  TestDir dir_;
  std::string program_, url_;
};

}  // namespace heddle::test
