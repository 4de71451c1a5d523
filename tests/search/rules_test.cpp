// SPDX-License-Identifier: MIT
// Each directory of tests/search/rules is one rule of ld.so's search, compared with the real ld.so:
// the objects, their paths and order (LD_TRACE_LOADED_OBJECTS), the probes (LD_DEBUG=libs) and the
// number of system calls (strace).

#include "resolver/elf/cached_facts.hpp"
#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"
#include "tests/search/oracle.hpp"
#include "tests/search/rule_case.hpp"
#include "tests/support/prelude.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {
namespace {

constexpr auto kLoader = "/lib64/ld-linux-x86-64.so.2";

class InDirectory {
 public:
  explicit InDirectory(const std::string& directory) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(directory);
  }
  ~InDirectory() { std::filesystem::current_path(before_); }
  InDirectory(const InDirectory&) = delete;
  InDirectory& operator=(const InDirectory&) = delete;

 private:
  std::filesystem::path before_;
};

std::string variable(const RuleCase& rule, const std::string& name) {
  for (const auto& entry : rule.env)
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  return {};
}

/// Runs ld.so on this case with more variables; `before` is a program that runs it.
RunResult run_case(const RuleCase& rule, const std::vector<std::string>& more,
                   const std::vector<std::string>& before = {}) {
  auto argv = before;
  RunOptions options;
  options.cwd = rule.cwd;
  auto env = rule.env;
  env.emplace_back("LD_TRACE_LOADED_OBJECTS=1");
  env.insert(env.end(), more.begin(), more.end());
  // The last program before ld.so (strace -E, or sh) sets them, so that no other sees them.
  if (rule.etc) {
    argv.insert(argv.end(),
                {"unshare", "-m", "sh", "-c",
                 "mount --bind \"$1\" /etc || exit 99; shift; "
                 "while [ \"$1\" != -- ]; do export \"$1\"; shift; done; shift; exec \"$@\"",
                 "sh", *rule.etc});
    argv.insert(argv.end(), env.begin(), env.end());
    argv.emplace_back("--");
  } else if (!before.empty()) {
    for (const auto& entry : env) argv.insert(argv.end(), {"-E", entry});
  } else {
    options.env = env;
  }
  if (!rule.is_program) argv.emplace_back(kLoader);
  argv.push_back(rule.run);
  return run(argv, options);
}

ProbeCount count_calls(const std::string& log) {
  ProbeCount count;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const bool failed = line.find(") = -1 ") != line.npos;
    if (line.find("/etc/ld.so.") != line.npos) continue;  // not part of the search
    if (line.find("openat(AT_FDCWD, ") != line.npos)
      ++(failed ? count.opens_failed : count.opens_done);
    else if (line.find("newfstatat(AT_FDCWD, ") != line.npos)
      ++(failed ? count.stats_failed : count.stats_done);
  }
  return count;
}

/// One pool of workers for all cases.
FactsSource& shared_facts() {
  static CachedFacts facts([] {
    FactsOptions options;
    options.pool.worker_path = HEDDLE_ELF_WORKER;
    options.cache = CacheUse::none;
    return options;
  }());
  return facts;
}

class Rule : public testing::TestWithParam<std::string> {};

TEST_P(Rule, holds_as_in_the_real_ld_so) {
  const TestDir dir;
  OsWorld world(shared_facts());
  auto loader = value_or_throw(read_loader_profile(world, kLoader));
  const auto rule = build_rule_case(std::string(HEDDLE_RULES) + "/" + GetParam() + "/case",
                                    dir.path(), loader.platform);
  if (loader.glibc_minor > rule.newest_minor || loader.glibc_minor < rule.oldest_minor)
    HEDDLE_SKIP("glibc 2." + std::to_string(loader.glibc_minor) + " has another rule here");
  if (rule.etc) {
    if (::geteuid() != 0) HEDDLE_SKIP("another /etc needs a mount namespace, and that root");
    loader.cache_path = *rule.etc + "/ld.so.cache";
    loader.preload_path = *rule.etc + "/ld.so.preload";
  }
  SearchOptions options;
  options.ld_library_path = variable(rule, "LD_LIBRARY_PATH");
  options.ld_preload = variable(rule, "LD_PRELOAD");
  options.explain = true;
  const InDirectory in_directory(rule.cwd);
  const auto closure = value_or_throw(resolve(world, loader, rule.run, options));

  // Compared with the case.
  std::vector<std::string> ours;
  for (std::size_t i = 1; i < closure.objects.size(); ++i) {
    const auto& object = closure.objects[i];
    if (object.found_by == FoundBy::interpreter && loader.glibc_minor >= 41) continue;
    ours.push_back(object.requested_as + " " + object.path + " " + to_string(object.found_by));
  }
  std::vector<std::string> expected;
  for (const auto& e : rule.expected) expected.push_back(e.name + " " + e.path + " " + e.by);
  EXPECT_EQ(ours, expected);
  ASSERT_EQ(closure.missing.size(), rule.missing.size());
  for (std::size_t i = 0; i < rule.missing.size(); ++i) {
    EXPECT_EQ(closure.missing[i].name, rule.missing[i].name);
    EXPECT_THAT(closure.missing[i].reason, HasSubstr(rule.missing[i].path));
  }

  // Compared with ld.so.
  const auto trace = run_case(rule, {});
  if (trace.status == 99) HEDDLE_SKIP("no mount namespace here");
  auto tried = tried_files(closure);
  // To a file: on stderr ld.so's errors would mix with the paths.
  run_case(rule, {"LD_DEBUG=libs", "LD_DEBUG_OUTPUT=" + dir.path() + "/ld-debug"});
  std::vector<std::string> theirs_tried;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    if (entry.path().filename().string().starts_with("ld-debug."))
      theirs_tried = tried_files(value_or_throw(read_file(entry.path())));
  if (trace.status != 0) {
    // ld.so stopped at one file and the search continued: only earlier probes compare.
    ASSERT_NE(trace.err.find("error while loading shared libraries"), std::string::npos)
        << trace.err;
    ASSERT_FALSE(closure.missing.empty());
    EXPECT_THAT(trace.err, HasSubstr(rule.missing[0].path));
    ASSERT_LE(theirs_tried.size(), tried.size());
    tried.resize(theirs_tried.size());
    EXPECT_EQ(first_difference(tried, theirs_tried), "");
    return;
  }
  Trace theirs;
  theirs.lines = parse_trace(trace.out, theirs.is_static);
  // Without DT_NEEDED ld.so prints "statically linked" (a program that only preloads).
  if (!theirs.is_static) {
    EXPECT_EQ(difference(closure, theirs), "") << trace.out;
  }
  EXPECT_EQ(first_difference(tried, theirs_tried), "");

  if (rule.etc || !strace_works()) return;
  const auto log = dir / "strace.log";
  const auto straced =
      run_case(rule, {}, {"strace", "-o", log, "-s", "0", "-e", "trace=openat,newfstatat"});
  ASSERT_EQ(straced.status, 0) << straced.err;
  const auto count = count_calls(value_or_throw(read_file(log)));
  auto opens_done = count.opens_done;
  if (!rule.is_program) opens_done -= 1;  // the library given to ld.so
  EXPECT_EQ(closure.probes.opens_failed, count.opens_failed);
  EXPECT_EQ(closure.probes.opens_done, opens_done);
  EXPECT_EQ(closure.probes.stats_failed, count.stats_failed);
  EXPECT_EQ(closure.probes.stats_done, count.stats_done);
}

std::vector<std::string> all_rules() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(HEDDLE_RULES))
    if (entry.is_directory()) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Rule, testing::ValuesIn(all_rules()), [](const auto& param) {
  auto name = param.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace heddle::test
