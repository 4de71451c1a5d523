// SPDX-License-Identifier: MIT
// The HTML pages in a real browser: the test reads back the DOM.
#include <regex>

#include "tests/diff/fs_diff_support.hpp"
#include "tests/support/browser.hpp"
#include "tests/support/occurrences.hpp"

namespace heddle {
namespace {

using test::occurrences;

class Page : public FsDiff {
 protected:
  void SetUp() override { HEDDLE_NEEDS_BROWSER(); }
  /// The page's document after its scripts have run.
  std::string drawn(const std::string& page) {
    const auto dom = test::drawn_page(page, path("profile"));
    EXPECT_NE(dom.find("data-state=\"ready\""), std::string::npos) << dom.substr(0, 400);
    return dom;
  }
};

}  // namespace

TEST_F(Page, draws_two_runs_with_timelines_plots_and_script) {
  const auto a = opens("a", {"/1", "/2", "/</script><b id=\"evil\">", "/bad\xff\n", "/5", "/6"});
  const auto b = opens("b", {"/1", "/2", "/x", "/5", "/6", "/new \xE2\x82\xAC"});
  EXPECT_EQ(run({a, b, "--html", path("page.html")}).status, 1);
  const std::string source = content(path("page.html"));
  EXPECT_FALSE(std::regex_search(
      source, std::regex("(src|href)=|url\\(|@import|https?://(?!www\\.w3\\.org)")));
  const std::string dom = drawn(path("page.html"));
  for (const char* id :
       {"timelines", "plot-path", "plot-shift", "plot-growth", "plot-ops", "script", "local"})
    EXPECT_NE(dom.find("id=\"" + std::string(id) + "\""), std::string::npos) << id;
  EXPECT_EQ(occurrences(dom, "<tr class=\"replaced\""), 1U);
  EXPECT_EQ(occurrences(dom, "<tr class=\"deleted\""), 1U);
  EXPECT_EQ(occurrences(dom, "<tr class=\"inserted\""), 1U);
  EXPECT_NE(dom.find("open /bad\\xff\\n"), std::string::npos);
  EXPECT_NE(dom.find("open /new \xE2\x82\xAC"), std::string::npos);
  EXPECT_EQ(dom.find("<b id=\"evil\""), std::string::npos);
  EXPECT_NE(dom.find("open /&lt;/script&gt;&lt;b id=\"evil\"&gt;"), std::string::npos);
}

TEST_F(Page, draws_many_runs_as_heat_map_and_tree) {
  std::vector<std::string> arguments{"--matrix", "--html", path("page.html")};
  for (int i = 0; i < 6; ++i)
    arguments.push_back(
        opens("run" + std::to_string(i) + "<i>", {"/1", "/" + std::to_string(i / 2)}));
  EXPECT_EQ(run(arguments).status, 1);
  const std::string dom = drawn(path("page.html"));
  EXPECT_EQ(occurrences(dom, "class=\"cell\""), 9U);  // three pairs of equal runs
  EXPECT_NE(dom.find("run0&lt;i&gt; and 1 alike"), std::string::npos);
  EXPECT_EQ(occurrences(dom, "class=\"joint\""), 5U);
  EXPECT_NE(dom.find("run5&lt;i&gt;"), std::string::npos);
}

}  // namespace heddle
