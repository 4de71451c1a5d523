// SPDX-License-Identifier: MIT
// Each directory of tests/search/rules is one rule of ld.so's search, compared with the real ld.so:
// the objects, their paths and order (LD_TRACE_LOADED_OBJECTS), the probes (LD_DEBUG=libs) and the
// number of system calls (strace).

#include "base/escape.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"
#include "tests/search/oracle.hpp"
#include "tests/search/tiny_elf.hpp"
#include "tests/support/prelude.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {
namespace {

/// One directory of tests/search/rules: what to build, how to start it and what to expect.
/// rules/README.md describes the language.
struct RuleCase {
  struct Expected {
    std::string name;
    std::string path;
    std::string by;
  };
  std::string directory;         ///< where it was built
  std::vector<std::string> env;  ///< NAME=value
  std::string cwd;               ///< absolute
  std::string run;               ///< as given to execve
  bool is_program = true;        ///< false: a library, given to ld.so
  std::vector<Expected> expected;
  std::vector<Expected> missing;   ///< path: a part of the reason
  std::optional<std::string> etc;  ///< a directory in place of /etc: ld.so.cache, ld.so.preload
  int newest_minor = 1000;         ///< the last glibc 2.N with the rule
  int oldest_minor = 0;            ///< the first
};

class Builder {
 public:
  Builder(const std::string& file, const std::string& directory, const std::string& platform)
      : file_(file), platform_(platform) {
    out_.directory = directory;
    out_.cwd = directory;
  }

  RuleCase build() {
    std::istringstream lines(value_or_throw(read_file(file_)));
    for (std::string line; std::getline(lines, line); take(line)) ++line_;
    finish_elf();
    for (const auto& directories : cache_) make_cache(directories);
    if (out_.run.empty()) trouble("no `program` and no `run`");
    return std::move(out_);
  }

 private:
  [[noreturn]] void trouble(const std::string& what) const {
    throw Error(file_ + ":" + std::to_string(line_), what);
  }

  static std::string word(std::string& rest) {
    const auto start = rest.find_first_not_of(' ');
    if (start == rest.npos) return rest.clear(), std::string();
    const auto end = std::min(rest.find(' ', start), rest.size());
    auto out = rest.substr(start, end - start);
    const auto next = rest.find_first_not_of(' ', end);
    rest = next == rest.npos ? std::string() : rest.substr(next);
    return out;
  }

  /// '@' is the case's directory, `{platform}` ld.so's platform; escapes as in base/escape.hpp, a
  /// blank is \x20.
  std::string value(std::string text) const {
    static const std::string kPlatform = "{platform}";
    if (const auto at = text.find(kPlatform); at != text.npos)
      text.replace(at, kPlatform.size(), platform_);
    for (auto at = text.find('@'); at != text.npos; at = text.find('@', at + out_.directory.size()))
      text.replace(at, 1, out_.directory);
    auto out = unescape(text);
    if (!out) trouble("not an escaped string: " + text);
    return *out;
  }
  std::string place(const std::string& name) const {
    const auto path = value(name);
    return path.starts_with('/') ? path : out_.directory + "/" + path;
  }

  void finish_elf() {
    if (!elf_) return;
    write_text_file(elf_path_, elf_->bytes(), 0755);
    elf_.reset();
  }

  void start_elf(const std::string& name, bool is_program) {
    elf_.emplace();
    elf_path_ = place(name);
    if (!is_program) return;
    elf_->interp = "/lib64/ld-linux-x86-64.so.2";
    if (out_.run.empty()) out_.run = elf_path_;
  }

  bool take_elf_line(const std::string& key, const std::string& rest) {
    if (!elf_) return false;
    using Kind = Dependency::Kind;
    static const std::map<std::string, Kind> kinds = {
        {"needed", Kind::needed}, {"auxiliary", Kind::auxiliary}, {"filter", Kind::filter}};
    if (const auto kind = kinds.find(key); kind != kinds.end()) {
      elf_->dependencies.push_back({kind->second, value(rest)});
      return true;
    }
    const auto put = [&rest](auto& field) {
      field = static_cast<std::remove_reference_t<decltype(field)>>(std::stoul(rest, nullptr, 0));
    };
    auto& elf = *elf_;
    const std::map<std::string, std::function<void()>> fields = {
        {"soname", [&] { elf.soname = value(rest); }},
        {"rpath", [&] { elf.rpath = value(rest); }},
        {"runpath", [&] { elf.runpath = value(rest); }},
        {"nodeflib", [&] { elf.flags_1 |= DF_1_NODEFLIB; }},
        {"pie", [&] { elf.flags_1 |= DF_1_PIE; }},
        {"no-dynamic", [&] { elf.dynamic = false; }},
        {"class", [&] { put(elf.elf_class); }},
        {"machine", [&] { put(elf.machine); }},
        {"data", [&] { put(elf.data_encoding); }},
        {"osabi", [&] { put(elf.os_abi); }},
        {"abiversion", [&] { put(elf.abi_version); }},
        {"type", [&] { put(elf.type); }}};
    const auto field = fields.find(key);
    if (field == fields.end()) return false;
    field->second();
    return true;
  }

  void take(std::string rest) {
    const auto key = word(rest);
    if (key.empty() || key.starts_with('#')) return;
    if (take_elf_line(key, rest)) return;
    finish_elf();
    if (key == "program" || key == "library") {
      start_elf(rest, key == "program");
    } else if (key == "text") {
      const auto name = word(rest);
      write_text_file(place(name), value(rest));
    } else if (key == "directory") {
      std::filesystem::create_directories(place(rest));
    } else if (key == "link" || key == "hardlink") {
      const auto name = place(word(rest));
      std::filesystem::create_directories(std::filesystem::path(name).parent_path());
      if (key == "link")
        std::filesystem::create_symlink(value(rest), name);
      else
        std::filesystem::create_hard_link(place(rest), name);
    } else if (key == "env") {
      out_.env.push_back(value(rest));
    } else if (key == "cwd") {
      out_.cwd = place(rest);
    } else if (key == "run") {
      out_.run = value(rest);
    } else if (key == "run-by-ld.so") {
      out_.run = value(rest);
      out_.is_program = false;
    } else if (key == "expect") {
      const auto name = value(word(rest));
      const auto path = value(word(rest));
      out_.expected.push_back({name, path, word(rest)});
    } else if (key == "missing") {
      const auto name = value(word(rest));
      out_.missing.push_back({name, rest, ""});
    } else if (key == "cache") {
      cache_.push_back(rest);
      out_.etc = out_.directory + "/etc";
    } else if (key == "cache-remove") {
      remove_.push_back(place(rest));
    } else if (key == "preload-file") {
      out_.etc = out_.directory + "/etc";
      write_text_file(*out_.etc + "/ld.so.preload", value(rest));
      std::filesystem::copy_file("/etc/ld.so.cache", *out_.etc + "/ld.so.cache");
    } else if (key == "until") {
      out_.newest_minor = std::stoi(rest);
    } else if (key == "since") {
      out_.oldest_minor = std::stoi(rest);
    } else {
      trouble("unknown word " + key);
    }
  }

  void make_cache(const std::string& directories) {
    std::string conf;
    auto rest = directories;
    for (auto name = word(rest); !name.empty(); name = word(rest)) conf += place(name) + "\n";
    write_text_file(out_.directory + "/ld.so.conf", conf);
    std::filesystem::create_directories(*out_.etc);
    run_checked({"/sbin/ldconfig", "-X", "-C", *out_.etc + "/ld.so.cache", "-f",
                 out_.directory + "/ld.so.conf"});
    for (const auto& path : remove_) std::filesystem::remove(path);
  }

  std::string file_;
  std::string platform_;
  std::size_t line_ = 0;
  RuleCase out_;
  std::optional<TinyElf> elf_;
  std::string elf_path_;
  std::vector<std::string> cache_;
  std::vector<std::string> remove_;
};

/// Reads `file` and builds what it says in `directory`; `platform` is ld.so's. Throws heddle::Error
/// naming the line.
RuleCase build_rule_case(const std::string& file, const std::string& directory,
                         const std::string& platform) {
  return Builder(file, directory, platform).build();
}

constexpr auto kLoader = kNativeLoader;

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
  // glibc 2.41 lists ld.so in every case, at a place that the comparison with it below checks.
  const bool lists_interpreter = loader.glibc_minor >= 41;
  std::vector<std::string> ours;
  for (std::size_t i = 1; i < closure.objects.size(); ++i) {
    const auto& object = closure.objects[i];
    if (object.found_by == FoundBy::interpreter && lists_interpreter) continue;
    ours.push_back(object.requested_as + " " + object.path + " " + to_string(object.found_by));
  }
  std::vector<std::string> expected;
  for (const auto& e : rule.expected)
    if (e.by != "interpreter" || !lists_interpreter)
      expected.push_back(e.name + " " + e.path + " " + e.by);
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
