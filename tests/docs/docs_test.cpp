// SPDX-License-Identifier: MIT
//
// Man pages, completions and --help agree for all installed programs, and documents name existing
// tests, files and figures.

#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "bench/figure_tables.hpp"
#include "tests/docs/help_text.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/prelude.hpp"
#include "tests/support/source_file.hpp"

namespace heddle::test {
namespace {

std::vector<std::string> installed_programs() {
  std::vector<std::string> found;
  const char* stage = std::getenv("HEDDLE_STAGE");
  if (!stage || !fs::is_directory(stage + std::string("/bin"))) return found;
  for (const auto& entry : fs::directory_iterator(stage + std::string("/bin")))
    found.push_back(entry.path().string());
  std::sort(found.begin(), found.end());
  return found;
}

std::set<std::string> names(const HelpText& help) {
  std::set<std::string> all;
  for (const auto& option : help.options) all.insert(option.names.begin(), option.names.end());
  return all;
}

std::string text_of(const std::string& path) {
  const auto text = read_file(path);
  if (text) return *text;
  ADD_FAILURE() << text.error().message();
  return {};
}

class Docs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (installed_programs().empty()) HEDDLE_SKIP("no program is installed in $HEDDLE_STAGE");
  }
};

TEST_F(Docs, man_pages_list_exactly_the_options_of_their_program) {
  for (const auto& path : installed_programs()) {
    const auto help = ask_for_help(path);
    SCOPED_TRACE(help.name);
    auto page = man_page_options(text_of(source_file("docs/man/" + help.name + ".1.scd")));
    const auto in_page = [&](const std::string& section) {
      return std::set<std::string>(page[section].begin(), page[section].end());
    };
    EXPECT_EQ(in_page(""), names(help.top));
    for (const auto& [name, subcommand] : help.subcommands) {
      SCOPED_TRACE(name);
      // The page describes `-h, --help` once for all.
      auto wanted = names(subcommand);
      for (const char* common : {"-h", "--help"})
        if (in_page(name).count(common) == 0) wanted.erase(common);
      EXPECT_EQ(in_page(name), wanted);
    }
    for (const auto& [section, options] : page)
      EXPECT_TRUE(section.empty() || help.subcommands.count(section)) << section;
  }
}

TEST_F(Docs, man_pages_are_installed) {
  for (const auto& path : installed_programs()) {
    const auto name = fs::path(path).filename().string();
    EXPECT_TRUE(
        fs::exists(std::string(std::getenv("HEDDLE_STAGE")) + "/share/man/man1/" + name + ".1"))
        << name;
  }
}

TEST_F(Docs, completions_match_help) {
  for (const auto& path : installed_programs()) {
    const auto help = ask_for_help(path);
    const auto hint = "run ./dev completions";
    EXPECT_EQ(text_of(source_file("docs/completions/" + help.name + ".bash")),
              bash_completion(help))
        << hint;
    EXPECT_EQ(text_of(source_file("docs/completions/_" + help.name)), zsh_completion(help)) << hint;
    EXPECT_EQ(text_of(source_file("docs/completions/" + help.name + ".fish")),
              fish_completion(help))
        << hint;
  }
}

TEST_F(Docs, bash_completes_options_and_subcommands) {
  for (const auto& path : installed_programs()) {
    const auto help = ask_for_help(path);
    const auto file = source_file("docs/completions/" + help.name + ".bash");
    const auto complete = [&](const std::string& words, int at) {
      return run({"bash", "-c",
                  "source \"$1\"; COMP_WORDS=(" + words + "); COMP_CWORD=" + std::to_string(at) +
                      "; \"${2//-/_}\"; printf '%s\\n' \"${COMPREPLY[@]}\"",
                  "bash", file, "_" + help.name})
          .out;
    };
    EXPECT_THAT(complete(help.name + " --he", 1), HasSubstr("--help\n"));
    for (const auto& [name, subcommand] : help.subcommands)
      EXPECT_THAT(complete(help.name + " " + name.substr(0, 2), 1), HasSubstr(name + "\n"));
  }
}

TEST_F(Docs, all_programs_have_the_common_options) {
  for (const auto& path : installed_programs()) {
    const auto help = ask_for_help(path);
    EXPECT_THAT(names(help.top), ::testing::IsSupersetOf({"--help", "--version"})) << help.name;
    EXPECT_FALSE(help.top.summary.empty()) << help.name;
    const auto version = run({path, "--version"});
    EXPECT_EQ(version.status, 0) << help.name;
    EXPECT_EQ(version.out, help.name + " (heddle) " + HEDDLE_VERSION + "\n");
  }
}

TEST_F(Docs, help_shows_no_notation_of_the_parser) {
  for (const auto& path : installed_programs()) {
    auto help = run_checked({path, "--help"}).out;
    for (const auto& [name, subcommand] : ask_for_help(path).subcommands)
      help += run_checked({path, name, "--help"}).out;
    for (const char* leak :
         {"{", "->", "REQUIRED", "Excludes:", "Needs:", "INT in [", " TEXT", "NONNEGATIVE"})
      EXPECT_THAT(help, ::testing::Not(HasSubstr(leak))) << path;
    EXPECT_THAT(help, HasSubstr("Usage: ")) << path;
  }
}

TEST_F(Docs, all_programs_report_an_unknown_option_alike) {
  for (const auto& path : installed_programs()) {
    const auto name = fs::path(path).filename().string();
    const auto wrong = run({path, "--no-such-option"});
    EXPECT_EQ(wrong.status, 2) << name;
    EXPECT_TRUE(wrong.err.starts_with(name + ": ")) << wrong.err;
    EXPECT_THAT(wrong.err, HasSubstr("\nhint: see " + name + " --help\n"));
  }
}

TEST_F(Docs, all_programs_report_a_wrong_number_alike) {
  int options = 0;
  const auto check = [&](const Strings& command, const std::string& program,
                         const std::string& name) {
    auto ask = command;
    ask.emplace_back("--help");
    const auto help = run_checked(ask).out;
    static const std::regex number(
        "\n +(?:-\\w,)?(--[a-z-]+) (?:N|K|S|M|MIB|PID|PORT|SECONDS|SIZE)[ \n]");
    for (std::sregex_iterator at(help.begin(), help.end(), number), end; at != end; ++at) {
      const auto option = at->str(1);
      for (const std::string value : {"x", "-1.5"}) {
        auto wrong = command;
        wrong.insert(wrong.end(), {option, value});
        const auto done = run(wrong);
        EXPECT_EQ(done.status, 2) << option;
        EXPECT_TRUE(done.err.starts_with(program + ": " + option + ": '" + value + "' is not a"))
            << done.err;
        EXPECT_THAT(done.err, ::testing::EndsWith("\nhint: see " + name + " --help\n"));
        EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 2) << done.err;
      }
      ++options;
    }
  };
  for (const auto& path : installed_programs()) {
    const auto program = ask_for_help(path);
    check({path}, program.name, program.name);
    for (const auto& [name, subcommand] : program.subcommands)
      check({path, name}, program.name, program.name + " " + name);
  }
  EXPECT_GT(options, 20);
}

TEST(DocsMan, lines_contain_no_accidental_troff_request) {
  for (const auto& entry : fs::directory_iterator(source_file("docs/man")))
    EXPECT_FALSE(std::regex_search(text_of(entry.path().string()), std::regex("\n[.'][^. ]")))
        << entry.path();
}

TEST(DocsReport, describes_every_key_of_fs_gens_report) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  const TestDir dir;
  // Without a mount, because this is a fast suite.
  const auto done = run({fs_gen, "--via", "direct", "--json", dir / "report", "--", "/bin/true"},
                        {.env = {"XDG_CACHE_HOME=" + dir.path()}});
  ASSERT_EQ(done.status, 0) << done.err;
  const auto page = text_of(source_file("docs/formats/report.md"));
  const auto report = nlohmann::json::parse(text_of(dir / "report"));
  EXPECT_GT(report.size(), 8U);
  for (const auto& [key, value] : report.items()) EXPECT_THAT(page, HasSubstr("`" + key + "`"));
}

TEST(DocsReadme, is_short_and_shows_what_fs_gen_prints) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  const auto readme = text_of(source_file("README.md"));
  EXPECT_LE(lines_of(readme).size(), 150U);
  const TestDir dir;
  const auto farm = ElfFarm::build(dir.path(), {.libraries = 500});
  const auto done = run({fs_gen, "--via", "direct", "./app"},
                        {.env = {"XDG_CACHE_HOME=" + dir / "cache"}, .cwd = dir.path()});
  ASSERT_EQ(done.status, 0) << done.err;
  const std::regex probes("failed probes +([0-9,]+) without heddle");
  const auto number_in = [&](const std::string& text) {
    std::smatch found;
    if (!std::regex_search(text, found, probes)) return 0;
    auto digits = found.str(1);
    std::erase(digits, ',');
    return std::stoi(digits);
  };
  // How many directories ld.so has for this CPU differs: up to a tenth of all.
  EXPECT_GT(number_in(readme), 500 * 499 / 2);
  EXPECT_NEAR(number_in(readme), number_in(done.err), number_in(readme) / 10.0) << done.err;
  int compared = 0;
  for (const auto& line : lines_of(done.out + done.err))
    if (line.starts_with("farm checksum") || line.starts_with("fs-gen: ")) {
      EXPECT_THAT(readme, HasSubstr("    " + line + "\n"));
      ++compared;
    }
  EXPECT_EQ(compared, 2) << done.err;
}

std::vector<fs::path> pages() {
  const fs::path root = source_file("");
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(root)) found.push_back(entry.path());
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs"))
    found.push_back(entry.path());
  std::erase_if(found, [](const fs::path& path) { return path.extension() != ".md"; });
  return found;
}

TEST(DocsGlossary, has_at_most_30_terms) {
  auto page = text_of(source_file("ARCHITECTURE.md"));
  page.erase(0, page.find("\n|---", page.find("## Glossary")) + 1);
  page.resize(page.find("\n\n"));
  const auto terms = std::ranges::count(page, '\n');
  EXPECT_GT(terms, 20);
  EXPECT_LE(terms, 30);
}

TEST(DocsPromises, name_existing_tests) {
  std::string sources;
  for (const auto& file : fs::recursive_directory_iterator(source_file("tests")))
    if (file.path().extension() == ".cpp" || file.path().filename() == "meson.build")
      sources += text_of(file.path());
  const std::regex quoted("`([A-Za-z0-9_.]+)`");
  for (const std::string file : {"tests/PROMISES.md", "tests/attack/README.md"}) {
    const auto page = text_of(source_file(file));
    const auto rows = page.substr(page.find("|---"));
    int names = 0;
    for (std::sregex_iterator found(rows.begin(), rows.end(), quoted), end; found != end; ++found) {
      const auto name = found->str(1);
      const auto dot = name.find('.');
      if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.") == std::string::npos &&
          name.find('_') == std::string::npos)
        continue;  // a command
      ++names;
      const auto last = dot == std::string::npos ? name : name.substr(dot + 1);
      EXPECT_NE(sources.find(last), std::string::npos) << file << " names " << name;
    }
    EXPECT_GT(names, 40);
  }
}

TEST(DocsFigures, equal_the_reference_runs) {
  const auto runs = value_or_throw(bench::read_kept_runs(source_file("bench/reference")));
  for (const auto& path : pages()) {
    const auto page = text_of(path);
    EXPECT_EQ(page, bench::with_figures(page, runs)) << path << ": run ./dev figures";
  }
}

TEST(DocsFigures, include_every_table_completely) {
  const auto runs = value_or_throw(bench::read_kept_runs(source_file("bench/reference")));
  EXPECT_THAT(bench::missing_figures(runs), ::testing::IsEmpty());
  std::string all;
  for (const auto& path : pages()) all += text_of(path);
  for (const auto& name : bench::table_names())
    EXPECT_THAT(all, HasSubstr("<!-- figures: " + name + " -->\n"));
}

TEST(DocsShip, shows_the_scripts_that_are_installed) {
  const auto page = text_of(source_file("docs/ship.md"));
  const char* stage = std::getenv("HEDDLE_STAGE");
  if (!stage || !fs::is_directory(stage + std::string("/share/heddle/ship")))
    HEDDLE_SKIP("no script is installed in $HEDDLE_STAGE");
  int scripts = 0;
  for (const auto& entry : fs::directory_iterator(stage + std::string("/share/heddle/ship"))) {
    SCOPED_TRACE(entry.path());
    EXPECT_EQ(::access(entry.path().c_str(), X_OK), 0);
    auto lines = lines_of(text_of(entry.path().string()));
    ASSERT_GT(lines.size(), 2U);
    EXPECT_EQ(lines[0], "#!/bin/sh");
    for (std::size_t i = 1; i < lines.size(); ++i) EXPECT_THAT(page, HasSubstr("    " + lines[i]));
    ++scripts;
  }
  EXPECT_EQ(scripts, 5);
}

TEST(DocsLinks, lead_to_existing_files) {
  static const std::regex kLink(R"(\]\(([^)#:]+)\))");
  int links = 0;
  for (const auto& page : pages()) {
    const auto text = text_of(page.string());
    for (auto it = std::sregex_iterator(text.begin(), text.end(), kLink);
         it != std::sregex_iterator(); ++it, ++links)
      EXPECT_TRUE(fs::exists(page.parent_path() / std::string((*it)[1])))
          << page << " links to " << (*it)[1];
  }
  EXPECT_GT(links, 0);
}

TEST(Completions, quote_descriptions_for_zsh_and_fish) {
  const ProgramHelp program{"fs-x", parse_help("X\n\nOptions:\n  -f  don't [do] a:b\n"), {}};
  const TestDir dir;
  EXPECT_THAT(zsh_completion(program), HasSubstr(R"('-f[don'\''t \[do\] a\:b]')"));
  EXPECT_THAT(fish_completion(program), HasSubstr(R"(-s f -d 'don'\''t [do] a:b')"));
}

}  // namespace
}  // namespace heddle::test
