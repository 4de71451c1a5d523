// SPDX-License-Identifier: MIT
// Whether jobs with an injected cause are found, and the cause named.
#include <regex>

#include "tests/jobs/job_store_support.hpp"
#include "tests/support/browser.hpp"

namespace heddle::test {
namespace {

class Outliers : public ::testing::Test {
 protected:
  void SetUp() override {
    program_ = staged_program("fs-job");
    if (program_.empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
  }
  RunResult job(const Strings& words, std::chrono::milliseconds deadline = 60s) const {
    return test::run(Strings{program_} + words,
                     {.env = {"FS_JOB_DB=" + dir_ / "jobs.db"}, .deadline = deadline});
  }
  std::string out(const Strings& words) const {
    const auto done = job(words, 200s);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.out;
  }
  /// Thirty jobs of four hosts; two each of the first ten have the same injected cause.
  void submit_jobs(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<> noise(1, 0.06);
    Strings files;
    for (int i = 0; i < 30; ++i) {
      const int cause = i < 10 ? i / 2 : -1;
      const double size = noise(random);
      for (int n = 1; n <= 4; ++n) {
        FakeJob job{.id = std::to_string(i),
                    .host = "n" + std::to_string(n),
                    .start = kStart + i * 100'000'000LL,
                    .duration = 90'000'000,
                    .hosts = {"n1", "n2", "n3", "n4"},
                    .cgroup = {{"memory.max", 8LL << 30},
                               {"memory.peak", static_cast<std::int64_t>(3e9 * noise(random))}}};
        const double slow = cause == 1 && n == 1 + i % 4 ? 1.8 : 1;
        job.processes.clear();
        for (int p = 0; p < 6; ++p) {
          const auto noisy = [&](double value) {
            return static_cast<std::int64_t>(value * size * noise(random));
          };
          job.processes.push_back({.pid = 100 + p,
                                   .start = 1000 * p,
                                   .finish = 1000 * p + noisy(20e6 * slow),
                                   .usertime = noisy(15e6 * slow),
                                   .minflt = noisy(20'000),
                                   .majflt = noisy(20),
                                   .rchar = noisy(5e6),
                                   .waiting = noisy(1e6),
                                   .failed = noisy(60)});
          if (cause == 2) job.processes.back().failed *= 10;
          if (cause == 3) job.processes.back().majflt += 2000;
          if (cause == 3) job.processes.back().finish += 8'000'000;
        }
        if (cause == 0) job.libraries[1].second = "/home/me/old/libz.so.1";
        if (cause == 4) job.cgroup["memory.max"] = 4LL << 30;
        if (cause == 4)
          for (auto& p : job.processes) p.majflt += 300;
        files.push_back(write_archive(job, dir_ / (job.id + "-" + job.host + ".tgz")));
      }
    }
    out(Strings{"submit"} + files);
  }

  TestDir dir_;
  std::string program_;
};

TEST_F(Outliers, rca_names_the_injected_cause_and_leaves_sane_jobs_alone) {
  submit_jobs(7);
  const Strings kinds{"library", "node", "lookups", "faults", "memory"};
  int named = 0, flagged = 0;
  for (int i = 0; i < 30; ++i) {
    const auto found = Json::parse(out({"rca", std::to_string(i), "--json"}))["causes"];
    if (i >= 10) {
      flagged += !found.empty();
      if (!found.empty()) std::printf("sane job %d: %s\n", i, found.dump().c_str());
      continue;
    }
    const bool right =
        !found.empty() && found[0]["cause"] == kinds[static_cast<std::size_t>(i / 2)];
    named += right;
    if (!right) std::printf("job %d: %s\n", i, found.dump().c_str());
    const auto subject = right ? found[0]["subject"].get<std::string>() : "";
    if (right && i / 2 == 0) {
      EXPECT_EQ(subject, "libz.so.1");
    }
    if (right && i / 2 == 1) {
      EXPECT_EQ(subject, "n" + std::to_string(1 + i % 4));
    }
  }
  EXPECT_GE(named, 9);
  EXPECT_LE(flagged, 1);
  EXPECT_THAT(out({"rca", "0"}),
              HasSubstr("library: libz.so.1 was loaded from /home/me/old/libz.so.1"));
}

TEST_F(Outliers, rca_names_a_failure_that_no_other_job_has) {
  Strings files;
  for (int i = 0; i < 6; ++i) {
    FakeJob job;
    job.id = std::to_string(i);
    job.more["exitcode"] = i == 5 ? 5 : 0;
    files.push_back(write_archive(job, dir_ / (job.id + ".tgz")));
  }
  out(Strings{"submit"} + files);
  const auto found = out({"rca", "5"});
  EXPECT_THAT(found, HasSubstr("failure: it ended with status 5, most others with 0\n"));
  EXPECT_THAT(found, testing::ContainsRegex("\nexitcode +5 +0 +-\n"));
  EXPECT_THAT(out({"rca", "4"}), HasSubstr("no cause found, compared with 5 others\n"));
}

TEST_F(Outliers, jobs_are_compared_with_each_other_or_with_a_model) {
  submit_jobs(8);
  EXPECT_EQ(job({"outliers", "10", "11", "12"}).status, 3) << "three are too few";
  const auto found = Json::parse(
      out({"outliers", "--feature", "failed_lookups,majflt", "--format", "json", "--pattern"}));
  Strings ids;
  for (const auto& row : found)
    if (row["failed_lookups"] != "0" || row["majflt"] != "0") ids.push_back(row["jobid"]);
  for (const char* id : {"4", "5", "6", "7"}) EXPECT_THAT(ids, ::testing::Contains(id));
  Strings sane{"model", "make", "sane"};
  for (int i = 10; i < 30; ++i) sane.push_back(std::to_string(i));
  out(sane);
  EXPECT_THAT(out({"model", "list"}), HasSubstr("sane"));
  const auto judged = Json::parse(out({"outliers", "--model", "sane", "--feature", "failed_lookups",
                                       "--format", "json", "4", "15", "20"}));
  ASSERT_EQ(judged.size(), 1U);
  EXPECT_EQ(judged[0]["jobid"], "4");
  EXPECT_EQ(judged[0]["failed_lookups"], "3");
  EXPECT_THAT(out({"rca", "4", "--model", "sane"}), HasSubstr("lookups: "));
}

TEST_F(Outliers, a_node_that_costs_no_time_is_not_named) {
  // Milliseconds of processor time that a busy host adds to one job of 2 s.
  for (const auto& [usual, own] : {std::pair{3'000, 6'000}, std::pair{300'000, 600'000}}) {
    Strings files;
    const std::string prefix = usual < 10'000 ? "short" : "long";
    for (int i = 0; i < 8; ++i)
      for (const std::string host : {"n1", "n2"}) {
        FakeJob job{.id = prefix + std::to_string(i),
                    .host = host,
                    .name = prefix,
                    .start = kStart + i * 5'000'000LL,
                    .hosts = {"n1", "n2"}};
        job.processes[0].usertime = i == 3 && host == "n1" ? own : usual;
        files.push_back(write_archive(job, dir_ / (job.id + host + ".tgz")));
      }
    out(Strings{"submit"} + files);
    const auto found = Json::parse(out({"rca", prefix + "3", "--json"}))["causes"];
    EXPECT_EQ(found.size(), usual < 10'000 ? 0U : 1U) << found;
    if (!found.empty()) {
      EXPECT_EQ(found[0]["subject"], "n1");
    }
  }
}

TEST_F(Outliers, page_is_drawn_by_a_browser_and_loads_nothing) {
  FakeJob evil{.id = "<script>alert(1)</script>", .name = "</svg><b id=\"evil\">"};
  evil.processes[0].finish = 1'900'000;
  evil.processes.resize(9, evil.processes[0]);
  for (int i = 0; i < 9; ++i) evil.processes[static_cast<std::size_t>(i)].pid += i;
  Strings files{write_archive(evil, dir_ / "evil.tgz")};
  for (int i = 0; i < 6; ++i)
    files.push_back(write_archive({.id = std::to_string(i), .start = kStart + i * 5'000'000LL},
                                  dir_ / (std::to_string(i) + ".tgz")));
  out(Strings{"submit"} + files);
  out({"report", "-o", dir_ / "page.html"});
  const auto text = value_or_throw(read_file(dir_ / "page.html"));
  EXPECT_FALSE(std::regex_search(text, std::regex("(src|href)=|url\\(|@import|https?://|<script")));
  HEDDLE_NEEDS_BROWSER();
  const auto drawn = drawn_page(dir_ / "page.html", dir_ / "profile");
  for (const char* id : {"causes", "jobs", "plot-duration", "plot-num_procs"})
    EXPECT_THAT(drawn, HasSubstr("id=\"" + std::string(id) + "\""));
  EXPECT_THAT(drawn, HasSubstr("class=\"outlier\""));
  EXPECT_THAT(drawn, HasSubstr("it executed 9 programs, the others 1"));
  EXPECT_THAT(drawn, HasSubstr("&lt;script&gt;alert(1)"));
  EXPECT_THAT(drawn, Not(HasSubstr("<b id=\"evil\"")));
}

TEST_F(Outliers, ten_thousand_jobs_take_at_most_seconds) {
  // As SQL, since ten thousand archives take minutes to write.
  out({"submit", write_archive({}, dir_ / "one.tgz")});
  run_checked({"python3", "-c", R"py(
import random, sqlite3, sys
db = sqlite3.connect(sys.argv[1]); random.seed(1)
columns = [c[1] for c in db.execute("PRAGMA table_info(t_job)") if c[1] not in ("id", "jobid", "finish")]
for i in range(10000):
    db.execute("INSERT INTO t_job (jobid, finish, %s) SELECT ?, start + ?, %s FROM t_job WHERE id = 1" % (",".join(columns), ",".join(columns)), (str(i + 10), random.gauss(1e9, 1e8) * (9 if i == 77 else 1)))
db.commit())py",
               dir_ / "jobs.db"});
  const auto began = std::chrono::steady_clock::now();
  const auto found =
      out({"outliers", "--pattern", "--feature",
           "duration,cpu_time,num_procs,minflt,majflt,rchar,rssmax", "--format", "csv"});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_THAT(found, HasSubstr("\n87,"));
  EXPECT_LT(took.count(), 2);
  std::printf("10,000 jobs: %.2f s\n", took.count());
}

}  // namespace
}  // namespace heddle::test
