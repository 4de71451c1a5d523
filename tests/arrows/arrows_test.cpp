// SPDX-License-Identifier: MIT
// The layout of the sources: which directory may include which, which directory may include a third
// party's headers, and the form of each file.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/fd.hpp"

namespace heddle::test {
namespace {

struct SourceFile {
  std::string path;  ///< from the project's root: "resolver/map/map_reader.cpp"
  std::string content;
};

using Names = std::vector<std::string>;
constexpr const char* kFirstLine = "// SPDX-License-Identifier: MIT\n";

/// A directory and those it may include besides itself; "*" means all. The longest matching
/// directory applies. ARCHITECTURE.md has the same table.
struct Rule {
  const char* directory;
  Names may_include;
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> kRules = {
      {"base", {}},
      {"base/launch", {"base"}},
      {"base/sandbox", {"base"}},
      {"resolver/store", {"base"}},
      {"resolver/elf", {"base", "base/sandbox", "resolver/store"}},
      {"resolver/search", {"base", "resolver/elf"}},
      {"resolver/mpi", {"base", "resolver/elf", "resolver/search"}},
      {"resolver/policy",
       {"base", "resolver/elf", "resolver/search", "resolver/mpi", "resolver/map"}},
      {"resolver/map", {"base", "resolver/store", "ship/bundle"}},
      {"resolver/tree", {"base", "resolver/map"}},
      {"resolver/build",
       {"base", "resolver/elf", "resolver/search", "resolver/mpi", "resolver/policy",
        "resolver/map"}},
      {"resolver/tool",
       {"base", "resolver/elf", "resolver/search", "resolver/mpi", "resolver/policy",
        "resolver/map", "resolver/tree", "resolver/build", "record/trace", "ship/registry",
        "ship/bundle"}},
      // The daemon reads finished maps: nothing of ELF, search or policy.
      {"fuseovl/mount", {"base", "resolver/map"}},
      {"fuseovl/session", {"base"}},
      {"fuseovl/files",
       {"base", "resolver/map", "fuseovl/mount", "fuseovl/session", "ship/bundle"}},
      {"fuseovl/overlay",
       {"base", "resolver/map", "fuseovl/mount", "fuseovl/session", "fuseovl/files",
        "ship/bundle"}},
      {"fuseovl/supervise",
       {"base", "base/sandbox", "resolver/map", "fuseovl/mount", "fuseovl/session", "fuseovl/files",
        "fuseovl/overlay"}},
      {"fuseovl/audit", {"base", "resolver/map"}},
      {"fuseovl/service",
       {"base", "base/sandbox", "resolver/map", "fuseovl/mount", "fuseovl/session", "fuseovl/files",
        "fuseovl/overlay", "fuseovl/supervise"}},
      {"fuseovl/programs",
       {"base", "base/sandbox", "resolver/map", "fuseovl/mount", "fuseovl/session", "fuseovl/files",
        "fuseovl/overlay", "fuseovl/supervise", "fuseovl/service", "ship/bundle"}},
      {"record/trace", {"base"}},
      {"record/diff", {"base", "record/trace"}},
      {"record",
       {"base", "base/launch", "resolver/map", "fuseovl/mount", "fuseovl/session", "record/trace"}},
      {"fsgen", {"*"}},
      {"launch",
       {"base", "base/launch", "resolver/map", "resolver/elf", "fsgen", "jobs", "launch/session",
        "ship"}},
      {"launch/api", {}},
      {"launch/pmix", {"base", "base/launch"}},
      {"launch/session",
       {"base", "base/launch", "resolver/elf", "resolver/build", "fsgen", "launch", "ship"}},
      {"compat",
       {"base", "resolver/elf", "resolver/search", "resolver/mpi", "resolver/map", "resolver/build",
        "record/trace", "ship/registry"}},
      {"ship/registry", {"base"}},
      {"ship/bundle", {"base"}},
      {"ship", {"base", "ship/bundle"}},
      // compat-check becomes the gRPC client by exec.
      {"compat/server",
       {"base", "base/sandbox", "resolver/elf", "resolver/search", "resolver/map", "compat"}},
      // Freestanding, by the auditor's system calls.
      {"jobs/collector", {"base", "fuseovl/audit"}},
      {"jobs", {"base", "base/launch", "jobs/collector"}},
      {"jobs/store", {"base", "jobs", "record/diff", "record/trace"}},
      {"jobs/outliers", {"base", "jobs/store"}},
      {"container-hooks", {"base", "base/sandbox"}},
      {"tests", {"*"}},
      {"bench", {"*"}},
      {"docs", {"*"}},
  };
  return kRules;
}

/// System headers reserved for one directory.
struct Fence {
  const char* header_prefix;
  const char* directory;
};
constexpr Fence kFences[] = {
    {"LIEF/", "resolver/elf"},   {"lmdb.h", "resolver/store"}, {"fuse.h", "fuseovl"},
    {"fuse3/", "fuseovl"},       {"fuse_", "fuseovl"},         {"grpcpp/", "compat/server"},
    {"curl/", "ship/registry"},  {"zstd.h", "ship/bundle"},    {"pmix.h", "launch/pmix"},
    {"sqlite3.h", "jobs/store"}, {"libpq-fe.h", "jobs/store"},
};

bool is_below(const std::string& path, const std::string& directory) {
  return path.starts_with(directory + "/");
}

const Rule* rule_of(const std::string& path) {
  const Rule* best = nullptr;
  for (const auto& rule : rules())
    if (is_below(path, rule.directory) &&
        (!best || std::string(rule.directory).size() > std::string(best->directory).size()))
      best = &rule;
  return best;
}

bool may_include_all(const std::string& path) {
  return is_below(path, "tests") || is_below(path, "bench");
}

class Checker {
 public:
  explicit Checker(const SourceFile& file) : file_(file), rule_(rule_of(file.path)) {}

  Names check() {
    check_file();
    std::istringstream lines(file_.content);
    std::string line;
    for (number_ = 1; std::getline(lines, line); ++number_) check_line(line);
    return std::move(found_);
  }

 private:
  void add(const std::string& what) {
    found_.push_back(fmt::format("{}:{}: {}", file_.path, number_, what));
  }

  void check_file() {
    if (!rule_) add("no rule in tests/arrows for its directory");
    if (!file_.content.starts_with(kFirstLine)) add("the first line is not the SPDX one");
    const bool header = file_.path.ends_with(".hpp") || file_.path.ends_with(".h");
    if (header && file_.content.find("\n#pragma once\n") == std::string::npos)
      add("no #pragma once");
    const auto name = file_.path.substr(file_.path.rfind('/') + 1);
    if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.") != std::string::npos)
      add("its name is not snake_case");
  }

  void check_line(const std::string& line) {
    const auto text = line.substr(std::min(line.find_first_not_of(' '), line.size()));
    if (text.starts_with("using namespace ") &&
        !text.starts_with("using namespace std::literals") &&
        text.find("_literals;") == std::string::npos)
      add("using namespace");
    if (!text.starts_with("#include ") || text.size() < 11) return;
    const char close = text[9] == '<' ? '>' : '"';
    const auto name = text.substr(10, text.find(close, 10) - 10);
    if (close == '>')
      check_system(name);
    else
      check_own(name);
  }

  void check_system(const std::string& header) {
    if (may_include_all(file_.path)) return;
    for (const auto& fence : kFences)
      if (header.starts_with(fence.header_prefix) && !is_below(file_.path, fence.directory))
        add(fmt::format("<{}> belongs to {} alone", header, fence.directory));
  }

  void check_own(const std::string& header) {
    const auto stem = std::filesystem::path(header).stem().string();
    const bool is_main = file_.path.find("main.cpp") != std::string::npos;
    if (stem.ends_with("_main") && stem != "run_main" && !is_main && !is_below(file_.path, "tests"))
      add(fmt::format("\"{}\": nothing uses a *_main", header));
    const Rule* target = rule_of(header);
    if (!target) {
      add(fmt::format("\"{}\" is not a path from the project's root", header));
      return;
    }
    if (!rule_ || target == rule_) return;
    const auto& allowed = rule_->may_include;
    const bool ok = std::any_of(allowed.begin(), allowed.end(), [&](const std::string& name) {
      return name == "*" || name == target->directory;
    });
    const bool reserved = may_include_all(header) && !may_include_all(file_.path);
    if (!ok || reserved)
      add(fmt::format("{} must not know {}", rule_->directory, target->directory));
  }

  const SourceFile& file_;
  const Rule* rule_;
  int number_ = 1;
  Names found_;
};

/// All *.cpp, *.hpp, *.c and *.h below `root`, hidden and build directories left out, by path.
std::vector<SourceFile> read_sources(const std::string& root) {
  namespace fs = std::filesystem;
  std::vector<SourceFile> files;
  for (auto it = fs::recursive_directory_iterator(root); it != fs::end(it); ++it) {
    const auto name = it->path().filename().string();
    const bool skipped = name.starts_with(".") || (it.depth() == 0 && name.starts_with("build"));
    if (it->is_directory()) {
      if (skipped) it.disable_recursion_pending();
      continue;
    }
    const auto extension = it->path().extension();
    if (skipped ||
        (extension != ".cpp" && extension != ".hpp" && extension != ".c" && extension != ".h"))
      continue;
    files.push_back(
        {fs::relative(it->path(), root).string(), value_or_throw(read_file(it->path().string()))});
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

TEST(Arrows, this_tree_keeps_its_layout) {
  const char* root = std::getenv("HEDDLE_SOURCE");
  const auto files = read_sources(root ? root : ".");
  ASSERT_GT(files.size(), 30U) << "run by meson test, or from the project's root";
  for (const auto& file : files) EXPECT_THAT(Checker(file).check(), ::testing::IsEmpty());
}

TEST(Arrows, each_kind_of_violation_is_found) {
  const struct {
    const char* path;
    const char* content;    ///< after the first line
    const char* violation;  ///< "": none
  } cases[] = {
      {"resolver/elf/a.cpp", "#include <LIEF/ELF.hpp>\n#include \"base/fd.hpp\"\n", ""},
      {"fsgen/a.cpp", "#include \"fuseovl/mount/x.hpp\"\n", ""},
      {"tests/a.cpp", "#include <lmdb.h>\n", ""},
      {"fsgen/fs_gen_main.cpp", "#include \"fsgen/fs_gen_main.hpp\"\n", ""},
      {"base/a.cpp", "using namespace std::chrono_literals;\n", ""},
      {"base/a.cpp", "#include \"resolver/map/map_reader.hpp\"\n",
       "base/a.cpp:2: base must not know resolver/map"},
      {"fuseovl/overlay/ops.cpp", "\n#include \"resolver/search/search.hpp\"\n",
       "fuseovl/overlay/ops.cpp:3: fuseovl/overlay must not know resolver/search"},
      {"fsgen/a.cpp", "#include \"tests/support/run.hpp\"\n", "must not know tests"},
      {"resolver/search/a.cpp", "#include <LIEF/ELF.hpp>\n", "belongs to resolver/elf alone"},
      {"fsgen/a.cpp", "#include <fuse3/fuse.h>\n", "belongs to fuseovl alone"},
      {"fsgen/a.cpp", "#include \"fsgen/fs_gen_main.hpp\"\n", "nothing uses a *_main"},
      {"base/a.cpp", "#include \"fd.hpp\"\n", "not a path from the project's root"},
      {"base/a.hpp", "int x;\n", "#pragma once"},
      {"base/Bad-Name.cpp", "", "snake_case"},
      {"base/a.cpp", "  using namespace std;\n", "using namespace"},
      {"newdirectory/a.cpp", "", "no rule"}};
  for (const auto& [path, content, violation] : cases) {
    SCOPED_TRACE(path + std::string(": ") + content);
    const SourceFile file{path, std::string(kFirstLine) + content};
    const auto found = Checker(file).check();
    EXPECT_EQ(found.size(), *violation == '\0' ? 0U : 1U);
    EXPECT_THAT(fmt::format("{}", fmt::join(found, "\n")), ::testing::HasSubstr(violation));
  }
  const SourceFile bare{"base/a.cpp", "int x;\n"};
  EXPECT_THAT(Checker(bare).check(), ::testing::ElementsAre(::testing::HasSubstr("SPDX")));
}

}  // namespace
}  // namespace heddle::test
