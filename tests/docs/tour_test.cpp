// SPDX-License-Identifier: MIT
//
// Runs the ```sh blocks of docs/python.md and of the tutorial's chapters, each page in one shell,
// and compares what a block prints with the ```output block behind it: times, numbers of bytes,
// hosts and directories count as equal, and a line of three dots, or three dots in a line, stand
// for anything. $SHARED counts as slow.

#include <regex>
#include <set>
#include <span>

#include "tests/support/prelude.hpp"
#include "tests/support/source_file.hpp"

namespace heddle::test {
namespace {

struct Block {
  std::string commands;
  std::optional<std::string> output;
};

std::vector<Block> blocks_of(const std::string& page) {
  static const std::regex kBlock("\n```(sh|output)\n([^]*?)```(?=\n)");
  std::vector<Block> out;
  for (std::sregex_iterator at(page.begin(), page.end(), kBlock), end; at != end; ++at) {
    if (at->str(1) == "sh")
      out.push_back({at->str(2), {}});
    else if (out.empty() || out.back().output)
      ADD_FAILURE() << "an output without commands: " << at->str(2);
    else
      out.back().output = at->str(2);
  }
  return out;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

/// A time is TIME, whatever its unit; spaces before it, which align columns, are one.
std::string normalised(const std::string& line) {
  static const std::regex kTime(" *[0-9][0-9,.]* (us|ms|s|seconds)\\b");
  static const std::regex kBytes("[0-9][0-9,.]* (bytes|kB|KiB|MB|MiB)");
  static const std::regex kEvents("[0-9]+ events");
  auto out = std::regex_replace(line, kTime, " TIME");
  out = std::regex_replace(out, kBytes, "SIZE");
  return std::regex_replace(out, kEvents, "N events");
}

/// Three dots in `wanted` stand for anything.
bool line_matches(const std::string& wanted, const std::string& line) {
  const auto dots = wanted.find("...");
  if (dots == std::string::npos) return wanted == line;
  const auto rest = wanted.substr(dots + 3);
  return line.size() >= dots + rest.size() && line.starts_with(wanted.substr(0, dots)) &&
         line.ends_with(rest);
}

bool lines_match(std::span<const std::string> wanted, std::span<const std::string> lines) {
  if (wanted.empty()) return lines.empty();
  if (wanted[0] != "...")
    return !lines.empty() && line_matches(wanted[0], lines[0]) &&
           lines_match(wanted.subspan(1), lines.subspan(1));
  for (std::size_t skipped = 0; skipped <= lines.size(); ++skipped)
    if (lines_match(wanted.subspan(1), lines.subspan(skipped))) return true;
  return false;
}

Strings normalised_lines(const std::string& text) {
  auto lines = lines_of(text);
  for (auto& line : lines) line = normalised(line);
  return lines;
}

class Tour : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    HEDDLE_STAGED(fs_gen, "fs-gen");
    HEDDLE_STAGED(fs_record, "fs-record");
    for (const char* name : {"shared", "work", "home", "tmp"}) fs::create_directories(dir_ / name);
    options_.cwd = dir_ / "work";
    options_.deadline = std::chrono::minutes(5);
    options_.env = {"SHARED=" + dir_ / "shared",
                    "HEDDLE_SLOW=" + dir_ / "shared",
                    "HOME=" + dir_ / "home",
                    "TMPDIR=" + dir_ / "tmp",
                    "XDG_CACHE_HOME=" + dir_ / "home/.cache",
                    "PATH=" + fs::path(fs_gen).parent_path().string() + ":/usr/bin:/bin",
                    "LC_ALL=C",
                    "PYTHONPATH",
                    "PYTHONHOME"};
  }
  static std::string page(const std::string& name) {
    return value_or_throw(read_file(source_file("docs/" + name)));
  }
  /// What a page prints, as it shows it.
  std::string shown(std::string text) const {
    text = replaced(text, dir_ / "shared", "/shared");
    text = replaced(text, dir_ / "work", "/work");
    // fs-diff's form of a temporary directory's name, of which some look like words
    static const std::regex temporary("/[^ ]*/heddle-test-(<temp>|[A-Za-z0-9]{6})/shared");
    text = std::regex_replace(text, temporary, "/shared");
    return image_.empty() ? text : replaced(text, image_, "/image");
  }

  TestDir dir_;
  RunOptions options_;
  std::string image_;
};

TEST_P(Tour, each_command_prints_what_the_page_says) {
  const std::string name = GetParam();
  auto blocks = blocks_of(page(name));
  ASSERT_FALSE(blocks.empty());
  if (name.starts_with("tutorial/")) {
    const auto first = blocks_of(page("tutorial/README.md"));
    blocks.insert(blocks.begin(), first.begin(), first.end());
  }
  if (page(name).find("$IMAGE") != std::string::npos) {
    const auto made = run({source_file("tests/support/rootfs"), "bookworm-mpich"},
                          {.deadline = std::chrono::minutes(5)});
    if (made.status == 77) HEDDLE_SKIP("no image of Debian with MPICH: " + made.err);
    ASSERT_EQ(made.status, 0) << made.err;
    image_ = made.out.substr(0, made.out.find('\n'));
    options_.env.push_back("IMAGE=" + image_);
  }
  std::string script = "set -euo pipefail\nexec 2>&1\n";
  for (const auto& block : blocks) script += block.commands + "printf '\\n@@@\\n'\n";
  write_text_file(dir_ / "script", script);
  const auto done = run({"bash", dir_ / "script"}, options_);
  ASSERT_EQ(done.status, 0) << done.out;

  std::string rest = shown(done.out);
  for (const auto& block : blocks) {
    const auto end = rest.find("\n@@@\n");
    ASSERT_NE(end, std::string::npos);
    const auto printed = rest.substr(0, end);
    rest = rest.substr(end + 5);
    if (!block.output) continue;
    const auto wanted = normalised_lines(*block.output);
    EXPECT_TRUE(lines_match(wanted, normalised_lines(printed))) << "commands:\n"
                                                                << block.commands << "\nprinted:\n"
                                                                << printed << "\n\nnot:\n"
                                                                << *block.output;
  }
  EXPECT_EQ(mounts_with(dir_.path()), 0U);
}

constexpr const char* kPages[] = {
    "python.md",           "tutorial/1-start.md",     "tutorial/2-map.md",
    "tutorial/3-mount.md", "tutorial/4-container.md", "tutorial/5-record.md",
    "tutorial/6-diff.md",  "tutorial/7-python.md",    "tutorial/8-launch.md"};
INSTANTIATE_TEST_SUITE_P(Pages, Tour, ::testing::ValuesIn(kPages), [](const auto& each) {
  return std::regex_replace(std::string(each.param), std::regex("[^A-Za-z0-9]"), "_");
});

TEST(TourPages, are_short_and_all_run) {
  std::set<std::string> run(std::begin(kPages), std::end(kPages));
  for (const auto& entry : fs::directory_iterator(source_file("docs/tutorial"))) {
    const auto name = "tutorial/" + entry.path().filename().string();
    EXPECT_TRUE(name == "tutorial/README.md" || run.contains(name)) << name;
    EXPECT_LE(lines_of(value_or_throw(read_file(entry.path()))).size(), 60U) << name;
  }
}

TEST(TourPages, readme_is_short_and_leads_to_what_a_bug_report_needs) {
  const auto readme = value_or_throw(read_file(source_file("README.md")));
  EXPECT_LE(lines_of(readme).size(), 150U);
  EXPECT_THAT(readme, HasSubstr("CONTRIBUTING.md#report-a-bug"));
  EXPECT_THAT(value_or_throw(read_file(source_file("CONTRIBUTING.md"))),
              ::testing::AllOf(HasSubstr("## Report a bug"), HasSubstr("fs-gen --doctor")));
}

TEST(TourComparison, ignores_times_and_what_dots_stand_for_only) {
  const auto match = [](const std::string& wanted, const std::string& printed) {
    return lines_match(normalised_lines(wanted), normalised_lines(printed));
  };
  EXPECT_TRUE(match("start-up   9.6 ms from exec\n", "start-up  1,012.0 us from exec\n"));
  EXPECT_TRUE(match("a\n...\nd\n", "a\nb\nc\nd\n"));
  EXPECT_TRUE(match("sha256  ...\n", "sha256  0123\n"));
  EXPECT_FALSE(match("32 libraries\n", "31 libraries\n"));
  EXPECT_FALSE(match("a\n...\nd\n", "a\nb\nc\n"));
  EXPECT_FALSE(match("a\n", "a\nb\n"));
}

TEST(TourPages, mark_each_block_of_python_as_run_or_not_run) {
  const auto page = value_or_throw(read_file(source_file("docs/python.md")));
  static const std::regex kFence("\n```([a-z]*)\n");
  int not_run = 0;
  for (std::sregex_iterator at(page.begin(), page.end(), kFence), end; at != end; ++at) {
    not_run += at->str(1) == "text";
    EXPECT_THAT((Strings{"sh", "output", "text", ""}), ::testing::Contains(at->str(1)));
  }
  const std::regex marked(
      "Not run by the tests[^\n]*(\n[^\n]+)?[:;][^\n]*(\n[^\n]+)?\n\n```text\n");
  EXPECT_EQ(
      std::distance(std::sregex_iterator(page.begin(), page.end(), marked), std::sregex_iterator()),
      not_run);
}

}  // namespace
}  // namespace heddle::test
