// SPDX-License-Identifier: MIT
//
// Runs the commands of docs/python.md, in its order, in one shell. $SHARED counts as slow.

#include <regex>

#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

/// A section's heading, and the text of its ```sh blocks.
struct Section {
  std::string heading;
  std::string commands;
};

std::vector<Section> sections_of(const std::string& page) {
  static const std::regex kBlock("(?:^|\n)(?:##+ ([^\n]+)|```(sh|text)\n([^]*?)```)\n");
  std::vector<Section> out = {{"", ""}};
  for (std::sregex_iterator at(page.begin(), page.end(), kBlock), end; at != end; ++at) {
    if ((*at)[1].matched)
      out.push_back({at->str(1), ""});
    else if (at->str(2) == "sh")
      out.back().commands += at->str(3);
  }
  std::erase_if(out, [](const Section& section) { return section.commands.empty(); });
  return out;
}

class PythonTour : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_STAGED(fs_gen, "fs-gen");
    HEDDLE_STAGED(fs_record, "fs-record");
    const char* source = std::getenv("HEDDLE_SOURCE");
    page_ = value_or_throw(read_file(std::string(source ? source : ".") + "/docs/python.md"));
    for (const char* name : {"shared", "work", "home", "tmp"}) fs::create_directories(dir_ / name);
    options_.cwd = dir_ / "work";
    options_.deadline = std::chrono::minutes(5);
    options_.env = {"SHARED=" + dir_ / "shared",
                    "HEDDLE_SLOW=" + dir_ / "shared",
                    "HOME=" + dir_ / "home",
                    "TMPDIR=" + dir_ / "tmp",
                    "XDG_CACHE_HOME=" + dir_ / "home/.cache",
                    "PATH=" + fs::path(fs_gen).parent_path().string() + ":/usr/bin:/bin",
                    "PYTHONPATH",
                    "PYTHONHOME"};
  }
  /// Runs the page, with a line before the output of each section.
  RunResult run_page() {
    std::string script = "set -euo pipefail\n";
    for (const auto& section : sections_of(page_))
      script += "echo '== " + section.heading + "'\n" + section.commands;
    write_text_file(dir_ / "script", script);
    return run({"bash", dir_ / "script"}, options_);
  }
  std::string shared(const std::string& name) const { return dir_ / ("shared/" + name); }

  TestDir dir_;
  RunOptions options_;
  std::string page_;
};

TEST_F(PythonTour, each_command_does_what_the_page_says) {
  const auto done = run_page();
  ASSERT_EQ(done.status, 0) << done.out << done.err;
  std::map<std::string, std::string> printed;
  static const std::regex kSection("== ([^\n]+)\n([^]*?)(?=== |$)");
  for (std::sregex_iterator at(done.out.begin(), done.out.end(), kSection), end; at != end; ++at)
    printed[at->str(1)] = at->str(2);

  const auto hello = "hello from " + shared("lib/greeting/__init__.py\n");
  const auto first = printed["A program as it is"];
  EXPECT_THAT(first, ::testing::StartsWith(hello));
  EXPECT_THAT(first, HasSubstr("tree: " + dir_ / "shared"));
  EXPECT_TRUE(first.ends_with(hello)) << first;
  EXPECT_EQ(printed["venv"], "42 " + shared("venv\n") + "42 " + shared("venv\n"));
  EXPECT_EQ(printed["Changing an environment"], "refused: Read-only file system\ntext");
  EXPECT_THAT(done.err, HasSubstr(shared("venv/new.txt")));
  EXPECT_THAT(done.err, HasSubstr("--tree-exclude"));
  EXPECT_THAT(printed["uv"],
              ::testing::MatchesRegex("uv-like " + shared("project/[^ ]*/layout.py ") +
                                      shared("uv/cpython/lib/[^ ]*/os.py\n")));
  EXPECT_EQ(printed["conda"], "conda-like " + shared("conda\n"));
  EXPECT_EQ(printed["A Spack view, and many packages without one"], "31\n");
  EXPECT_TRUE(printed["One map for many starts"].ends_with(hello));
  EXPECT_THAT(printed["A bundle"], HasSubstr(hello));
  EXPECT_THAT(printed["A bundle"], HasSubstr("greeting/__init__.py"));
  EXPECT_THAT(printed["What it saved"], ::testing::StartsWith(hello));
  EXPECT_THAT(printed["What it saved"], HasSubstr("1 trees\n"));
  EXPECT_EQ(mounts_with(dir_.path()), 0U);
}

TEST(PythonTourPage, marks_each_block_as_run_or_not_run) {
  const char* source = std::getenv("HEDDLE_SOURCE");
  const auto page =
      value_or_throw(read_file(std::string(source ? source : ".") + "/docs/python.md"));
  static const std::regex kFence("\n```([a-z]*)\n");
  int run = 0, not_run = 0;
  for (std::sregex_iterator at(page.begin(), page.end(), kFence), end; at != end; ++at) {
    run += at->str(1) == "sh";
    not_run += at->str(1) == "text";
    EXPECT_THAT((std::vector<std::string>{"sh", "text", ""}), ::testing::Contains(at->str(1)));
  }
  EXPECT_GE(run, 12);
  const std::regex marked(
      "Not run by the tests[^\n]*(\n[^\n]+)?[:;][^\n]*(\n[^\n]+)?\n\n```text\n");
  EXPECT_EQ(
      std::distance(std::sregex_iterator(page.begin(), page.end(), marked), std::sregex_iterator()),
      not_run);
}

}  // namespace
}  // namespace heddle::test
