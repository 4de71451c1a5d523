// SPDX-License-Identifier: MIT
#include "tests/diff/fs_diff_support.hpp"

namespace heddle {
namespace {

const std::string kData = HEDDLE_DIFF_DATA;
const std::vector<std::string> kOddPaths = {"/with space",  "/tab\there",    "/new\nline",
                                            "/back\\slash", "/bad\xff\xc3z", "/</script><b>&\"'"};

}  // namespace

TEST_F(FsDiff, gives_equal_traces_distance_0_and_exit_status_0) {
  const auto a = opens("a", {"/x", "/y"});
  const auto b = opens("b", {"/x", "/y"});
  EXPECT_EQ(run({a, b}).status, 0);
  const auto j = json({a, b});
  EXPECT_EQ(j["distance"], 0);
  EXPECT_EQ(j["similarity"], 1.0);
  EXPECT_EQ(j["normalised_distance"], 0.0);
  EXPECT_TRUE(j["script"].empty());
}

TEST_F(FsDiff, reports_local_alignments_with_positions_and_times) {
  const auto a = opens("a", {"/A", "/B", "/C", "/D", "/E"});
  const auto b = opens("b", {"/X", "/B", "/C", "/D", "/Y"});
  for (const auto& scores :
       {std::vector<std::string>{},
        {"--match", "1", "--mismatch", "-1", "--gap-open", "-1", "--gap-extend", "-1"},
        {"--mismatch=1", "--gap-open=1", "--gap-extend=1"}}) {
    std::vector<std::string> arguments{a, b};
    arguments.insert(arguments.end(), scores.begin(), scores.end());
    const auto local = json(arguments)["local"];
    ASSERT_EQ(local.size(), 1U);
    EXPECT_EQ(local[0]["score"], 3);
    EXPECT_EQ(local[0]["a"]["first"], 2);
    EXPECT_EQ(local[0]["a"]["last"], 4);
    EXPECT_EQ(local[0]["b"]["first"], 2);
    EXPECT_EQ(local[0]["b"]["last"], 4);
    EXPECT_EQ(local[0]["b"]["last_ns"], 3'000'000);
  }
  EXPECT_TRUE(json({a, b, "--local", "0"})["local"].empty());
}

TEST_F(FsDiff, prints_scripts_in_the_formats_of_diff) {
  const auto a = opens("a", {"/1", "/2", "/3", "/4", "/5", "/6", "/7", "/8", "/9"});
  const auto b = opens("b", {"/1", "/2", "/3", "/4", "/x", "/6", "/7", "/8", "/9", "/new"});
  const std::pair<const char*, std::string> forms[] = {
      {"-U1",
       "@@ -4,3 +4,3 @@\n open /4\n-open /5\n+open /x\n open /6\n"
       "@@ -9 +9,2 @@\n open /9\n+open /new\n"},
      {"-C1",
       "***************\n*** 4,6 ****\n  open /4\n! open /5\n  open /6\n"
       "--- 4,6 ----\n  open /4\n! open /x\n  open /6\n"
       "***************\n*** 9 ****\n--- 9,10 ----\n  open /9\n+ open /new\n"},
      {"-u", "@@ -2,8 +2,9 @@"},
      {"--unified=0", "@@ -5 +5 @@"},
      {"-c", "*** 2,9 ****"},
      {"--color=always", "\x1b[31m-open /5\x1b[0m"}};
  for (const auto& [option, text] : forms) {
    const auto out = run({a, b, option}).out;
    EXPECT_NE(out.find(text), std::string::npos) << option << "\n" << out;
  }
  EXPECT_EQ(run({a, b, "--summary"}).out.find("@@"), std::string::npos);
  EXPECT_EQ(run({a, b}).out.find('\x1b'), std::string::npos);
  EXPECT_EQ(run({a, b, "-q"}).out, "");
  EXPECT_EQ(run({a, b, "-q"}).status, 1);
}

TEST_F(FsDiff, distinguishes_a_miss_from_a_hit_unless_no_result) {
  const auto a = opens("a", {"/x"});
  const auto b = opens("b", {"!/x"});
  EXPECT_EQ(json({a, b})["distance"], 1);
  EXPECT_EQ(json({a, b, "--no-result"})["distance"], 0);
}

TEST_F(FsDiff, switches_normalisers_and_lists_them) {
  const auto a = opens("a", {"/lib/libx.so.1.2", "/tmp/ccA8x2Qz.o", "/proc/7/maps", "/old/f"});
  const auto b = opens("b", {"/lib/libx.so.1.3", "/tmp/ccB9y3Rw.o", "/proc/8/maps", "/new/f"});
  EXPECT_EQ(json({a, b})["distance"], 1);
  EXPECT_EQ(json({a, b, "--map", "/old=/new"})["distance"], 0);
  EXPECT_EQ(json({a, b, "--raw"})["distance"], 4);
  EXPECT_EQ(json({a, b, "--raw", "--soname"})["distance"], 3);
  EXPECT_EQ(json({a, b, "--no-temp", "--no-pid"})["distance"], 3);
  const auto listed = json({a, b, "--no-temp", "--map", "/old=/new"})["normalisers"];
  EXPECT_EQ(listed, (nlohmann::json{"soname", "pid", "hash", "map:/old=/new", "result", "late"}));
}

TEST_F(FsDiff, selects_operations_and_collapses_repeats) {
  std::vector<trace::Event> events(5);
  for (auto& e : events) e.path = "/x", e.pid = 1;
  events[0].op = trace::Op::open;
  for (int i = 1; i < 5; ++i) events[i].op = trace::Op::read;
  const auto a = trace("a", events);
  events.resize(3);
  const auto b = trace("b", events);
  EXPECT_EQ(json({a, b})["distance"], 2);
  EXPECT_EQ(json({a, b, "--op", "open,close"})["distance"], 0);
  EXPECT_EQ(json({"--op", "read", "--op", "close", a, b})["distance"], 2);
  EXPECT_EQ(json({"--map", "/q=/r", "--map", "/s=/t", a, b})["distance"], 2);
  EXPECT_EQ(json({a, b, "--collapse"})["distance"], 0);
  EXPECT_EQ(run({a, b, "--op", "frob"}).status, 2);
}

TEST_F(FsDiff, ignores_the_order_of_events_reported_at_close) {
  std::vector<trace::Event> events(6);
  const trace::Op ops[] = {trace::Op::open,  trace::Op::open,  trace::Op::read,
                           trace::Op::close, trace::Op::close, trace::Op::read};
  for (int i = 0; i < 6; ++i) {
    events[i].op = ops[i];
    events[i].handle = i % 3;
    events[i].path = i % 2 ? "/x" : "/y";
    events[i].pid = 1;
  }
  events[5].offset = 0;  // a single read of --io is not reported at close
  const auto a = trace("a", events);
  std::swap(events[2], events[4]);
  const auto b = trace("b", events);
  EXPECT_EQ(json({a, b})["distance"], 0);
  EXPECT_EQ(json({a, b})["a"]["events"], 3);
  EXPECT_EQ(json({a, b, "--no-late"})["distance"], 2);
  EXPECT_EQ(json({a, b, "--op", "close,read"})["distance"], 2);
}

TEST_F(FsDiff, ignores_interleaving_when_aligning_by_process) {
  const auto event = [](int pid, const char* exe, const char* path) {
    return trace::Event{.pid = pid, .op = trace::Op::open, .path = path, .exe = exe};
  };
  const auto a = trace("a", {event(10, "/bin/sh", "/1"), event(11, "/bin/cc", "/2"),
                             event(10, "/bin/sh", "/3"), event(12, "/bin/cc", "/4")});
  const auto b = trace("b", {event(20, "/bin/sh", "/1"), event(22, "/bin/cc", "/4"),
                             event(21, "/bin/cc", "/2"), event(20, "/bin/sh", "/3")});
  EXPECT_GT(json({a, b})["distance"], 0);
  EXPECT_EQ(json({a, b, "--by", "process"})["distance"], 0);
  const auto c = trace("c", {event(20, "/bin/sh", "/1"), event(21, "/bin/cc", "/2")});
  const auto j = json({a, c, "--by", "process"});
  EXPECT_EQ(j["distance"], 2);
  EXPECT_EQ(j["processes"].size(), 3U);
  EXPECT_EQ(run({kData + "/kind-patch_2Aug2023.out", a, "--by", "process"}).status, 2);
}

TEST_F(FsDiff, names_the_event_that_waited) {
  std::vector<trace::Event> events;
  for (const char* path : {"/1", "/2", "/3", "/4"})
    events.push_back(
        {.ns = 1'000'000u * (events.size() + 1), .pid = 1, .op = trace::Op::open, .path = path});
  const auto a = trace("a", events);
  events[2].ns += 500'000'000, events[3].ns += 500'000'000;
  const auto b = trace("b", events);
  EXPECT_EQ(run({a, b}).status, 0);
  const auto time = json({a, b})["time"];
  ASSERT_EQ(time["steps"].size(), 1U);
  EXPECT_EQ(time["steps"][0]["a"]["path"], "/3");
  EXPECT_EQ(time["steps"][0]["step_ns"], 500'000'000);
  EXPECT_EQ(time["end_later_ns"], 500'000'000);
}

TEST_F(FsDiff, max_distance_decides_the_exit_status) {
  const auto a = opens("a", {"/1", "/2", "/3", "/4"});
  const auto b = opens("b", {"/1", "/x", "/3", "/y"});
  const std::pair<const char*, int> limits[] = {{"2", 0},   {"1", 1},   {"0", 1},    {"50%", 0},
                                                {"49%", 1}, {"0.5", 0}, {"0.49", 1}, {"-1", 2},
                                                {"x", 2},   {"1.5", 2}, {"200%", 2}, {"nan", 2}};
  for (const auto& [limit, status] : limits)
    EXPECT_EQ(run({a, b, "--max-distance", limit}).status, status) << limit;
}

TEST_F(FsDiff, escapes_odd_paths_in_text_json_and_page) {
  const auto a = opens("a", kOddPaths);
  const auto b = opens("b", {"/x"});
  const auto text = run({a, b});
  EXPECT_NE(text.out.find("-open /new\\nline\n"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("-open /bad\\xff\\xc3z\n"), std::string::npos);
  const auto j = json({a, b, "--html", path("page.html")});
  std::set<std::string> paths;
  for (const auto& edit : j["script"])
    if (edit.contains("a")) paths.insert(edit["a"]["path"]);
  EXPECT_TRUE(paths.contains("/new\nline"));
  EXPECT_TRUE(paths.contains("/back\\slash"));
  EXPECT_TRUE(paths.contains("/bad\\xff\\xc3z"));
  const std::string page = content(path("page.html"));
  EXPECT_EQ(page.find("<b>&"), std::string::npos);
  EXPECT_NE(page.find("\\u003c/script>\\u003cb>&"), std::string::npos);
}

TEST_F(FsDiff, reports_unreadable_traces_with_exit_status_2) {
  const auto good = opens("good", {"/1"});
  const auto cut = file("cut", "#heddle-trace\t1\n#events\tx\n1\t2\t3\topen\tOK\t/a");
  for (const auto& [bad, message] : {std::pair<std::string, const char*>{cut, "cut:3: "},
                                     {path("missing"), "missing: "},
                                     {good + "#2", "good#2: "}})
    for (const auto& arguments : {std::vector<std::string>{bad, good}, {good, bad}}) {
      const auto outcome = run(arguments);
      EXPECT_EQ(outcome.status, 2) << bad;
      EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
      EXPECT_EQ(outcome.out, "");
    }
  EXPECT_EQ(run({cut, good, "--partial"}).status, 1);
  EXPECT_EQ(run({good, good, "--html", path("no/such.html")}).status, 2);
  EXPECT_EQ(run({good, good, "--html", "/dev/full"}).status, 2);
}

TEST_F(FsDiff, compares_an_incomplete_trace_with_a_warning) {
  const auto a = opens("a", {"/1"});
  std::string text = content(a);
  const auto b = file("b", text.substr(0, text.find("#end")));
  const auto outcome = run({a, b});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.err.find(b), std::string::npos) << outcome.err;
  EXPECT_EQ(json({a, b})["b"]["complete"], false);
}

TEST_F(FsDiff, exits_with_2_on_usage_errors_and_0_on_help) {
  const auto a = opens("a", {"/1"});
  for (const auto& arguments : {std::vector<std::string>{},
                                {a},
                                {a, a, a},
                                {a, a, "--frob"},
                                {a, a, "--local", "-1"},
                                {a, a, "--map", "x"},
                                {a, a, "--by", "moon"},
                                {"--matrix", a},
                                {"--baseline", path("no"), a},
                                {"--matrix", "--baseline", ".", a},
                                {a, a, "--match", "0"}})
    EXPECT_EQ(run(arguments).status, 2) << testing::PrintToString(arguments);
  EXPECT_EQ(run({"--help"}).status, 0);
  EXPECT_EQ(run({"--version"}).out, "fs-diff (heddle) " HEDDLE_VERSION "\n");
}

}  // namespace heddle
