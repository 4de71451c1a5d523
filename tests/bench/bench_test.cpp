// SPDX-License-Identifier: MIT
//
// The page that `./dev bench` makes, in a real browser, its alarms, and what it puts into
// documents; and a small run of the bench that has the most ways to start a program.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "bench/timing.hpp"
#include "tests/support/browser.hpp"
#include "tests/support/occurrences.hpp"
#include "tests/support/prelude.hpp"
#include "tests/support/source_file.hpp"

namespace heddle::test {
namespace {

using nlohmann::json;

/// The words of a page that a picture cuts off or that lie on others.
constexpr const char* kIllegible = R"(<script>
const bad = [];
for (const svg of document.querySelectorAll('svg')) {
  const whole = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  texts.forEach(([words, a], at) => {
    if (a.left < whole.left || a.right > whole.right || a.top < whole.top - 1 || a.bottom > whole.bottom + 1)
      bad.push('cut: ' + words);
    for (const [others, b] of texts.slice(at + 1))
      // A line's rectangle is higher than its letters.
      if (a.left < b.right && b.left < a.right && a.top + 2 < b.bottom - 2 && b.top + 2 < a.bottom - 2)
        bad.push(words + ' lies on ' + others);
  });
}
document.title = document.querySelectorAll('text').length + ' texts, illegible: ' + bad.join('; ') + '.';
</script>)";

class BenchPage : public ::testing::Test {
 protected:
  RunResult page(const Strings& words) {
    return run(Strings{source_file("bench/page.py")} + words);
  }
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
             {"absent", {"Spindle: not here"}},
             {"failed", {"cold.9: broken"}}}
            .dump());
  }
  /// The page as the browser has it.
  std::string drawn(const std::string& file) const { return drawn_page(file, dir_ / "profile"); }
  /// Of the page in `file`.
  std::string illegible(const std::string& file) {
    auto text = value_or_throw(read_file(file));
    text.insert(text.find("</body>"), kIllegible);
    const auto title = drawn(write_text_file(dir_ / "measured.html", text));
    const auto begin = title.find("<title>") + 7;
    return title.substr(begin, title.find("</title>") - begin);
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
            {{"cold.server.50.0us", {{"stock", {100}}, {"heddle", {20}}}},
             {"cold.server.50.200us", {{"stock", {9000}}, {"heddle", {90}}}},
             {"cold.server.50.1000us", {{"stock (computed)", {150000}}, {"heddle", {300}}}},
             {"cold.none.50.200us", {{"stock", {9500}}, {"absolute", {80}}, {"heddle", {90}}}},
             {"cold.none.500.200us",
              {{"stock (computed)", {170000}}, {"absolute", {300}}, {"heddle", {400}}}}});
  const auto file = dir_ / "index.html";
  const auto made = page({dir_ / "runs", file});
  ASSERT_EQ(made.status, 0) << made.err;
  const auto text = value_or_throw(read_file(file));
  EXPECT_FALSE(std::regex_search(
      text, std::regex("(src|href)=|url\\(|@import|https?://(?!www\\.w3\\.org)")));
  HEDDLE_NEEDS_BROWSER();
  const auto dom = drawn(file);
  for (const char* id :
       {"latency", "cold-none", "libraries", "processes", "parts", "ratios", "figures"})
    EXPECT_THAT(dom, HasSubstr("id=\"" + std::string(id) + "\""));
  EXPECT_EQ(occurrences(dom, "class=\"computed\""), 2U) << "stock at 1 ms, and of 500, is hollow";
  EXPECT_GT(occurrences(dom, "class=\"measured\""), 10U);
  EXPECT_THAT(dom, HasSubstr("a&lt;b"));
  EXPECT_THAT(dom, HasSubstr("Spindle: not here"));
  EXPECT_THAT(dom, HasSubstr("failed: cold.9: broken"));
  EXPECT_THAT(dom, HasSubstr("cold.none.500.200us: heddle / stock (computed)"));
}

TEST_F(BenchPage, words_in_plots_are_legible) {
  HEDDLE_NEEDS_BROWSER();
  const auto legible = ::testing::ContainsRegex("^[0-9]+ texts, illegible: \\.$");
  const auto file = dir_ / "index.html";
  ASSERT_EQ(page({source_file("bench/reference"), file}).status, 0);
  EXPECT_THAT(illegible(file), legible);
  // All ways end in two places, at the top and at the bottom.
  json samples;
  for (const int delay : {0, 50, 200, 1000})
    for (const char* way : {"stock", "LD_LIBRARY_PATH", "one directory", "absolute", "tar",
                            "copper (emulated)", "heddle", "bundle", "spindle"})
      samples[fmt::format("cold.server.200.{}us", delay)][way] = {
          std::string(way).find('o') == 2 ? 1001 + delay : 100};
  write_run("runs", "cold", samples);
  ASSERT_EQ(page({dir_ / "runs", file}).status, 0);
  EXPECT_THAT(illegible(file), legible);
  // The measurement itself.
  write_text_file(file,
                  "<html><body><svg width=\"200\" height=\"60\"><text x=\"9\" y=\"20\">one</text>"
                  "<text x=\"12\" y=\"22\">two</text><text x=\"190\" y=\"50\">three</text></svg>"
                  "</body></html>");
  EXPECT_THAT(illegible(file), HasSubstr("3 texts, illegible: one lies on two; cut: three."));
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
  const auto reference = source_file("bench/reference");
  fs::copy_file(source_file("docs/performance.md"), dir_ / "performance.md");
  ASSERT_EQ(page({"--markdown", reference, dir_ / "performance.md"}).status, 0);
  ASSERT_EQ(page({"--svg", reference, dir_ / "cold-starts.svg"}).status, 0);
  for (const std::string name : {"performance.md", "cold-starts.svg"})
    EXPECT_EQ(value_or_throw(read_file(source_file("docs/" + name))),
              value_or_throw(read_file(dir_ / name)))
        << "run ./dev figures";
}

TEST_F(BenchPage, cold_bench_measures_each_way_and_names_what_is_absent) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  const auto done =
      run({HEDDLE_COLD_BENCH, "--stage", std::getenv("HEDDLE_STAGE"), "--work", dir_.path(),
           "--libraries", "10,20", "--delays", "0,100", "--presets", "server,none", "--programs",
           "modules,large,tls", "--rounds", "1", "--json", dir_ / "cold.json"},
          {.env = {"TMPDIR=" + dir_.path(), "HOME=" + dir_.path()},
           .deadline = std::chrono::minutes(3)});
  ASSERT_EQ(done.status, 0) << done.out << done.err;
  const auto result = json::parse(value_or_throw(read_file(dir_ / "cold.json")));
  const auto& samples = result.at("samples_ms");
  EXPECT_EQ(samples.at("cold.server.20.100us").size(), 8U);
  EXPECT_EQ(samples.at("cold.none.10.200us").size(), 6U);
  EXPECT_EQ(samples.at("cold.none.20.200us").size(), 6U);
  EXPECT_EQ(samples.at("cold.program.modules").size(), 3U);
  EXPECT_THAT(result.at("failed"), ::testing::IsEmpty());
  EXPECT_THAT(result.at("absent").at(0).get<std::string>(), HasSubstr("Spindle"));
  std::map<std::string, double> figures;
  for (const auto& figure : result.at("figures")) figures[figure.at("name")] = figure.at("value");
  EXPECT_GT(figures.at("cold.server.20.100us.stock.operations"), 200);
  EXPECT_LT(figures.at("cold.server.20.100us.bundle.operations"), 50);
  EXPECT_GT(figures.at("cold.program.modules.stock.operations"), 100);
  EXPECT_LT(figures.at("cold.program.modules.bundle.operations"), 50);
  EXPECT_EQ(mounts_with(dir_.path()), 0U);
}

TEST_F(BenchPage, cases_that_fail_or_come_too_late_leave_the_others_measured) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  const auto bench = [&](const Strings& options) {
    return run(Strings{HEDDLE_COLD_BENCH, "--stage", std::getenv("HEDDLE_STAGE"), "--work",
                       dir_.path(), "--libraries", "10", "--delays", "0", "--presets", "server",
                       "--rounds", "1", "--json", dir_ / "cold.json"} +
                   options,
               {.env = {"TMPDIR=" + dir_.path(), "HOME=" + dir_.path()},
                .deadline = std::chrono::minutes(3)});
  };
  const auto done = bench({"--programs", "unknown,tls"});
  EXPECT_EQ(done.status, 3) << done.out;
  auto result = json::parse(value_or_throw(read_file(dir_ / "cold.json")));
  EXPECT_EQ(result.at("failed").size(), 1U);
  EXPECT_THAT(result.at("failed").at(0).get<std::string>(), StartsWith("cold.program.unknown: "));
  EXPECT_TRUE(result.at("samples_ms").contains("cold.server.10.0us"));
  EXPECT_TRUE(result.at("samples_ms").contains("cold.program.tls"));
  EXPECT_GT(result.at("seconds").at("cold.program.tls"), 0);

  EXPECT_EQ(bench({"--limit", "0"}).status, 0);
  result = json::parse(value_or_throw(read_file(dir_ / "cold.json")));
  EXPECT_TRUE(result.at("samples_ms").empty());
  EXPECT_THAT(result.at("absent").dump(), HasSubstr("the bench's time was over"));
}

TEST(BenchTiming, a_case_whose_time_is_over_ends_its_processes_and_takes_no_further_samples) {
  bench::begin_case(std::chrono::seconds(-3600));
  EXPECT_THROW(bench::run_ms({{"sleep", "600"}}), Error);
  std::vector<bench::Variant> variants = {{"one", [] { return 1.0; }}};
  bench::interleave(variants, 5);
  EXPECT_EQ(variants[0].samples.size(), 1U);
  bench::begin_case(std::chrono::hours(1));
  EXPECT_GT(bench::run_ms({{"true"}}, 3), 0);
  EXPECT_THROW(bench::run_ms({{"false"}}), Error);
  variants = {{"quick", [] { return 1.0; }}, {"slow", [] { return 9000.0; }}};
  bench::interleave(variants, 5);
  EXPECT_EQ(variants[0].samples.size(), 5U);
  EXPECT_EQ(variants[1].samples.size(), 2U) << "eighteen of twenty seconds";
}

}  // namespace
}  // namespace heddle::test
