// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <random>

#include "base/child.hpp"
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

TEST_F(FsDiff, ignores_the_order_of_closes) {
  std::vector<trace::Event> events(6);
  const trace::Op ops[] = {trace::Op::open,  trace::Op::open,  trace::Op::read,
                           trace::Op::close, trace::Op::close, trace::Op::read};
  for (int i = 0; i < 6; ++i) {
    events[i].op = ops[i];
    events[i].handle = i % 3;
    events[i].path = i % 2 ? "/x" : "/y";
    events[i].pid = 1;
  }
  events[2].offset = events[5].offset = 0;
  const auto a = trace("a", events);
  std::swap(events[2], events[4]);
  const auto b = trace("b", events);
  EXPECT_EQ(json({a, b})["distance"], 0);
  EXPECT_EQ(json({a, b})["a"]["events"], 4);
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
  const auto none = trace("none", {});
  EXPECT_EQ(json({none, none, "--by", "thread"})["distance"], 0);
  EXPECT_EQ(json({none, a, "--by", "process"})["distance"], 4);
}

TEST_F(FsDiff, ignores_interleaving_when_aligning_by_thread) {
  const auto trace_of = [&](const char* name, std::initializer_list<int> order, int first_tid) {
    std::vector<trace::Event> events;
    std::array<int, 3> next{};
    for (const int thread : order) {
      trace::Event e;
      e.op = trace::Op::open;
      e.pid = first_tid, e.tid = first_tid + thread, e.exe = "/usr/bin/git";
      const auto n = static_cast<std::size_t>(thread);
      static const char* const kPaths[3][3] = {
          {"/a", "/b", "/c"}, {"/d", "/e", "/f"}, {"/g", "/h", "/i"}};
      e.path = kPaths[n][next[n]++];
      events.push_back(e);
    }
    return trace(name, events);
  };
  const auto a = trace_of("a", {0, 0, 0, 1, 1, 1, 2, 2, 2}, 100);
  const auto b = trace_of("b", {2, 1, 0, 0, 1, 2, 1, 0, 2}, 500);
  for (const auto& by : {std::vector<std::string>{}, {"--by", "process"}}) {
    std::vector<std::string> arguments{a, b};
    arguments.insert(arguments.end(), by.begin(), by.end());
    const auto j = json(arguments);
    EXPECT_GT(j["distance"], 0);
    EXPECT_EQ(j["other_order"], true);
    EXPECT_EQ(j["events"], (nlohmann::json{{"only_a", 0}, {"only_b", 0}, {"in_both", 9}}));
    EXPECT_NE(run(arguments).out.find("events: the same in another order\n"), std::string::npos);
  }
  const auto j = json({a, b, "--by", "thread"});
  EXPECT_EQ(j["distance"], 0);
  EXPECT_EQ(j["by"], "thread");
  EXPECT_EQ(j["other_order"], false);
  EXPECT_EQ(run({a, b, "--by", "thread"}).status, 0);
  EXPECT_EQ(json({a, opens("c", {"/a"})})["other_order"], false);
}

TEST_F(FsDiff, begins_its_report_with_files_and_misses) {
  const auto event = [](const char* exe, trace::Op op, const char* path, int error = 0) {
    trace::Event e;
    e.op = op, e.error = error;
    e.pid = e.tid = 7, e.exe = exe, e.path = path;
    return e;
  };
  using trace::Op;
  const auto a = trace(
      "a", {event("/bin/py", Op::lookup, "/old"), event("/bin/py", Op::open, "/old/libz.so.1"),
            event("/bin/py", Op::open, "/old/liba\n.so"), event("/bin/sh", Op::stat, "/old/x"),
            event("/bin/sh", Op::open, "/both"), event("/bin/py", Op::lookup, "/gone", ENOENT)});
  const auto b = trace(
      "b",
      {event("/bin/py", Op::lookup, "/new"), event("/bin/py", Op::lookup, "/new/libm.so", ENOENT),
       event("/bin/py", Op::lookup, "/old/libz.so.1", ENOENT),
       event("/bin/py", Op::open, "/new/libz.so.1"), event("/bin/sh", Op::open, "/both")});
  const std::string text = run({a, b}).out;
  EXPECT_NE(text.find("files only in a: 3\n"
                      "  /old/ (/bin/py): liba\\n.so libz.so.1\n"
                      "  /old/ (/bin/sh): x\n"
                      "files only in b: 1\n"
                      "  /new/ (/bin/py): libz.so.1\n"
                      "newly missed in b: 2\n"
                      "  /new/ (/bin/py): libm.so\n"
                      "  /old/ (/bin/py): libz.so.1; 1 found in a\n"
                      "missed in a only: 1\n"
                      "  / (/bin/py): gone\n"
                      "@@"),
            std::string::npos)
      << text;
  const auto files = json({a, b})["files"];
  EXPECT_EQ(files["only_a"].size(), 3U);
  EXPECT_EQ(files["only_a"][2], (nlohmann::json{{"path", "/old/x"}, {"process", "/bin/sh"}}));
  EXPECT_EQ(files["missed_b"][1]["found_by_other"], true);
  // Of lookups alone, these are the uses.
  EXPECT_EQ(json({a, b, "--op", "lookup"})["files"]["only_b"][0]["path"], "/new");
  EXPECT_EQ(run({a, a}).out.find("files"), std::string::npos);
  EXPECT_EQ(json({a, b, "--by", "process"})["files"], files);
}

TEST_F(FsDiff, marks_an_upper_bound_above_max_distance) {
  std::vector<std::string> left, right;
  for (int i = 0; i < 9'000; ++i) {
    left.push_back("/" + std::to_string(i));
    right.push_back("/" + std::to_string(i * 7 % 9'000));
  }
  const auto a = opens("a", left), b = opens("b", right);
  const auto exact = json({a, b, "--local", "0"});
  EXPECT_EQ(exact["exact"], true);
  const auto bound = json({a, b, "--local", "0", "--max-distance", "10"});
  EXPECT_EQ(bound["exact"], false);
  EXPECT_GE(bound["distance"], exact["distance"]);
  EXPECT_LE(bound["distance"], 9'000);
  EXPECT_EQ(bound["script"].size(), bound["distance"]);
  EXPECT_EQ(run({a, b, "--summary", "--max-distance", "10"}).status, 1);
  EXPECT_NE(run({a, b, "--summary", "--max-distance", "10"}).out.find("distance at most "),
            std::string::npos);
  const auto wide = json({a, b, "--local", "0", "--max-distance", "100%"});
  EXPECT_EQ(wide["exact"], true);
  EXPECT_EQ(wide["distance"], exact["distance"]);
}

TEST_F(FsDiff, shows_its_progress_on_a_terminal) {
  // Unrelated runs: seconds of work, of which only the first are waited for.
  std::vector<trace::Event> events(800'000);
  std::vector<std::string> paths;
  for (int i = 0; i < 5'000; ++i) paths.push_back("/" + std::to_string(i));
  std::mt19937 random(1);
  for (const char* name : {"a", "b"}) {
    for (auto& e : events) e.path = paths[random() % paths.size()], e.pid = 1;
    trace(name, events);
  }
  const Fd terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal && ::grantpt(terminal.get()) == 0 && ::unlockpt(terminal.get()) == 0);
  const Fd other(::open(::ptsname(terminal.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  auto child = value_or_throw(spawn(HEDDLE_FS_DIFF,
                                    {"fs-diff", "--summary", "--local", "0", path("a"), path("b")},
                                    {.fds = {{null.get(), 1}, {other.get(), 2}}}));
  std::string shown;
  pollfd ready{terminal.get(), POLLIN, 0};
  while (shown.find(" %") == shown.npos && ::poll(&ready, 1, 60'000) > 0) {
    std::array<char, 256> buffer;
    const auto size = ::read(terminal.get(), buffer.data(), buffer.size());
    if (size <= 0) break;
    shown.append(buffer.data(), static_cast<std::size_t>(size));
  }
  EXPECT_NE(shown.find("\rfs-diff: comparing: "), shown.npos) << shown;
  ::kill(child.pid(), SIGKILL);
  static_cast<void>(child.wait());
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
  EXPECT_NE(run({cut, good}).err.find("hint: --partial reads it up to there"), std::string::npos);
  EXPECT_EQ(run({cut, good, "--partial"}).status, 1);
  EXPECT_EQ(run({good, good, "--html", path("no/such.html")}).status, 2);
  EXPECT_EQ(run({good, good, "--html", "/dev/full"}).status, 2);
}

TEST_F(FsDiff, reads_standard_input_once) {
  for (const std::vector<std::string>& files :
       {std::vector<std::string>{"-", "-"}, {"--", "-", "-#2"}, {"--matrix", "-", "a", "-"}}) {
    const auto outcome = run(files);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_NE(outcome.err.find("- may be given once"), std::string::npos) << outcome.err;
  }
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
