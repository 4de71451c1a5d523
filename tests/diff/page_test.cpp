// SPDX-License-Identifier: MIT
// The HTML pages in a real browser: the test reads back the DOM.
#include <fcntl.h>
#include <unistd.h>

#include <regex>

#include "base/child.hpp"
#include "tests/diff/fs_diff_support.hpp"

namespace heddle {
namespace {

class Page : public FsDiff {
 protected:
  void SetUp() override {
    for (const char* program : {"/usr/bin/chromium", "/usr/bin/chromium-browser"})
      if (::access(program, X_OK) == 0) browser_ = program;
    if (browser_.empty())
      GTEST_SKIP() << "no chromium installed: the pages were not drawn by a browser";
  }
  /// The page's document after its scripts have run.
  std::string drawn(const std::string& page) {
    const std::string out = path("dom.html");
    const Fd to = value_or_throw(open_file(out, O_WRONLY | O_CREAT | O_TRUNC));
    const Fd null = value_or_throw(open_file("/dev/null", O_RDWR));
    Child child = value_or_throw(spawn(
        browser_,
        {browser_, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
         "--no-first-run", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--user-data-dir=" + path("profile"), "--dump-dom", "file://" + page},
        {{{null.get(), 0}, {to.get(), 1}, {null.get(), 2}}, {}}));
    const auto status = value_or_throw(child.wait_for(std::chrono::seconds(90)));
    EXPECT_EQ(status, 0);
    const auto dom = content(out);
    EXPECT_NE(dom.find("data-state=\"ready\""), std::string::npos) << dom.substr(0, 400);
    return dom;
  }
  static std::size_t count(const std::string& text, const std::string& what) {
    std::size_t n = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
      ++n;
    return n;
  }
  std::string browser_;
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
  EXPECT_EQ(count(dom, "<tr class=\"replaced\""), 1U);
  EXPECT_EQ(count(dom, "<tr class=\"deleted\""), 1U);
  EXPECT_EQ(count(dom, "<tr class=\"inserted\""), 1U);
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
  EXPECT_EQ(count(dom, "class=\"cell\""), 9U);  // three pairs of equal runs
  EXPECT_NE(dom.find("run0&lt;i&gt; and 1 alike"), std::string::npos);
  EXPECT_EQ(count(dom, "class=\"joint\""), 5U);
  EXPECT_NE(dom.find("run5&lt;i&gt;"), std::string::npos);
}

}  // namespace heddle
