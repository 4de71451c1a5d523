// SPDX-License-Identifier: MIT
// Traces of compat-lib's fs-record in both variants; real ones are in data/.
#include "tests/diff/trace_support.hpp"

namespace heddle::trace {
namespace {

const std::string kData = HEDDLE_DIFF_DATA;

class CompatLibReader : public TraceFiles {};

}  // namespace

TEST_F(CompatLibReader, reads_both_variants) {
  const auto count = [](const KeptRun& run, Op op) {
    return run.footer.by_op[static_cast<std::size_t>(op)];
  };
  const auto older = runs_of(kData + "/fuse-patch_31May2019.out");
  const auto newer = runs_of(kData + "/kind-patch_2Aug2023.out");
  ASSERT_TRUE(older.size() == 1 && newer.size() == 1);
  // The older variant has neither closes nor descriptors nor an end.
  EXPECT_EQ(older[0].ending, Ending::not_in_format);
  EXPECT_TRUE(newer[0].complete());
  EXPECT_EQ(count(older[0], Op::open), 71U);
  EXPECT_EQ(count(older[0], Op::close), 0U);
  EXPECT_EQ(count(newer[0], Op::open), 76U);
  EXPECT_EQ(count(newer[0], Op::close), 76U);
  for (const auto& e : newer[0].events)
    EXPECT_EQ(e.handle >= 0, e.op == Op::open || e.op == Op::close) << e.path;
  for (const auto& run : {older[0], newer[0]}) {
    EXPECT_EQ(run.events[0].path, "/etc");
    EXPECT_EQ(run.events[0].ns, 0U);
    EXPECT_EQ(run.header.format, Format::compat_lib);
  }
}

TEST_F(CompatLibReader, splits_an_appended_file_into_its_runs) {
  const auto runs = runs_of(kData + "/fuse-patch_27Jun2024.out");
  ASSERT_EQ(runs.size(), 3U);
  const std::size_t opens[] = {69, 76, 76};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(runs[i].footer.by_op[static_cast<int>(Op::open)], opens[i]);
    EXPECT_EQ(runs[i].events[0].path, "/etc");
    EXPECT_EQ(runs[i].events[1].path, "/etc/host.conf");
    EXPECT_EQ(runs[i].events[0].ns, 0U);
  }
}

TEST_F(CompatLibReader, splits_an_appended_file_of_the_newer_variant) {
  for (const char* name : {"/kind-patch_2Aug2023.out", "/kind-patch_10Feb2021.out"}) {
    const std::string one = content(kData + name);
    const auto runs = runs_of(file("a", one + "\n" + one));
    ASSERT_EQ(runs.size(), 2U);
    // Lookups after the end line belong to the first run.
    EXPECT_EQ(runs[0].events.size(), runs[1].events.size());
    for (const auto& run : runs) EXPECT_TRUE(run.footer.complete);
  }
}

TEST_F(CompatLibReader, takes_a_loop_over_the_same_files_as_one_run) {
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += "2024/11/21 18:34:47 logger.go:63: " + std::to_string(1000 + i) + " Open      /d/" +
            std::to_string(i % 2) + "    \t7\n";
  EXPECT_EQ(runs_of(file("a", text)).size(), 1U);
}

TEST_F(CompatLibReader, keeps_spaces_of_paths_and_drops_padding) {
  const auto runs =
      runs_of(file("a",
                   "2024/11/21 18:34:47 logger.go:63: 5 Open      /data/my file.txt\t7\n"
                   "2024/11/21 18:34:47 logger.go:63: 6 Lookup    /etc      \n"
                   "2024/11/21 18:34:47 logger.go:63: 7 Open      /long/name \t12\n"
                   "2024/11/21 18:34:47 logger.go:63: 8 Open      /a\tb/0000000\t3"));
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].events[0].path, "/data/my file.txt");
  EXPECT_EQ(runs[0].events[0].handle, 7);
  EXPECT_EQ(runs[0].events[1].path, "/etc");
  EXPECT_EQ(runs[0].events[2].path, "/long/name ");
  EXPECT_EQ(runs[0].events[3].path, "/a\tb/0000000");
  EXPECT_EQ(runs[0].events[3].ns, 3U);
}

TEST_F(CompatLibReader, finds_a_recording_behind_other_output) {
  const std::string trace = content(kData + "/kind-patch_2Aug2023.out");
  const auto expected = runs_of(kData + "/kind-patch_2Aug2023.out");
  const std::string log =
      "Get:1 http://deb.example/ubuntu jammy/main [1,792 kB]\r\n\n{\"level\": \"info\"}\n"
      "2024/11/17 05:05:49 proot started\n\xff\xfe (Reading database ... 4395 files)\n"
      "START RECORDING =====\n";
  const auto runs = runs_of(file("a", log + trace));
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].events, expected[0].events);
  // Not within it, and not in a file without any.
  EXPECT_NE(error_of(file("b", log + trace + "\n" + log)).find("not an event"), std::string::npos);
  EXPECT_NE(error_of(file("c", log)).find("c:1: not a trace: no line begins"), std::string::npos);
  EXPECT_NE(error_of(file("d", log + std::string(1, '\0') + "\n" + trace)).find("d:1: not a trace"),
            std::string::npos);
  const std::string ours = content(this->trace("e", {{.pid = 1, .path = "/x"}}));
  EXPECT_EQ(runs_of(file("f", log + ours + ours)).size(), 2U);
}

TEST_F(CompatLibReader, reports_damage_with_its_line) {
  const std::string good = "2024/11/21 18:34:47 logger.go:63: 5 Open      /data/file\t7\n";
  for (const char* bad : {"garbage\n", "\n", "2024/11/21 18:34:47 logger.go:63: 5 Open\n",
                          "2024/11/21 18:34:47 logger.go:63: x Open      /a\n",
                          "2024/11/21 18:34:47 logger.go:63: 5 Frob      /a\n"})
    EXPECT_NE(error_of(file("a", good + bad)).find("a:2: "), std::string::npos) << bad;
}

}  // namespace heddle::trace
