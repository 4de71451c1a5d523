// SPDX-License-Identifier: MIT
//
// The oracle of compat-check is another Debian release's own ld.so: each program of three releases
// is checked on each of the three.

#include <memory>

#include "compat/artifact.hpp"
#include "compat/checker.hpp"
#include "compat/describe.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

const std::vector<std::string> kSuites = {"bullseye", "bookworm", "trixie"};

/// The trees by suite; empty, with the reason, when they cannot be made here.
std::map<std::string, std::string> trees(std::string& reason) {
  std::vector<std::string> argv = {HEDDLE_ROOTFS};
  argv.insert(argv.end(), kSuites.begin(), kSuites.end());
  const auto made = run(argv, {.deadline = std::chrono::minutes(20)});
  std::map<std::string, std::string> out;
  std::istringstream lines(made.out);
  std::string line;
  for (const auto& suite : kSuites)
    if (std::getline(lines, line)) out[suite] = line;
  if (made.status != 0) {
    EXPECT_EQ(made.status, 77) << made.err;
    reason = "no Debian root file systems: " + made.err;
    out.clear();
  }
  return out;
}

/// Traces each program with the target's ld.so: "PROGRAM" lines, each followed by ld.so's output.
/// The source's tree is bound to /mnt, nosuid, in a mount namespace that ends with the shell. With
/// LD_WARN the trace looks up every symbol, as ldd -r does.
constexpr const char* kOracle = R"(
mount --bind "$1" "$2/mnt" && mount -o remount,bind,nosuid,nodev,ro "$2/mnt" || exit 9
while IFS= read -r program; do
  echo "PROGRAM $program"
  chroot "$2" /usr/bin/env LD_TRACE_LOADED_OBJECTS=1 LD_BIND_NOW=1 LD_WARN=1 \
    "/mnt$program" </dev/null 2>&1 || echo "STATUS $?"
done <"$3"
)";

struct LdSoVerdict {
  bool starts = true;
  std::string output;
};

/// Whether the line is an error that ends the start.
bool is_refusal(const std::string& line) {
  if (line.find("weak version `") != line.npos) return false;
  for (const char* sign : {"=> not found", "' not found (required by", "undefined symbol:",
                           "symbol lookup error", "error while loading", "STATUS "})
    if (line.find(sign) != line.npos) return true;
  return false;
}

std::map<std::string, LdSoVerdict> run_ld_so(const std::string& from, const std::string& on,
                                             const std::vector<std::string>& programs,
                                             const TestDir& dir) {
  std::string list;
  for (const auto& program : programs) list += program + "\n";
  const auto file = write_text_file(dir / "programs", list);
  const auto done = run(
      {"unshare", "--mount", "--propagation", "private", "sh", "-c", kOracle, "sh", from, on, file},
      {.deadline = std::chrono::minutes(10)});
  EXPECT_EQ(done.status, 0) << done.err;
  std::map<std::string, LdSoVerdict> out;
  std::istringstream lines(done.out);
  LdSoVerdict* verdict = nullptr;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("PROGRAM ")) {
      verdict = &out[line.substr(8)];
    } else if (verdict != nullptr) {
      verdict->output += line + "\n";
      if (is_refusal(line)) verdict->starts = false;
    }
  }
  return out;
}

/// Artifacts of the dynamic programs of a tree.
std::vector<compat::Artifact> artifacts_of(CachedFacts& facts, const std::string& tree) {
  auto node = value_or_throw(compat::NodeTarget::open(facts, tree, {}));
  auto programs = value_or_throw(
      compat::find_binaries(node, tree, {"/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec"}));
  std::vector<compat::Artifact> out;
  for (const auto& path : programs) {
    auto program = compat::describe(node, facts, path);
    EXPECT_TRUE(program) << path << ": " << program.error().message();
    if (!program) continue;
    // The oracle runs the program below /mnt, which changes $ORIGIN.
    const auto directories = program->elf.rpath.value_or("") + program->elf.runpath.value_or("");
    if (directories.find("ORIGIN") != directories.npos) continue;
    // Through the file format, as users' artifacts.
    compat::Artifact one{{std::move(*program)}};
    out.push_back(value_or_throw(compat::parse_artifact(compat::to_json(one), path)));
  }
  return out;
}

TEST(CompatRootfs, verdicts_equal_those_of_each_releases_ld_so) {
  HEDDLE_STAGED(worker, "elf-worker");
  if (::geteuid() != 0) HEDDLE_SKIP("only root can chroot");
  std::string reason;
  const auto tree = trees(reason);
  if (tree.empty()) HEDDLE_SKIP(reason);
  const TestDir dir;
  std::map<std::string, std::unique_ptr<CachedFacts>> facts;
  for (const auto& suite : kSuites) {
    auto options = value_or_throw(facts_below(tree.at(suite)));
    options.pool.worker_path = worker;
    facts[suite] = std::make_unique<CachedFacts>(std::move(options));
  }
  std::size_t pairs = 0, refused = 0, wrong = 0;
  std::map<std::string, std::vector<compat::Artifact>> artifacts;
  for (const auto& suite : kSuites) artifacts[suite] = artifacts_of(*facts[suite], tree.at(suite));
  for (const auto& on : kSuites) {
    auto node = value_or_throw(compat::NodeTarget::open(*facts[on], tree.at(on), {}));
    compat::Checker checker(node);
    for (const auto& from : kSuites) {
      std::vector<std::string> programs;
      for (const auto& one : artifacts[from]) programs.push_back(one.programs[0].path);
      const auto oracle = run_ld_so(tree.at(from), tree.at(on), programs, dir);
      ASSERT_EQ(oracle.size(), programs.size());
      for (const auto& artifact : artifacts[from]) {
        const auto& path = artifact.programs[0].path;
        const auto ours = value_or_throw(checker.check(artifact));
        const bool starts = ours.verdict != compat::Verdict::incompatible;
        const auto& theirs = oracle.at(path);
        ++pairs;
        refused += !theirs.starts;
        if (starts == theirs.starts) continue;
        ++wrong;
        ADD_FAILURE() << from << "'s " << path << " on " << on << ": " << compat::to_lines(ours)
                      << "ld.so:\n"
                      << theirs.output;
      }
    }
  }
  std::printf("%zu pairs, %zu refused by ld.so, %zu wrong\n", pairs, refused, wrong);
  EXPECT_GE(pairs, 300U);
  // Both verdicts must occur.
  EXPECT_GT(refused, 50U);
  EXPECT_GT(pairs - refused, 50U);
}

}  // namespace
}  // namespace heddle::test
