// SPDX-License-Identifier: MIT
// What fs-job keeps and shows.
#include <sys/mount.h>

#include <regex>
#include <set>

#include "tests/jobs/store_fixture.hpp"
#include "tests/support/source_file.hpp"

namespace heddle::test {
namespace {

class ServerEnvironment : public ::testing::Environment {
  void SetUp() override { server = PostgresServer::start(no_server); }
  void TearDown() override { server.reset(); }
};
const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new ServerEnvironment);

TEST_P(Store, keeps_an_archive_once) {
  const auto file = archive({});
  EXPECT_THAT(out({"submit", file}), HasSubstr("1 on n1: 1 process\n"));
  EXPECT_THAT(out({"submit", file}), HasSubstr("already in the database"));
  EXPECT_EQ(job({"submit", "-e", file}).status, 1);
  const auto rows = Json::parse(out({"query", "--format", "json"}));
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["num_procs"], 1);
  EXPECT_EQ(rows[0]["cpu_time"], 500'000);
  EXPECT_EQ(rows[0]["complete"], 1);
  if (GetParam() == "sqlite"s) {
    struct stat status {};
    ASSERT_EQ(::stat(url_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0600U);
  }
}

TEST_P(Store, job_is_complete_when_all_hosts_are_in) {
  FakeJob a{.hosts = {"n1", "n2.cluster"}};
  FakeJob b = a;
  b.host = "n2";
  out({"submit", archive(a)});
  EXPECT_EQ(ids({"--incomplete"}), (Strings{"jobid", "1"}));
  out({"submit", archive(b)});
  const auto rows = Json::parse(out({"query", "--format", "json"}));
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["num_hosts"], 2);
  EXPECT_EQ(rows[0]["num_procs"], 2);
  EXPECT_EQ(rows[0]["complete"], 1);
  // A node's archive that was made anew with the same processes.
  a.processes.push_back({.pid = 200});
  expect_refused({"submit", archive(a)}, "is in the database, by another archive");
  // A requeued job is another one.
  FakeJob again = b;
  again.start += 10'000'000;
  out({"submit", archive(again)});
  EXPECT_EQ(ids({}).size(), 3U);
  EXPECT_THAT(job({"show", "1"}).err, HasSubstr("2 jobs have this id"));
  // The table names such jobs as other commands take them.
  std::set<std::string> names;
  for (const auto& line : lines_of(out({"query"}))) names.insert(line.substr(0, line.find(' ')));
  EXPECT_EQ(names.count("1"), 0U);
  std::size_t named = 0;
  for (const auto& name : names)
    if (name.starts_with("1@")) named += job({"show", name}).status == 0 ? 1 : 0;
  EXPECT_EQ(named, 2U);
}

TEST_P(Store, job_that_lost_records_is_not_complete) {
  FakeJob a{.hosts = {"n1", "n2"}, .more = {{"collector", {{"damaged", 1}, {"lost", true}}}}};
  FakeJob b = a;
  b.host = "n2";
  b.more = {{"collector", {{"damaged", 0}}}};
  FakeJob c{.id = "c", .more = {{"collector", {{"argv", "\"lost\":true"}, {"lost", "no"}}}}};
  out({"submit", archive(a), archive(b), archive(c)});
  EXPECT_EQ(ids({"--incomplete"}), (Strings{"jobid", "1"}));
  EXPECT_THAT(out({"show", "1"}), ::testing::ContainsRegex("complete +0"));
}

TEST_P(Store, tree_has_parents_depths_and_inclusive_cpu_time) {
  FakeJob job;
  job.processes = {
      {.pid = 10, .start = 0, .finish = 1'900'000, .exename = "sh"},
      {.pid = 11, .ppid = 10, .start = 1000, .finish = 2000, .exename = "env"},
      {.pid = 11,
       .ppid = 10,
       .generation = 1,
       .start = 2001,
       .finish = 900'000,
       .exename = "app",
       .threads = 4},
      {.pid = 12, .ppid = 11, .start = 5000, .finish = 6000, .exename = "child"},
      {.pid = 11, .ppid = 10, .start = 1'000'000, .finish = 1'100'000, .exename = "reused"}};
  out({"submit", archive(job)});
  const auto tree = lines_of(out({"show", "1", "--tree"}));
  ASSERT_EQ(tree.size(), 6U);
  EXPECT_THAT(tree[1], HasSubstr("n1    sh "));
  EXPECT_THAT(tree[2], HasSubstr("n1      env "));
  EXPECT_THAT(tree[4], HasSubstr("n1        child "));
  const auto rows = Json::parse(out({"show", "1", "--tree", "--format", "json"}));
  EXPECT_EQ(rows[0]["inclusive_cpu_time"], 8 * 500'000);
  EXPECT_EQ(rows[2]["inclusive_cpu_time"], 5 * 500'000);
  EXPECT_EQ(Json::parse(out({"show", "1", "--threads", "--format", "json"})).size(), 8U);
  EXPECT_THAT(out({"show", "1", "--libs"}), HasSubstr("/usr/lib/libz.so.1"));
}

TEST_P(Store, libraries_are_shown_for_each_process) {
  FakeJob job;
  job.processes = {{.pid = 10, .failed = 7}, {.pid = 11, .start = 10, .exename = "b"}};
  write_files(job, dir_ / "sizes");
  write_text_file(dir_ / "sizes/libraries.tsv",
                  "set\tname\tpath\tfailed\tsize\n1\tlibc.so.6\t/lib/libc.so.6\t3\t4711\n"
                  "1\tlibmissing.so\t\t4\t\n");
  out({"submit", pack(dir_ / "sizes", dir_ / "sizes.tgz")});
  const auto rows = Json::parse(out({"show", "1", "--libs", "--format", "json"}));
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0], Json::parse(R"({"host":"n1","pid":10,"exename":"app","failed_lookups":7,
    "name":"libc.so.6","path":"/lib/libc.so.6","failed":3,"size":4711})"));
  EXPECT_TRUE(rows[1]["size"].is_null());
  EXPECT_EQ(rows[2]["pid"], 11);
  EXPECT_EQ(rows[3]["failed"], 4);
  for (const char* view : {"--libs", "--tree", "--threads", "--files"})
    EXPECT_EQ(Json::parse(out({"show", "1", view, "--limit", "1", "--format", "json"})).size(), 1U)
        << view;
}

TEST_P(Store, a_trace_is_joined_by_pid_program_and_time) {
  FakeJob one;
  one.processes = {
      {.pid = 10, .exename = "sh"},
      {.pid = 11, .ppid = 10, .start = 1000, .finish = 2000, .exename = "env"},
      {.pid = 11, .ppid = 10, .generation = 1, .start = 2001, .finish = 900'000, .exename = "app"}};
  out({"submit", archive(one)});
  const auto trace = [&](const std::string& host, const std::string& events) {
    write_text_file(
        dir_ / "trace",
        "#heddle-trace\t1\n#host\t" + host + "\n#start\t" + std::to_string(kStart * 1000) +
            "\t2020-09-13T12:26:40.000000000Z\n#events\tns\tpid\ttid\top\tresult\tpath\tdetails\n" +
            events);
    return dir_ / "trace";
  };
  const std::string events =
      "500000\t11\t11\topen\tOK\t/lib/libc.so.6\texe=/usr/bin/env\n"
      "1500000\t11\t11\tlookup\tENOENT\t/opt/lib'x.so\texe=/usr/bin/app\n"
      "1600000\t11\t11\tlookup\tENOENT\t/opt/lib'x.so\texe=/usr/bin/app\n"
      "1700000\t11\t11\tlookup\tOK\t/opt\texe=/usr/bin/app\n"
      "3000000\t11\t11\topen\tOK\t/data\n"
      "3100000\t11\t12\tread\tOK\t/data\texe=/usr/bin/app\tcount=1\tbytes=4096\n"
      "3200000\t11\t12\twrite\tOK\t/a\\nb\texe=/usr/bin/app\tcount=1\tbytes=7\n"
      "4000000\t99\t99\topen\tOK\t/other\n"
      "9000000000\t11\t11\topen\tOK\t/later\n";
  for (int again = 0; again < 2; ++again) {
    const auto done = job({"submit", "--trace", trace("n1.cluster", events), "1"});
    EXPECT_EQ(done.out, "1: 4 files of 2 processes\n") << done.err;
    EXPECT_THAT(done.err, HasSubstr("2 events are of no process of the job"));
  }
  std::map<std::string, Json> found;
  for (const auto& row : Json::parse(out({"show", "1", "--files", "--format", "json"})))
    if (row["path"].is_string())
      found[row["path"]] = {row["exename"], row["opens"], row["failed"], row["bytes_read"],
                            row["bytes_written"]};
  EXPECT_EQ(found, (std::map<std::string, Json>{{"/lib/libc.so.6", {"env", 1, 0, 0, 0}},
                                                {"/opt/lib'x.so", {"app", 0, 2, 0, 0}},
                                                {"/data", {"app", 1, 0, 4096, 0}},
                                                {"/a\\nb", {"app", 0, 0, 0, 7}}}));
  expect_refused({"submit", "--trace", trace("n2", events), "1"},
                 "no process of the job ran there");
  expect_refused({"submit", "--trace", trace("n1", "1\t99\t99\topen\tOK\t/x\n"), "1"},
                 "none of its events");
  expect_refused({"submit", "--trace", trace("n1", "1\t99\t99\topen"), "1"}, "trace:5");
  EXPECT_THAT(job({"submit", "--trace", dir_ / "trace", "1"}).err, Not(HasSubstr("--partial")));
  std::string runs = value_or_throw(read_file(trace("n1", "")));
  for (int doubled = 0; doubled < 10; ++doubled) runs += runs;
  write_text_file(dir_ / "trace", runs);
  expect_refused({"submit", "--trace", dir_ / "trace", "1"}, "too many runs");
  expect_refused({"submit", "--trace", trace("n1", events), "2"}, "no such job");
  EXPECT_EQ(job({"submit", "--trace", dir_ / "trace", "1", "2"}).status, 2);
  out({"delete", "1"});
}

TEST_P(Store, what_differs_and_what_costs_is_shown) {
  FakeJob a{.id = "a"}, b{.id = "b"};
  a.processes = {{.pid = 10, .exename = "sh", .rchar = 1},
                 {.pid = 11, .ppid = 10, .start = 10, .exename = "old", .rchar = 7'000'000},
                 {.pid = 12, .ppid = 10, .start = 20, .exename = "same", .args = "1"}};
  b.processes = a.processes;
  b.processes[1].exename = "new";
  b.processes[2].args = "2";
  b.processes[2].usertime = 900'000;
  out({"submit", archive(a), archive(b)});
  const auto differ = job({"diff", "a", "b"});
  EXPECT_EQ(differ.status, 1);
  EXPECT_THAT(differ.out,
              AllOf(HasSubstr("-   old  cpu 0.50 s"), HasSubstr("+   new  cpu 0.50 s"),
                    ::testing::Not(HasSubstr("same")), HasSubstr("3 and 3 processes, 2 differ")));
  EXPECT_THAT(job({"diff", "--args", "a", "b"}).out,
              AllOf(HasSubstr("-   same 1"), HasSubstr("+   same 2"), HasSubstr("4 differ")));
  EXPECT_THAT(job({"diff", "--all", "a", "b"}).out, HasSubstr("same  cpu 0.50 -> 0.90 s"));
  const auto files = Json::parse(out({"show", "a", "--files", "--format", "json"}));
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0]["exename"], "old");
  EXPECT_EQ(files[0]["rchar"], 7'000'000);
  EXPECT_EQ(files[2]["exename"], "sh");
}

TEST_P(Store, annotations_and_tags_of_jobs_archives_and_directories) {
  FakeJob one{.tags = {{"t", "1"}}};
  write_files(one, dir_ / "dir");
  const auto file = pack(dir_ / "dir", dir_ / "one.tgz");
  out({"submit", file});
  for (const std::string& target : {"1"s, file, dir_ / "dir"}) {
    SCOPED_TRACE(target);
    out({"annotate", target, "a=1", "b=x=y"});
    out({"annotate", target, "a=2"});
    EXPECT_EQ(Json::parse(out({"dump", "-k", "annotations", target})),
              (Json{{"a", "2"}, {"b", "x=y"}}));
    out({"annotate", "--replace", target, "c=3"});
    EXPECT_EQ(Json::parse(out({"dump", "-k", "annotations", target})), (Json{{"c", "3"}}));
    EXPECT_EQ(Json::parse(out({"dump", "-k", "job_tags", target})), (Json{{"t", "1"}}));
    out({"tag", "--replace", target, "x:1;y"});
    EXPECT_EQ(Json::parse(out({"dump", target}))["tags"], (Json{{"x", "1"}, {"y", "1"}}));
    EXPECT_EQ(job({"annotate", target, "novalue"}).status, 2);
  }
  EXPECT_THAT(out({"submit", file}), HasSubstr("already"))
      << "annotations make it no other archive";
}

TEST_P(Store, exit_statuses_differ_where_both_are_known) {
  FakeJob a{.id = "a"}, b{.id = "b"};
  a.processes = {{.pid = 10, .exename = "sh"},
                 {.pid = 11, .ppid = 10, .start = 10, .exename = "fails"},
                 {.pid = 12, .ppid = 10, .start = 20, .exename = "dies"},
                 {.pid = 13, .ppid = 10, .start = 30, .exename = "unknown"}};
  b.processes = a.processes;
  b.processes[1].exitcode = "3";
  b.processes[2].exitcode = "";
  b.processes[2].exitsignal = "9";
  b.processes[3].exitcode = "";
  out({"submit", archive(a), archive(b)});
  const auto differ = job({"diff", "a", "b"});
  EXPECT_EQ(differ.status, 1);
  EXPECT_THAT(differ.out,
              AllOf(HasSubstr("!   fails  cpu 0.50 -> 0.50 s, "), HasSubstr(" s, exit 0 -> 3\n"),
                    HasSubstr(" s, exit 0 -> signal 9\n"), Not(HasSubstr("unknown")),
                    HasSubstr("4 and 4 processes, 2 differ")));
  EXPECT_EQ(job({"diff", "a", "a"}).status, 0);
}

TEST_P(Store, queries_select_as_those_of_epmt) {
  constexpr std::int64_t kHour = 3'600'000'000;
  out({"submit",
       archive({.id = "a",
                .host = "h1",
                .duration = 2 * kHour,
                .hosts = {"h1"},
                .tags = {{"res", "1"}, {"exp", "x"}}}),
       archive({.id = "b",
                .host = "h2",
                .start = kStart + kHour,
                .duration = 3 * kHour,
                .hosts = {"h2"},
                .tags = {{"res", "1"}, {"exp", "y"}}}),
       archive({.id = "c",
                .host = "h3",
                .start = kStart + 10 * kHour,
                .duration = kHour,
                .hosts = {"h3"}})});
  const auto found = [&](const Strings& words) {
    auto lines = ids(words);
    lines.erase(lines.begin());
    return lines;
  };
  EXPECT_EQ(found({"--tag", "res:1"}), (Strings{"a", "b"}));
  EXPECT_EQ(found({"--tag", "res:1;exp:x"}), (Strings{"a"}));
  EXPECT_EQ(found({"--tag", "exp:x", "--tag", "exp:y;res:1"}), (Strings{"a", "b"}));
  EXPECT_EQ(found({"--tag", ""}), (Strings{"c"}));
  EXPECT_EQ(found({"--before", "0"}).size(), 3U);
  EXPECT_EQ(found({"--after", "0"}).size(), 0U);
  EXPECT_EQ(found({"--before", "-30"}).size(), 3U);
  EXPECT_EQ(found({"--after", "-30"}).size(), 0U);
  EXPECT_EQ(found({"--after", "09/13/2020 00:00"}).size(), 3U);
  EXPECT_EQ(found({"--before", "2020-09-13 15:00"}), (Strings{"a"}));
  EXPECT_EQ(found({"--when", "2020-09-13 14:00:00"}), (Strings{"a", "b"}));
  EXPECT_EQ(found({"--when", "b"}), (Strings{"a", "b"}));
  EXPECT_EQ(found({"--host", "h1", "--host", "h3"}), (Strings{"a", "c"}));
  EXPECT_EQ(found({"--host", "h1", "--when", "c"}), (Strings{}));
  EXPECT_EQ(found({"--order", "start:desc", "--limit", "2", "--offset", "1"}), (Strings{"b", "a"}));
  EXPECT_EQ(found({"--order", "duration:desc", "--limit", "1"}), (Strings{"b"}));
  EXPECT_EQ(found({"a", "c/c"}), (Strings{"a", "c"}));
  EXPECT_EQ(found({"b@" + std::to_string(kStart + kHour)}), (Strings{"b"}));
  for (const Strings& wrong : {Strings{"query", "--order", "1; DROP"},
                               {"query", "--order", "start:up"},
                               {"query", "--after", "yesterday"},
                               {"top", "--before", "2020-13-01"},
                               {"query", "--columns", "jobid,nosuch"},
                               {"top", "--by", "exename"},
                               {"outliers", "--feature", "nosuch"},
                               {"export", "--after", "yesterday", "-"}}) {
    const auto done = job(wrong);
    EXPECT_EQ(done.status, 2) << wrong[1];
    EXPECT_EQ(done.out, "") << wrong[1];
    EXPECT_THAT(done.err, ::testing::AnyOf(HasSubstr("unknown column '"), HasSubstr("not a time")));
  }
  for (const Strings& words :
       {Strings{"query"}, {"outliers"}, {"top"}, {"show", "a"}, {"report", "-o", "-"}}) {
    const auto done = job(words + Strings{"--limit", "0"});
    EXPECT_EQ(done.status, 2) << words[0];
    EXPECT_EQ(done.out, "") << words[0];
    EXPECT_THAT(done.err, HasSubstr("'0' is not a whole number of 1 or more")) << words[0];
  }
  EXPECT_THAT(out({"top"}), HasSubstr("app"));
  EXPECT_EQ(job({"diff", "a", "b"}).status, 0);
  const auto exported = out({"export", "--after", "2020-01-01", "-"});
  EXPECT_THAT(exported, HasSubstr("fs_job_jobs{user=\"root\",cluster=\"c\"} 3\n"));
}

TEST_P(Store, old_jobs_are_retired_but_those_of_models) {
  Strings files;
  for (int i = 0; i < 45; ++i) files.push_back(archive({.id = std::to_string(i)}));
  files.push_back(archive({.id = "half", .hosts = {"n1", "n2"}}));
  const std::int64_t now = std::chrono::duration_cast<std::chrono::microseconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
  files.push_back(archive({.id = "fresh", .start = now - 10'000'000}));
  out(Strings{"submit"} + files);
  out({"model", "make", "usual", "0", "1", "2", "3"});
  EXPECT_EQ(out({"retire", "-n"}), "41 jobs would be deleted\n");
  EXPECT_EQ(ids({}).size(), 48U);
  EXPECT_EQ(out({"retire"}), "41 jobs deleted\n");
  EXPECT_EQ(ids({}), (Strings{"jobid", "0", "1", "2", "3", "half", "fresh"}));
  EXPECT_EQ(out({"retire", "-u"}), "1 job deleted\n");
  out({"delete", "fresh"});
  expect_refused({"delete", "fresh"}, "no such job");
  out({"model", "delete", "usual"});
  EXPECT_EQ(out({"retire"}), "4 jobs deleted\n");
}

TEST_P(Store, reads_the_layout_of_epmt_but_never_its_pickle) {
  fs::create_directories(dir_ / "e");
  write_text_file(dir_ / "e/job_metadata", "\x80\x04\x95 pickle");
  std::string header(kHeader);
  write_text_file(dir_ / "e/n7-papiex-header.tsv", header.substr(0, header.find("\tmarks")));
  write_text_file(
      dir_ / "e/n7-papiex.tsv",
      fmt::format("{{10, 0, 7, 8, 9, 1, 2, 3, "
                  "4}}\top:x\tn7\tls\t/bin/ls\t0\t0\t10\t0\t1\t1\t1\t1\t{}\t{}\t-l /tmp\n",
                  kStart, kStart + 5000));
  run_checked({"tar", "-C", dir_ / "e", "-czf", dir_ / "685000.tgz", "./job_metadata",
               "./n7-papiex-header.tsv", "./n7-papiex.tsv"});
  out({"submit", dir_ / "685000.tgz"});
  const auto rows = Json::parse(out({"query", "--format", "json"}));
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["jobid"], "685000");
  EXPECT_EQ(rows[0]["cpu_time"], 15);
  EXPECT_EQ(rows[0]["duration"], 5000);
  EXPECT_THAT(job({"dump", dir_ / "685000.tgz"}).err, HasSubstr("pickle"));
}

INSTANTIATE_TEST_SUITE_P(Databases, Store, ::testing::Values("sqlite", "postgres"), kParameterName);

class Sqlite : public Store {};
TEST_P(Sqlite, views_have_the_columns_of_the_documentation) {
  out({"submit", archive({})});
  std::string page, line;
  std::ifstream file(source_file("docs/jobs.md"));
  std::map<std::string, std::string> documented;
  while (std::getline(file, line)) {
    page += line + " ";
    const auto cells = split(line, '|');
    if (cells.size() == 6 && cells[1].starts_with(" `"))
      documented[cells[1].substr(2, cells[1].find('`', 2) - 2)] = cells[3] + "," + cells[4];
  }
  const auto names_in = [](std::string text) {
    text = std::regex_replace(text, std::regex("\\([^)]*\\)"), "");
    std::set<std::string> names;
    const std::regex name("[a-z_]+");
    for (std::sregex_token_iterator at(text.begin(), text.end(), name), end; at != end; ++at)
      names.insert(*at);
    return names;
  };
  const auto behind = [&](const std::string& start, const std::string& end) {
    const auto from = page.find(start) + start.size();
    return names_in(page.substr(from, page.find(end, from) - from));
  };
  const auto metrics = behind("rssmax the greatest:", ". The ");
  auto totals = behind("The totals are the cgroup's:", "(us in which");
  totals.erase("and");
  EXPECT_EQ(metrics.size(), 23U);
  EXPECT_EQ(totals.size(), 6U);
  const auto views = lines_of(
      run_checked({"sqlite3", url_, "SELECT name FROM sqlite_schema WHERE type = 'view'"}).out);
  EXPECT_EQ(views.size(), documented.size());
  for (const auto& view : views) {
    ASSERT_TRUE(documented.contains(view)) << view;
    auto expected = names_in(documented[view]);
    if (expected.erase("the")) {
      expected.erase("totals");
      expected.insert(totals.begin(), totals.end());
    }
    if (view == "jobs" || view == "hosts" || view == "processes" || view == "threads")
      expected.insert(metrics.begin(), metrics.end());
    const auto columns = lines_of(
        run_checked({"sqlite3", url_, "SELECT name FROM pragma_table_info('" + view + "')"}).out);
    EXPECT_EQ(std::set<std::string>(columns.begin(), columns.end()), expected) << view;
  }
}
TEST_P(Sqlite, full_disk_leaves_the_database_as_it_was) {
  if (::geteuid() != 0) HEDDLE_SKIP("only root mounts a tmpfs");
  const std::string disk = dir_ / "disk";
  fs::create_directory(disk);
  const auto small = archive({}), large = archive(large_job());
  ASSERT_EQ(::mount("none", disk.c_str(), "tmpfs", 0, "size=4m,mode=0755"), 0);
  url_ = disk + "/jobs.db";
  out({"submit", small});
  expect_refused({"submit", large}, "full");
  EXPECT_EQ(ids({}), (Strings{"jobid", "1"}));
  EXPECT_EQ(::umount(disk.c_str()), 0);
}

TEST_P(Sqlite, mistyped_database_is_named_and_no_directory_made) {
  const auto file = archive({});
  write_text_file(dir_ / "empty.db", "");
  expect_refused({"query", "--db", dir_ / "empty.db"},
                 (dir_ / "empty.db") + ": the database has no store of jobs");
  for (const std::string command : {"submit", "migrate"}) {
    Strings words{command, "--db", dir_ / "nosuch/x.db"};
    if (command == "submit") words.push_back(file);
    expect_refused(words, "nosuch/x.db: cannot make the database: its directory does not exist");
  }
  EXPECT_FALSE(fs::exists(dir_ / "nosuch"));
  // The default place is made.
  const auto made = test::run({program_, "submit", file},
                              {.env = {"FS_JOB_DB", "XDG_DATA_HOME=" + (dir_ / "data")}});
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_TRUE(fs::exists(dir_ / "data/heddle/jobs.db"));
}
INSTANTIATE_TEST_SUITE_P(Databases, Sqlite, ::testing::Values("sqlite"), kParameterName);

class Postgres : public Store {};
TEST_P(Postgres, rows_belong_to_their_user) {
  for (const char* statement :
       {"DROP ROLE IF EXISTS alice", "DROP ROLE IF EXISTS bob", "DROP ROLE IF EXISTS boss",
        "CREATE ROLE alice LOGIN IN ROLE fs_job_user", "CREATE ROLE bob LOGIN IN ROLE fs_job_user",
        "CREATE ROLE boss LOGIN IN ROLE fs_job_reader"})
    ASSERT_EQ(server->sql("admin", statement).status, 0) << statement;
  const auto as = [&](const char* user) { url_ = server->url(user); };
  const auto of_alice = archive({.id = "7", .user = "alice"});
  as("bob");
  expect_refused({"submit", of_alice}, "row-level security");
  EXPECT_THAT(job({"submit", of_alice}).err,
              AllOf(HasSubstr(of_alice + ": "), HasSubstr("it is a job of alice"),
                    HasSubstr("hint: a role stores the jobs of the user of its name")));
  out({"submit", archive({.id = "8", .user = "bob"})});
  as("alice");
  out({"submit", of_alice});
  EXPECT_EQ(ids({}), (Strings{"jobid", "7"}));
  expect_refused({"delete", "8"}, "no such job");
  as("boss");
  EXPECT_EQ(ids({}).size(), 3U);
  EXPECT_EQ(job({"delete", "7"}).status, 3);
  // With any SQL of their own, too.
  const auto sql = [&](const char* user, const std::string& text) {
    return server->sql(user, "SET search_path = fs_job; " + text);
  };
  for (const char* table :
       {"jobs", "hosts", "processes", "threads", "libraries", "tags", "t_job", "t_process"})
    EXPECT_EQ(sql("bob", std::string("SELECT COUNT(*) FROM ") + table + " WHERE username = 'alice'")
                  .out.find("1"),
              std::string::npos)
        << table;
  const auto id =
      lines_of(server->sql("admin", "SELECT id FROM fs_job.t_job WHERE username = 'alice'").out)
          .at(0);
  EXPECT_EQ(sql("bob", "SELECT COUNT(*) FROM processes WHERE job_id = " + id).out, "0\n");
  EXPECT_NE(sql("bob", "INSERT INTO t_tag VALUES (" + id + ", 0, 'x', 'y')").status, 0);
  EXPECT_NE(sql("bob", "UPDATE t_job SET username = 'alice'").status, 0);
  EXPECT_NE(sql("bob", "UPDATE t_job SET id = 99").status, 0);
  EXPECT_NE(sql("bob",
                "INSERT INTO t_job (id, username, cluster, jobid, start, restart, submitted, "
                "expected_hosts, complete) OVERRIDING SYSTEM VALUE VALUES (50, 'bob', '', 'x', 1, "
                "0, 1, '[]', 1)")
                .status,
            0);
  EXPECT_NE(sql("bob", "ALTER TABLE t_job DISABLE ROW LEVEL SECURITY").status, 0);
  EXPECT_NE(sql("bob", "UPDATE t_version SET version = 9").status, 0);
  EXPECT_EQ(sql("bob", "DELETE FROM t_job RETURNING jobid").out, "8\n");
  EXPECT_NE(sql("boss", "INSERT INTO t_tag VALUES (" + id + ", 0, 'x', 'y')").status, 0);
  as("admin");
  EXPECT_EQ(ids({}), (Strings{"jobid", "7"}));
}
TEST_P(Postgres, password_of_the_address_is_never_printed) {
  const auto done = job({"query", "--db", "postgresql://me:hunter2@127.0.0.1:1/x"});
  EXPECT_EQ(done.status, 3);
  EXPECT_THAT(done.err + done.out, Not(HasSubstr("hunter2")));
}
TEST_P(Postgres, store_is_made_by_an_administrator) {
  server->sql("admin", "DROP SCHEMA fs_job CASCADE");
  expect_refused({"query"}, "no store of jobs");
  expect_refused({"submit", archive({})}, "no store of jobs");
  EXPECT_THAT(out({"migrate"}), HasSubstr("made"));
  EXPECT_THAT(out({"migrate"}), HasSubstr("is there"));
  server->sql("admin", "UPDATE fs_job.t_version SET version = 99");
  expect_refused({"query"}, "schema 99");
}
INSTANTIATE_TEST_SUITE_P(Databases, Postgres, ::testing::Values("postgres"), kParameterName);

}  // namespace
}  // namespace heddle::test
