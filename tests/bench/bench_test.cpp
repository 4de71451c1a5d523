// SPDX-License-Identifier: MIT
//
// The page that `./dev bench` makes, in a real browser, its alarms, and what it puts into
// documents; and a small run of the bench that has the most ways to start a program.
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using nlohmann::json;

std::string source(const std::string& path) {
  const char* root = std::getenv("HEDDLE_SOURCE");
  return std::string(root ? root : ".") + "/" + path;
}

class BenchPage : public ::testing::Test {
 protected:
  RunResult page(const Strings& words) { return run(Strings{source("bench/page.py")} + words); }
  /// A run `name` in `directory`, with these samples.
  void write_run(const std::string& directory, const std::string& name, const json& samples) {
    write_text_file(
        dir_ / (directory + "/" + name + ".json"),
        json{{"version", 1},
             {"processor", "x<y"},
             {"kernel", "6.1"},
             {"cores", 2},
             {"glibc", "2.36"},
             {"samples_ms", samples},
             {"figures", json::array({{{"name", "a<b"}, {"value", 1.5}, {"unit", "x"}}})},
             {"absent", {"Spindle: not here"}}}
            .dump());
  }
  static std::size_t count(const std::string& text, const std::string& what) {
    std::size_t n = 0;
    for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
  }
  TestDir dir_;
};

TEST_F(BenchPage, draws_plots_in_a_browser_and_loads_nothing) {
  const json of_100 = {
      {"stock", {8, 8, 8, 8, 8}}, {"absolute", {4, 4, 4, 4, 4}}, {"ours", {4, 4, 4, 4, 4}}};
  write_run("runs", "start",
            {{"start.star.100", of_100},
             {"start.star.500",
              {{"stock", {80, 80}},
               {"absolute", {10, 10}},
               {"empty auditor", {11}},
               {"flat", {12}},
               {"ours", {13}}}},
             {"at_once_1.star.500", of_100},
             {"at_once_64.star.500", of_100}});
  write_run("runs", "cold",
            {{"cold.50.0us", {{"stock", {100}}, {"heddle", {20}}}},
             {"cold.50.200us", {{"stock", {9000}}, {"heddle", {90}}}},
             {"cold.50.1000us", {{"stock (computed)", {150000}}, {"heddle", {300}}}}});
  const auto file = dir_ / "index.html";
  const auto made = page({dir_ / "runs", file});
  ASSERT_EQ(made.status, 0) << made.err;
  const auto text = value_or_throw(read_file(file));
  EXPECT_FALSE(std::regex_search(
      text, std::regex("(src|href)=|url\\(|@import|https?://(?!www\\.w3\\.org)")));
  std::string browser;
  for (const char* program : {"/usr/bin/chromium", "/usr/bin/chromium-browser"})
    if (::access(program, X_OK) == 0) browser = program;
  if (browser.empty()) HEDDLE_SKIP("no chromium installed: the page was not drawn by a browser");
  const auto drawn = run({browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                          "--disable-background-networking", "--disable-component-update",
                          "--user-data-dir=" + dir_ / "profile", "--dump-dom", "file://" + file},
                         {.deadline = std::chrono::seconds(120)});
  ASSERT_EQ(drawn.status, 0) << drawn.err;
  for (const char* id : {"latency", "libraries", "processes", "parts", "ratios", "figures"})
    EXPECT_THAT(drawn.out, HasSubstr("id=\"" + std::string(id) + "\""));
  EXPECT_EQ(count(drawn.out, "class=\"computed\""), 1U) << "stock at 1 ms is hollow";
  EXPECT_EQ(count(drawn.out, "class=\"measured\"") > 10, true);
  EXPECT_THAT(drawn.out, HasSubstr("a&lt;b"));
  EXPECT_THAT(drawn.out, HasSubstr("Spindle: not here"));
}

TEST_F(BenchPage, alarms_where_the_whole_interval_is_above_three_percent) {
  const json before = {
      {"start.star.100", {{"absolute", {10, 10, 10, 10, 10}}, {"ours", {10, 10, 10, 10, 10}}}},
      {"start.star.500", {{"absolute", {10, 10, 10, 10, 10}}, {"ours", {8, 9, 10, 11, 12}}}}};
  auto after = before;
  write_run("before", "start", before);
  write_run("after", "start", after);
  EXPECT_EQ(page({"--against", dir_ / "before", dir_ / "after"}).status, 0);
  after["start.star.500"]["ours"] = {8.5, 9.5, 10.5, 11.5,
                                     12.5};  // 5 %, but so wide is its interval
  write_run("after", "start", after);
  EXPECT_EQ(page({"--against", dir_ / "before", dir_ / "after"}).status, 0);
  after["start.star.100"]["ours"] = {10.4, 10.5, 10.5, 10.5, 10.6};
  write_run("after", "start", after);
  const auto alarm = page({"--against", dir_ / "before", dir_ / "after"});
  EXPECT_EQ(alarm.status, 1);
  EXPECT_EQ(alarm.out, "start\tstart.star.100\tours\n");
  EXPECT_THAT(alarm.err, HasSubstr("start.star.100: ours: 1.05 x"));
  EXPECT_EQ(page({"--against", dir_ / "before", dir_ / "after", "cold"}).status, 0);
}

TEST_F(BenchPage, fails_with_one_line_on_results_that_are_missing_or_damaged) {
  for (const char* content : {"", "{", "[]", "{\"samples_ms\": 3}"}) {
    write_text_file(dir_ / "bad/start.json", content);
    const auto done = page({dir_ / "bad", dir_ / "page"});
    EXPECT_EQ(done.status, 1) << content;
    EXPECT_EQ(lines_of(done.err).size(), 1U) << done.err;
    EXPECT_FALSE(fs::exists(dir_ / "page"));
  }
  EXPECT_EQ(page({dir_ / "none", dir_ / "page"}).status, 1);
  EXPECT_EQ(page({}).status, 2);
}

TEST_F(BenchPage, documents_equal_the_reference_runs) {
  const auto reference = source("bench/reference");
  fs::copy_file(source("docs/performance.md"), dir_ / "performance.md");
  ASSERT_EQ(page({"--markdown", reference, dir_ / "performance.md"}).status, 0);
  ASSERT_EQ(page({"--svg", reference, dir_ / "cold-starts.svg"}).status, 0);
  for (const std::string name : {"performance.md", "cold-starts.svg"})
    EXPECT_EQ(value_or_throw(read_file(source("docs/" + name))),
              value_or_throw(read_file(dir_ / name)))
        << "run ./dev figures";
}

TEST_F(BenchPage, cold_bench_measures_each_way_and_names_what_is_absent) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  const auto done =
      run({HEDDLE_COLD_BENCH, "--stage", std::getenv("HEDDLE_STAGE"), "--work", dir_.path(),
           "--libraries", "20", "--delays", "0,100", "--rounds", "1", "--json", dir_ / "cold.json"},
          {.env = {"TMPDIR=" + dir_.path(), "HOME=" + dir_.path()},
           .deadline = std::chrono::minutes(3)});
  ASSERT_EQ(done.status, 0) << done.out << done.err;
  const auto result = json::parse(value_or_throw(read_file(dir_ / "cold.json")));
  EXPECT_EQ(result.at("samples_ms").at("cold.20.100us").size(), 8U);
  EXPECT_THAT(result.at("absent").at(0).get<std::string>(), HasSubstr("Spindle"));
  std::map<std::string, double> figures;
  for (const auto& figure : result.at("figures")) figures[figure.at("name")] = figure.at("value");
  EXPECT_GT(figures.at("cold.20.100us.stock.operations"), 200);
  EXPECT_LT(figures.at("cold.20.100us.bundle.operations"), 50);
  EXPECT_EQ(mounts_with(dir_.path()), 0U);
}

}  // namespace
}  // namespace heddle::test
