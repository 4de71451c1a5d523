// SPDX-License-Identifier: MIT
// What fs-job makes of archives that are odd, damaged, hostile, large, or many at once.
#include "tests/jobs/store_fixture.hpp"

namespace heddle::test {
namespace {

TEST_P(Store, texts_are_kept_byte_for_byte) {
  FakeJob job{.id = "1'; DROP TABLE t_job; --",
              .name = "100% \"quoted\" \\ ? $1 :x",
              .tags = {{"a'b", "x;y\t\n\u20ac"}}};
  job.processes[0].args = "it's \\t\\n\\\\ %s%n \"; \\x20 $X \\e \\xff \xe2\x82\xac";
  job.processes[0].exename = "'; DELETE FROM t_process; --";
  out({"submit", write_archive(job, dir_ / "sql.tar.gz")});
  const auto rows = Json::parse(out({"query", "--format", "json"}));
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["jobid"], job.id);
  EXPECT_EQ(rows[0]["jobname"], job.name);
  EXPECT_EQ(Json::parse(out({"dump", "-k", "tags", job.id})), job.tags);
  EXPECT_THAT(out({"show", job.id, "--tree"}), HasSubstr("'; DELETE FROM t_process; -- it's"));
  EXPECT_EQ(ids({"--name", job.name}).size(), 2U);
  EXPECT_EQ(ids({"--user", "' OR 1=1 --"}).size(), 1U);
  EXPECT_EQ(job.id, lines_of(out({"list"})).at(0));
}

TEST_P(Store, odd_names_are_shown_as_they_are_stored_and_found_as_they_are) {
  FakeJob fake;
  fake.name = R"(caf\xe9)";  // as fs-job writes what is not UTF-8
  fake.processes[0].exename = R"(new\nline)";
  out({"submit", archive(fake)});
  EXPECT_EQ(lines_of(out({"query", "--columns", "jobname"}))[1], fake.name);
  EXPECT_EQ(out({"list", "names"}), fake.name + "\n");
  EXPECT_THAT(out({"show", "1", "--tree"}), HasSubstr(" " + fake.processes[0].exename + " "));
  EXPECT_EQ(ids({"--name", "caf\xe9"}).size(), 2U) << "a heading and the job";
}

TEST_P(Store, sql_in_any_field_is_text) {
  const auto sql = [](const std::string& what) {
    return what + "'); DROP TABLE t_job; -- \" $1 ? \\x27";
  };
  const std::string user = GetParam() == "postgres"s ? "admin" : sql("user");
  FakeJob job{.id = sql("id"),
              .host = sql("host"),
              .user = user,
              .name = sql("name"),
              .cluster = sql("cluster"),
              .hosts = {sql("host")},
              .tags = {{sql("tag"), sql("value")}},
              .libraries = {{sql("name"), sql("/path")}},
              .more = {{"workdir", sql("/work")},
                       {"annotations", {{sql("key"), sql("note")}}},
                       {"environment", {{sql("VARIABLE"), sql("set")}}},
                       {"cgroup", {{"cpu.pressure", sql("some total=7")}}},
                       {sql("other"), sql("other")}}};
  job.processes[0].marks = sql("mark");
  write_files(job, dir_ / "sql");
  auto table = value_or_throw(read_file(dir_ / "sql/processes.tsv"));
  const auto put = [&](const std::string& what, const std::string& by) {
    const auto at = table.find(what, table.find("\n"));
    ASSERT_NE(at, std::string::npos) << what;
    table.replace(at, what.size(), by);
  };
  put("/usr/bin/app", sql("/usr/bin/app"));
  put("\t\tself\n", "\t" + sql("container") + "\t" + sql("self") + "\n");
  write_text_file(dir_ / "sql/processes.tsv", table);
  out({"submit", pack(dir_ / "sql", dir_ / "sql.tgz")});
  const auto rows = Json::parse(out({"query", "--format", "json"}));
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["cluster"], job.cluster);
  EXPECT_EQ(rows[0]["workdir"], sql("/work"));
  EXPECT_EQ(rows[0]["username"], user);
  EXPECT_EQ(rows[0]["annotations"], (Json{{sql("key"), sql("note")}}));
  EXPECT_EQ(rows[0]["environment"], (Json{{sql("VARIABLE"), sql("set")}}));
  const auto dumped = Json::parse(out({"dump", job.id}));
  EXPECT_EQ(dumped["hosts"], Json({job.host}));
  EXPECT_EQ(dumped[sql("other")], sql("other"));
  EXPECT_THAT(out({"show", job.id, "--libs", "--format", "json"}),
              HasSubstr(Json(sql("/path")).dump()));
  out({"annotate", job.id, sql("key") + "=" + sql("new")});
  out({"tag", job.id, sql("tag") + ":" + "changed"});
  EXPECT_EQ(ids({"--host", job.host}).size() + ids({"--tag", sql("x") + ":1"}).size(), 3U);
  out({"delete", job.id});
  EXPECT_EQ(ids({}).size(), 1U);
}

TEST_P(Store, damaged_and_hostile_archives_store_nothing) {
  const auto make = [&](const std::string& name,
                        const std::function<void(const std::string&)>& change,
                        const Strings& files = {"job.json", "processes.tsv", "libraries.tsv"}) {
    write_files({}, dir_ / name);
    change(dir_ / name);
    run_checked(Strings{"tar", "-C", dir_ / name, "-czf", dir_ / (name + ".tgz")} + files);
    return dir_ / (name + ".tgz");
  };
  const auto replace = [](const std::string& file, const std::string& what, const std::string& by) {
    auto text = value_or_throw(read_file(file));
    text.replace(text.find(what), what.size(), by);
    write_text_file(file, text);
  };
  out({"submit", archive({.id = "good"})});
  const auto good = archive({.id = "2"});
  write_text_file(dir_ / "cut.tgz", value_or_throw(read_file(good)).substr(0, 300));
  expect_refused({"submit", dir_ / "cut.tgz"}, "not an archive of a job");
  write_text_file(dir_ / "text.tgz", "hello");
  expect_refused({"submit", dir_ / "text.tgz"}, "not an archive of a job");
  expect_refused({"submit", dir_ / "missing.tgz"}, "missing.tgz");
  expect_refused(
      {"submit", make("nometa", [](const std::string&) {}, {"processes.tsv", "libraries.tsv"})},
      "job.json is missing");
  expect_refused({"submit", make("header",
                                 [&](const std::string& d) {
                                   replace(d + "/processes.tsv", "hostname", "hostnames");
                                 })},
                 "unknown columns");
  expect_refused({"submit", make("width",
                                 [&](const std::string& d) {
                                   replace(d + "/processes.tsv", "\tself\n", "\n");
                                 })},
                 "20 columns instead of 21");
  expect_refused({"submit", make("late",
                                 [&](const std::string& d) {
                                   replace(d + "/job.json", "\"stop\":1600000002000000",
                                           "\"stop\":1600000000000001");
                                 })},
                 "outside of the job's time");
  expect_refused({"submit", make("huge",
                                 [&](const std::string& d) {
                                   replace(d + "/processes.tsv", "500000", "99999999999999999999");
                                 })},
                 "not a number");
  expect_refused({"submit", make("version",
                                 [&](const std::string& d) {
                                   replace(d + "/job.json", "\"heddle_job\":2", "\"heddle_job\":3");
                                 })},
                 "version");
  expect_refused({"submit", make("deep",
                                 [&](const std::string& d) {
                                   write_text_file(d + "/job.json", std::string(1'000'000, '['));
                                 })},
                 "nested too deep");
  // Read by a parser without a stack, copied and written by functions with one.
  const auto deep = [](std::size_t depth) {
    return R"(,"x":)" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  expect_refused({"submit", make("balanced",
                                 [&](const std::string& d) {
                                   auto text = value_or_throw(read_file(d + "/job.json"));
                                   text.replace(text.rfind('}'), 1, deep(500'000));
                                   write_text_file(d + "/job.json", text);
                                 })},
                 "nested too deep");
  expect_refused({"submit", make("members",
                                 [&](const std::string& d) {
                                   std::string text = R"({"heddle_job":2)";
                                   for (int i = 0; i < 500'000; ++i)
                                     text += fmt::format(R"(,"{:06}":1)", i);
                                   write_text_file(d + "/job.json", text + "}");
                                 })},
                 "too many members");
  expect_refused({"submit", make("commas",
                                 [&](const std::string& d) {
                                   replace(d + "/processes.tsv", "\n{",
                                           "\n{" + std::string(40'000'000, ','));
                                 })},
                 "too many values");
  expect_refused({"submit", make("tabs",
                                 [&](const std::string& d) {
                                   replace(d + "/processes.tsv", "\n{",
                                           "\n{" + std::string(40'000'000, '\t'));
                                 })},
                 "columns instead of 21");
  expect_refused({"submit", make("metrics",
                                 [&](const std::string& d) {
                                   std::string keys;
                                   for (int i = 0; i < 500'000; ++i) keys += fmt::format("{},", i);
                                   replace(d + "/processes.tsv", "{tid", "{" + keys + "tid");
                                 })},
                 "too many metrics");
  {
    fs::create_directories(dir_ / "tables");
    Strings tables;
    for (int i = 0; i < 9; ++i) {
      tables.push_back(fmt::format("n{}-papiex.tsv", i));
      write_text_file(dir_ / ("tables/" + tables.back()), "");
      fs::resize_file(dir_ / ("tables/" + tables.back()), 300 << 20);
    }
    expect_refused({"submit", dir_ / "tables"}, "1024 MiB");
    for (const auto& name : tables) fs::resize_file(dir_ / ("tables/" + name), 1);
    run_checked(Strings{"tar", "-C", dir_ / "tables", "-czf", dir_ / "tables.tgz"} + tables);
    expect_refused({"submit", dir_ / "tables.tgz"}, "more than 8 files");
    fs::remove_all(dir_ / "tables");
  }
  expect_refused({"submit", make("hard",
                                 [&](const std::string& d) {
                                   fs::remove(d + "/libraries.tsv");
                                   fs::create_hard_link(d + "/processes.tsv", d + "/libraries.tsv");
                                 })},
                 "not a regular file");
  expect_refused({"submit", make("link",
                                 [&](const std::string& d) {
                                   fs::remove(d + "/job.json");
                                   fs::create_symlink("/etc/passwd", d + "/job.json");
                                 })},
                 "not a regular file");
  expect_refused(
      {"submit", make("other", [&](const std::string& d) { write_text_file(d + "/x", "x"); },
                      {"job.json", "x"})},
      "unknown file");
  run_checked({"tar", "-C", dir_ / "other", "-czPf", dir_ / "outside.tgz", "--transform",
               "s,^,/tmp/../tmp/evil-,", "job.json"});
  expect_refused({"submit", dir_ / "outside.tgz"}, "unknown file");
  const auto bomb =
      make("bomb", [&](const std::string& d) { fs::resize_file(d + "/job.json", 64 << 20); });
  expect_refused({"submit", bomb}, "too large");
  EXPECT_EQ(job({"submit", "-m", dir_ / "failed", dir_ / "text.tgz", good}).status, 3);
  EXPECT_TRUE(fs::exists(dir_ / "failed/text.tgz"));
  EXPECT_FALSE(fs::exists(dir_ / "text.tgz"));
  EXPECT_EQ(ids({}), (Strings{"jobid", "good", "2"})) << "the good one of the last two";
}

TEST_P(Store, submits_at_once_are_all_there_once) {
  Strings files;
  for (int i = 0; i < 8; ++i) files.push_back(archive({.id = std::to_string(i)}));
  for (int i = 0; i < 4; ++i) files.push_back(files[0]);
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0, known = 0;
  for (const auto& file : files)
    threads.emplace_back([&, file] {
      const auto done = job({"submit", file});
      failed += done.status != 0;
      known += done.out.find("already") != std::string::npos;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(known, 4);
  EXPECT_EQ(ids({}).size(), 9U);
}

TEST_P(Store, hosts_of_a_job_whose_start_is_unknown_are_one_job_at_once) {
  FakeJob node{.hosts = {}, .more = {{"job_start", nullptr}}};
  for (int i = 0; i < 8; ++i) node.hosts.push_back("n" + std::to_string(i));
  Strings files;
  for (const auto& host : node.hosts) {
    node.host = host;
    node.start += 1000;
    files.push_back(archive(node));
  }
  std::vector<std::thread> threads;
  for (const auto& file : files) threads.emplace_back([&, file] { out({"submit", file}); });
  for (auto& thread : threads) thread.join();
  const auto rows = Json::parse(out({"query", "--format", "json"}));
  ASSERT_EQ(rows.size(), 1U) << rows;
  EXPECT_EQ(rows[0]["num_hosts"], 8);
  EXPECT_EQ(rows[0]["complete"], 1);
}

TEST_P(Store, submit_that_is_killed_leaves_all_or_nothing) {
  FakeJob job = large_job();
  job.processes.resize(2000);
  const auto file = archive(job);
  out({"submit", archive({})});
  for (int i = 0; i < 100; ++i) {
    auto child = start_silently(program_, {"fs-job", "submit", "--db", url_, file});
    std::this_thread::sleep_for(std::chrono::milliseconds(i * 3));
    ::kill(child.pid(), SIGKILL);
    (void)child.wait();
    const auto rows =
        Json::parse(out({"query", "--format", "json", "--columns", "jobid,num_procs"}));
    ASSERT_TRUE(rows.size() == 1 || (rows.size() == 2 && rows[1]["num_procs"] == 2000))
        << rows.dump();
    if (rows.size() == 2) out({"delete", "large"});
  }
  out({"submit", file});
  EXPECT_EQ(Json::parse(out({"show", "large", "--tree", "--format", "json"})).size(), 2000U);
}

TEST_P(Store, job_of_20000_processes_needs_seconds_and_little_memory) {
  const auto file = archive(large_job());
  const auto began = std::chrono::steady_clock::now();
  auto child = start_silently(program_, {"fs-job", "submit", "--db", url_, file});
  int status = 0;
  rusage used{};
  const pid_t pid = child.release();
  ASSERT_EQ(::wait4(pid, &status, 0, &used), pid);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  RecordProperty("seconds", std::to_string(took.count()));
  RecordProperty("kib", std::to_string(used.ru_maxrss));
  EXPECT_EQ(status, 0);
  EXPECT_LT(used.ru_maxrss, 300 * 1024);
  EXPECT_LT(took.count(), 10);
  std::printf("%s: %.2f s, %ld MiB\n", GetParam(), took.count(), used.ru_maxrss / 1024);
}

}  // namespace
}  // namespace heddle::test
