// SPDX-License-Identifier: MIT
// What fs-gen keeps of a run for the next one, and that it never gives another answer than ld.so.

#include <atomic>
#include <ctime>

#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/occurrences.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::test {
namespace {

/// Nothing that changed in the last two seconds is cached, so the suite builds all files and waits
/// once. Each case gets a copy of what cases change, as its directory.
class RunCache : public FsGenFixture {
 protected:
  static void SetUpTestSuite() {
    built_.emplace();
    const auto copies = testing::UnitTest::GetInstance()->current_test_suite()->test_to_run_count();
    next_copy_ = 0;
    build_copied(*built_ / "0");
    for (int i = 1; i < copies; ++i)
      fs::copy(*built_ / "0", *built_ / std::to_string(i), fs::copy_options::recursive);
    build_shared();
    grow_old();
  }
  static void TearDownTestSuite() { built_.reset(); }
  void SetUp() override {
    fs::rename(*built_ / std::to_string(next_copy_++), dir_.path());
    FsGenFixture::SetUp();
    options_.env.insert(options_.env.end(), {"HEDDLE_SLOW=", "HEDDLE_FAST=/"});
  }

  static void build_copied(const std::string& directory) {
    fs::create_directories(directory + "/new");
    const Words new_and_old = {"-Wl,--enable-new-dtags,-rpath,$ORIGIN/new:$ORIGIN/old"};
    library(directory + "/old", "1");
    library(directory + "/two", "2");
    library(directory + "/three", "3");
    build_program({directory + "/app", "int x(void); int main(void) { return x(); }",
                   Words{directory + "/old/libx.so.1"} + new_and_old});
    module(directory + "/mod.so", dep(directory + "/old", 3), new_and_old);
    library(directory + "/levels", "1");
    for (const std::string level : {"2", "3", "4"})
      library(directory + "/levels/glibc-hwcaps/x86-64-v" + level, level);
    build_program({directory + "/levels/app",
                   "int x(void); int main(void) { return x(); }",
                   {directory + "/levels/libx.so.1", "-Wl,-rpath,$ORIGIN"}});
  }
  static void build_shared() {
    farm_ = ElfFarm::build(*built_ / "farm", {.libraries = 3});
    child_ = ElfFarm::build(*built_ / "child", {.libraries = 10});
    opens_ = ElfFarm::build(*built_ / "opens", {.libraries = 10, .dlopen_roots = true});
    const auto tls = build_library(
        {*built_ / "tls/libtls.so",
         "static __thread char big[65536] __attribute__((tls_model(\"initial-exec\"))) = {5};\n"
         "int tls(void) { return big[0]; }",
         {"-Wl,-soname,libtls.so"}});
    build_program({*built_ / "tls/child",
                   "int tls(void); int main(void) { return tls(); }",
                   {tls, "-Wl,-rpath,$ORIGIN/none:$ORIGIN"}});
    // Opens the modules of its arguments and returns q() of the last.
    build_program(
        {*built_ / "open",
         "#include <dlfcn.h>\n#include <stdio.h>\nint main(int c, char** v) { int i, out = 1;\n"
         "for (i = 1; i < c; ++i) { void* h = dlopen(v[i], RTLD_NOW); int (*q)(void);\n"
         "if (!h) { puts(dlerror()); return 1; } q = (int (*)(void))dlsym(h, \"q\");\n"
         "if (q) out = q(); } return out; }"});
    for (const std::string name : {"a", "b"}) {
      module(*built_ / (name + "/mod.so"), dep(*built_ / name, name == "a" ? 3 : 4),
             {"-Wl,--enable-new-dtags,-rpath,$ORIGIN/none:$ORIGIN"});
      build_library({*built_ / (name + "/libplug.so"),
                     "int p(void) { return " + std::to_string(name[0]) + "; }"});
      // The first directory of the list makes a failed look-up.
      build_library({*built_ / ("lib" + name + ".so"),
                     "#include <dlfcn.h>\nint q" + name +
                         "(void) { void* h = dlopen(\"libplug.so\", RTLD_NOW);\n"
                         "return h ? ((int (*)(void))dlsym(h, \"p\"))() : 1; }",
                     {"-Wl,--enable-new-dtags,-rpath," + *built_ / "none" + ":" + *built_ / name}});
    }
    build_program({*built_ / "by_library",
                   "int qa(void), qb(void); int main(int c, char** v) { return v[1][0] == 'a' ? "
                   "qa() : qb(); }",
                   {*built_ / "liba.so", *built_ / "libb.so"}});
    // mid.so has no path of its own, so that ld.so looks into those of what needs it.
    const auto mid = module(*built_ / "mid.so", *built_ / "a/libdep.so.1",
                            {"-Wl,-soname," + *built_ / "mid.so"});
    for (const std::string name : {"plain", "outer_a", "outer_b", "outer_none"}) {
      Words flags = {"-Wl,--no-as-needed", mid};
      if (name != "plain")
        flags.push_back("-Wl,--disable-new-dtags,-rpath," + *built_ / name.substr(6));
      build_library(
          {*built_ / (name + ".so"), "extern int q(void); int r(void) { return q(); }", flags});
    }
  }
  static void library(const std::string& directory, const std::string& answer) {
    build_library({directory + "/libx.so.1",
                   "int x(void) { return " + answer + "; }",
                   {"-Wl,-soname,libx.so.1"}});
  }
  /// Its p() returns `answer`.
  static std::string dep(const std::string& directory, int answer) {
    return build_library({directory + "/libdep.so.1",
                          "int p(void) { return " + std::to_string(answer) + "; }",
                          {"-Wl,-soname,libdep.so.1"}});
  }
  /// Its q() returns what `needed` returns.
  static std::string module(const std::string& path, const std::string& needed,
                            const Words& flags) {
    return build_library({path, "int p(void); int q(void) { return p(); }", Words{needed} + flags});
  }
  /// Runs it; whether the cache had the answer.
  bool is_cached(const Words& app, int status, const Words& options = {}) const {
    const auto ours = run_guided(app, options);
    EXPECT_EQ(ours.status, status) << ours.err;
    return report().value("cached", false);
  }
  std::string runs() const {
    for (const auto& entry : fs::directory_iterator(dir_ / "cache/heddle"))
      if (entry.path().filename().string().starts_with("runs-")) return entry.path();
    return {};
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(runs()))
      if (entry.path().filename() != "locks") out.push_back(entry.path());
    return out;
  }

  static inline std::optional<TestDir> built_;
  static inline int next_copy_ = 0;
  static inline ElfFarm farm_, child_, opens_;
  /// Returns x() of the first libx.so.1 in new, old and LD_LIBRARY_PATH.
  const std::string app_ = dir_ / "app";
};

TEST_F(RunCache, the_second_run_resolves_nothing_and_mounts_nothing) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 12});
  EXPECT_EQ(run_guided({farm.program}).out, farm.output);
  EXPECT_FALSE(report()["cached"].get<bool>());
  grow_old();
  (void)run_guided({farm.program});
  EXPECT_FALSE(report()["cached"].get<bool>()) << "the first run came too early";
  EXPECT_EQ(run_guided({farm.program}).out, farm.output);
  EXPECT_TRUE(report()["cached"].get<bool>());
  EXPECT_EQ(report()["via"], "direct");
  EXPECT_EQ(report()["probes_with"], 0);
  EXPECT_GE(report()["libraries"], 12);
  if (!strace_works()) return;
  const auto traced = run({"strace", "-f", "-qq", "-e", "trace=execve", "-e", "signal=none", "-o",
                           dir_ / "trace", fs_gen_, "-q", farm.program},
                          options_);
  EXPECT_EQ(traced.out, farm.output);
  const auto calls = read_file(dir_ / "trace").value_or("");
  EXPECT_EQ(std::count(calls.begin(), calls.end(), '\n'), 2) << "fs-gen and APP alone: " << calls;
}

TEST_F(RunCache, what_would_change_the_answer_is_noticed) {
  EXPECT_FALSE(is_cached({app_}, 1));
  EXPECT_TRUE(is_cached({app_}, 1));
  // Another library earlier in the search.
  library(dir_ / "new", "2");
  EXPECT_FALSE(is_cached({app_}, 2));
  // The same name, another file.
  grow_old();
  EXPECT_FALSE(is_cached({app_}, 2));
  EXPECT_TRUE(is_cached({app_}, 2));
  library(dir_ / "more", "3");
  fs::rename(dir_ / "more/libx.so.1", dir_ / "new/libx.so.1");
  EXPECT_FALSE(is_cached({app_}, 3));
  fs::remove(dir_ / "new/libx.so.1");
  EXPECT_FALSE(is_cached({app_}, 1));
  // The same program, another search.
  library(dir_ / "other", "4");
  options_.env.push_back("LD_LIBRARY_PATH=" + dir_ / "other");
  EXPECT_FALSE(is_cached({app_}, 4));
  options_.env.back() = "LD_PRELOAD=" + dir_ / "other/libx.so.1";
  EXPECT_FALSE(is_cached({app_}, 4));
  options_.env.pop_back();
  fs::remove_all(dir_ / "new");
  fs::create_directory_symlink(dir_ / "other", dir_ / "new");
  EXPECT_FALSE(is_cached({app_}, 4));
}

TEST_F(RunCache, another_file_in_a_searched_directory_changes_nothing) {
  (void)is_cached({app_}, 1);
  write_text_file(dir_ / "new/output", "of the program itself");
  EXPECT_TRUE(is_cached({app_}, 1));
  EXPECT_TRUE(is_cached({app_}, 1));
}

/// As of `LD_LIBRARY_PATH=DIR:$LD_LIBRARY_PATH` where the variable was not set.
TEST_F(RunCache, empty_element_of_the_search_path_is_cached_for_each_working_directory) {
  options_.env.push_back("LD_LIBRARY_PATH=" + dir_ / "none:");
  for (int round = 0; round < 2; ++round)
    for (const auto& [name, status] : {std::pair{"two", 2}, {"three", 3}, {".", 1}}) {
      options_.cwd = dir_ / name;
      EXPECT_EQ(is_cached({app_}, status), round != 0) << name;
      write_text_file(options_.cwd + "/output", "of the program itself");
      EXPECT_TRUE(is_cached({app_}, status)) << name;
    }
  const auto both = app_ + "; echo $?; cd ../three; " + app_ + "; echo $?";
  for (int round = 0; round < 3; ++round) {
    options_.cwd = dir_ / "two";
    EXPECT_EQ(run_guided({"sh", "-c", both}).out, "2\n3\n") << round;
  }
}

TEST_F(RunCache, relative_preload_is_cached_for_each_working_directory_and_others_for_all) {
  options_.env.push_back("LD_PRELOAD=" + dir_ / "three/libx.so.1");
  for (const std::string directory : {"two", "three"}) {
    options_.cwd = dir_ / directory;
    EXPECT_EQ(is_cached({app_}, 3), directory == "three");
  }
  options_.env.back() = "LD_PRELOAD=./libx.so.1";
  for (int round = 0; round < 2; ++round)
    for (const auto& [name, status] : {std::pair{"two", 2}, {"three", 3}}) {
      options_.cwd = dir_ / name;
      EXPECT_EQ(is_cached({app_}, status), round != 0) << name;
    }
}

TEST_F(RunCache, relative_runpath_is_not_cached) {
  build_program({dir_ / "relative",
                 "int x(void); int main(void) { return x(); }",
                 {dir_ / "old/libx.so.1", "-Wl,-rpath,:" + dir_ / "none"}});
  grow_old();
  for (int round = 0; round < 2; ++round)
    for (const auto& [name, status] : {std::pair{"two", 2}, {"three", 3}}) {
      options_.cwd = dir_ / name;
      EXPECT_FALSE(is_cached({dir_ / "relative"}, status)) << name;
    }
}

TEST_F(RunCache, a_directory_with_another_hwcaps_level_is_noticed) {
  (void)is_cached({app_}, 1);
  library(dir_ / "old/glibc-hwcaps/x86-64-v2", "2");
  const auto bare = run({app_}, options_);
  EXPECT_FALSE(is_cached({app_}, bare.status));
}

TEST_F(RunCache, the_tunable_of_the_cpus_features_chooses_the_library_as_in_ld_so) {
  const auto app = dir_ / "levels/app";
  const auto map = dir_ / "a.map";
  ASSERT_EQ(run({staged_program("fs-resolve"), "build", "-o", map, app}, options_).status, 0);
  for (const char* features : {"", "-AVX512F", "-AVX2", "-AVX2_Usable", "-SSSE3", "-POPCNT,-AVX2",
                               "-LZCNT", "-ERMS", "AVX2", "-AVX512CD", "-FMA,"}) {
    options_.env.push_back(std::string("GLIBC_TUNABLES=glibc.malloc.check=0:glibc.cpu.hwcaps=") +
                           features);
    const auto bare = run({app}, options_);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(run_guided({app}).status, bare.status) << features;
    EXPECT_TRUE(report()["guided"].get<bool>()) << features;
    EXPECT_EQ(run_guided({app}, {"--map", map}).status, bare.status) << features;
    EXPECT_EQ(report()["guided"].get<bool>(), !*features) << features;
    options_.env.pop_back();
  }
}

TEST_F(RunCache, damage_and_what_others_may_write_is_not_used) {
  (void)is_cached({app_}, 1);
  ASSERT_EQ(entries().size(), 1U);
  const auto entry = entries()[0];
  const auto whole = value_or_throw(read_file(entry));
  for (const std::size_t cut : {std::size_t{0}, std::size_t{7}, whole.size() / 2}) {
    write_text_file(entry, whole.substr(0, cut), 0600);
    EXPECT_FALSE(is_cached({app_}, 1)) << cut;
  }
  for (std::size_t at = 0; at < whole.size(); at += whole.size() / 7) {
    auto damaged = whole;
    damaged[at] = static_cast<char>(~damaged[at]);
    write_text_file(entry, damaged, 0600);
    EXPECT_FALSE(is_cached({app_}, 1)) << at;
  }
  EXPECT_TRUE(is_cached({app_}, 1));
  fs::permissions(runs(), fs::perms(0777));
  EXPECT_FALSE(is_cached({app_}, 1));
  fs::permissions(runs(), fs::perms(0700));
  EXPECT_TRUE(is_cached({app_}, 1));
  if (::geteuid() != 0) return;
  ASSERT_EQ(::chown(runs().c_str(), 1234, 1234), 0);
  EXPECT_FALSE(is_cached({app_}, 1)) << "root opens no other user's";
  ASSERT_EQ(::chown(runs().c_str(), 0, 0), 0);
  ASSERT_EQ(::chown((dir_ / "cache").c_str(), 1234, 1234), 0);
  EXPECT_FALSE(is_cached({app_}, 1)) << "another user could replace it";
}

TEST_F(RunCache, no_cache_is_no_reason_not_to_run) {
  for (const char* cache : {"/proc/none", "/dev/null", "/sys"}) {
    options_.env.push_back(std::string("XDG_CACHE_HOME=") + cache);
    EXPECT_FALSE(is_cached({app_}, 1)) << cache;
    options_.env.pop_back();
  }
  EXPECT_FALSE(is_cached({app_}, 1, {"--no-cache"}));
  EXPECT_EQ(runs(), "");
  EXPECT_EQ(sh("ulimit -f 1; $FS_GEN -q ./app").status, 1);
  if (::geteuid() != 0) return;
  for (const char* room : {"4k", "8k", "12k", "16k", "64k"})
    EXPECT_EQ(
        sh("unshare -m sh -c 'mkdir -p full; mount -t tmpfs -o size=" + std::string(room) +
           " none full; mkdir full/heddle; head -c 100000 /dev/zero > full/fill 2>/dev/null; "
           "export XDG_CACHE_HOME=$DIR/full; $FS_GEN -q ./app; [ $? = 1 ] && : > full/fill && "
           "$FS_GEN -q ./app; [ $? = 1 ] && head -c 100000 /dev/zero > full/fill 2>/dev/null; "
           "$FS_GEN -q ./app'")
            .status,
        1)
        << room;
}

TEST_F(RunCache, reason_why_nothing_is_cached_is_given) {
  // Always younger than two seconds, however slow the machine is.
  library(dir_ / "new", "2");
  const auto young = dir_ / "new/libx.so.1";
  fs::last_write_time(young, fs::file_time_type::clock::now() + std::chrono::hours(1));
  const auto reason = young + ": changed less than 2 s before the run\n";
  EXPECT_THAT(gen({"--explain", app_}).out, HasSubstr("\nnot cached: " + reason));
  EXPECT_THAT(gen({app_}).err, HasSubstr("\n  not cached      " + reason));
  EXPECT_FALSE(is_cached({app_}, 2));
  EXPECT_EQ(report()["not_cached"].get<std::string>() + "\n", reason);
  fs::remove(young);
  EXPECT_THAT(gen({"--explain", app_}).out, Not(HasSubstr("not cached")));
  EXPECT_TRUE(is_cached({app_}, 1));
  EXPECT_FALSE(report().contains("not_cached"));
  EXPECT_THAT(gen({"--explain", "--no-cache", app_}).out, HasSubstr("\nnot cached: an option"));
  EXPECT_THAT(gen({"--explain", app_}).out, Not(HasSubstr("not cached")));
  options_.env.push_back("XDG_CACHE_HOME=/proc/none");
  EXPECT_THAT(gen({"--explain", app_}).out, HasSubstr("\nnot cached: /proc/none/heddle/runs-"));
  fs::create_directory(dir_ / "open");
  fs::permissions(dir_ / "open", fs::perms(01777));
  options_.env.back() = "XDG_CACHE_HOME=" + (dir_ / "open");
  const auto why = (dir_ / "open/heddle") + ": cannot be trusted: ";
  EXPECT_THAT(gen({"--explain", app_}).out, HasSubstr("\nnot cached: " + why));
  EXPECT_THAT(gen({app_}).err, HasSubstr("not cached      " + why));
  if (::geteuid() != 0) return;
  const auto full =
      sh("unshare -m sh -c 'mkdir full; mount -t tmpfs -o size=64k none full; mkdir full/heddle; "
         "head -c 100000 /dev/zero >full/fill; export XDG_CACHE_HOME=$DIR/full; "
         "$FS_GEN --explain ./app; $FS_GEN ./app; $FS_GEN --doctor' 2>&1");
  EXPECT_THAT(full.out, HasSubstr("\nnot cached: "));
  EXPECT_THAT(full.out, HasSubstr("\n  not cached      "));
  EXPECT_THAT(full.out, HasSubstr("\nFAILS   cache "));
  EXPECT_THAT(full.out, HasSubstr("No space left on device: each run resolves anew"));
}

TEST_F(RunCache, explain_runs_nothing_where_no_map_can_be_made) {
  if (::geteuid() != 0) HEDDLE_SKIP("mounts a full file system");
  const auto full =
      sh("unshare -m sh -c 'mkdir full; mount -t tmpfs -o size=64k none full; "
         "head -c 100000 /dev/zero >full/fill; TMPDIR=$DIR/full $FS_GEN --no-cache --slow $DIR "
         "--explain ./app'");
  EXPECT_EQ(full.status, 0) << full.err;
  EXPECT_THAT(full.out, testing::MatchesRegex("./app: runs unguided: .*No space left on device\n"));
}

TEST_F(RunCache, of_64_at_once_each_has_the_right_answer) {
  std::vector<std::thread> all;
  std::atomic<int> good{0};
  for (int i = 0; i < 64; ++i)
    all.emplace_back([&] { good += run({fs_gen_, "-q", app_}, options_).status == 1; });
  for (auto& one : all) one.join();
  EXPECT_EQ(good, 64);
  EXPECT_EQ(entries().size(), 1U);
  EXPECT_TRUE(is_cached({app_}, 1));
}

TEST_F(RunCache, show_names_the_programs_and_clear_forgets_them) {
  (void)is_cached({app_}, 1);
  const auto shown = gen({"cache", "show"});
  EXPECT_THAT(shown.out, HasSubstr(app_ + "  1 program, "));
  EXPECT_THAT(shown.out, HasSubstr("direct, valid\n"));
  EXPECT_EQ(gen({"cache", "clear"}).status, 0);
  EXPECT_TRUE(entries().empty());
  EXPECT_FALSE(is_cached({app_}, 1));
}

TEST_F(RunCache, words_that_cache_does_not_know_are_refused_and_a_program_of_that_name_runs) {
  for (const Words& words : {Words{"cache"}, Words{"cache", "shwo"}, Words{"cache", "show", "x"},
                             Words{"cache", "--help"}}) {
    const auto wrong = gen(words);
    EXPECT_EQ(wrong.status, 2) << wrong.err;
    EXPECT_THAT(wrong.err, HasSubstr("fs-gen: cache: "));
    EXPECT_THAT(wrong.err, HasSubstr("\nhint: fs-gen cache show, or fs-gen cache clear; a program "
                                     "named cache is run by fs-gen -- cache\n"));
  }
  write_text_file(dir_ / "bin/cache", "#!/bin/sh\nexec echo ran $1\n", 0755);
  EXPECT_EQ(sh("PATH=$DIR/bin:$PATH; $FS_GEN -- cache show; $FS_GEN cache shwo").out, "ran show\n");
}

TEST_F(RunCache, what_a_run_loads_and_executes_is_guided_in_the_next) {
  const auto script = write_text_file(
      dir_ / "script", "#!/bin/sh\n" + child_.program + "\n" + opens_.program + "\n", 0755);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run_guided({script}, {"--no-learn"}).out, child_.output + opens_.output);
    EXPECT_EQ(report()["guided_processes"], 1) << "the shell";
  }
  EXPECT_EQ(run_guided({script}).out, child_.output + opens_.output);
  EXPECT_EQ(report()["guided_processes"], 1) << "it learns for the next";
  EXPECT_EQ(run_guided({script}).out, child_.output + opens_.output);
  EXPECT_EQ(report()["guided_processes"], 3);
  EXPECT_EQ(report()["unguided_processes"], 0);
  EXPECT_EQ(report()["probes_with"], 0);
  // A program that is rebuilt is found anew.
  fs::remove(child_.libraries[3]);
  EXPECT_EQ(run_guided({script}).status, 0);
  EXPECT_THAT(run_guided({script}).err, HasSubstr(child_.sonames[3]));
}

TEST_F(RunCache, a_child_finds_a_library_that_was_moved_while_its_parent_runs) {
  const Words words = {"/bin/sh", "-c",
                       app_ + "; mv " + dir_ / "old/libx.so.1 " + dir_ / "new; " + app_ +
                           "; s=$?; mv " + dir_ / "new/libx.so.1 " + dir_ / "old; exit $s"};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run_guided(words).status, 1);
}

TEST_F(RunCache, a_child_with_much_tls_is_guided_in_the_next_run) {
  // Its name is made up at run time, so that no argument gives it away.
  const Words words = {"/bin/sh", "-c", "d=" + *built_ / "tls" + "; $d/chil''d; exit $?"};
  EXPECT_EQ(run_guided(words).status, 5);
  EXPECT_EQ(report()["unguided_processes"], 1U);
  EXPECT_EQ(run_guided(words).status, 5);
  EXPECT_EQ(report()["guided_processes"], 2U);
  EXPECT_EQ(report()["unguided_processes"], 0U);
  EXPECT_EQ(report()["probes_with"], 0U);
}

TEST_F(RunCache, a_command_that_gains_nothing_runs_without_heddle_the_next_time) {
  const Words words{"/bin/sh", "-c", "echo ${LD_AUDIT:+audited}$1; /bin/true"};
  const auto run_it = [&](const std::string& argument, const Words& options = {}) {
    Words all{"-q"};
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"sh", argument});
    return gen(all).out;
  };
  EXPECT_EQ(run_it("1"), "audited1\n");
  EXPECT_EQ(run_it("1"), "1\n");
  EXPECT_EQ(run_it("2"), "audited2\n") << "other words may do other things";
  EXPECT_EQ(run_it("1", {"--no-cache"}), "audited1\n");
  EXPECT_THAT(gen({"/bin/sh", "-c", words[2], "sh", "1"}).err, HasSubstr("runs without heddle"));
  EXPECT_EQ(gen({"-q", "/bin/sh", "-c", "kill -9 $$"}).status, 128 + 9);
  // What has look-ups to save stays guided.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(gen({"-q", farm_.program}).out, farm_.output);
  EXPECT_EQ(run_guided({farm_.program}).out, farm_.output);
  EXPECT_TRUE(report()["guided"].get<bool>());
}

TEST_F(RunCache, a_command_that_has_learned_all_and_gains_nothing_runs_without_heddle) {
  // cc1 leaves the audit library for its thread-local data: what it looks for in vain is not known
  // until the second run guides it.
  write_text_file(dir_ / "one.c", "int one;");
  const Words compiles{"cc", "-c", dir_ / "one.c", "-o", dir_ / "one.o"};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(gen(Words{"-q"} + compiles).status, 0);
  EXPECT_THAT(gen(Words{"--explain"} + compiles).out, HasSubstr("runs without heddle"));
  // What saves look-ups stays guided: a child's, or a library's that it opens.
  const Words child{"/bin/sh", "-c",
                    "d=" + *built_ / "tls" + "; $d/chil''d; echo $? ${LD_AUDIT:+audited}"};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(gen(Words{"-q"} + child).out, "5 audited\n");
  const Words opens{*built_ / "open", *built_ / "a/mod.so"};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(gen(Words{"-q"} + opens).status, 3);
  EXPECT_THAT(gen(Words{"--explain"} + opens).out, Not(HasSubstr("runs without heddle")));
}

TEST_F(RunCache, heddle_off_changes_nothing_of_a_program) {
  options_.env.push_back("HEDDLE=off");
  const auto ours = gen({"/bin/sh", "-c", "echo ${LD_AUDIT-none}; exit 7"});
  EXPECT_EQ(ours.out, "none\n");
  EXPECT_EQ(ours.err, "");
  EXPECT_EQ(ours.status, 7);
  EXPECT_EQ(gen({"/no/such"}).status, 127);
}

TEST_F(RunCache, slow_files_are_mounted_and_explain_says_why) {
  const auto fast = gen({"--explain", app_});
  EXPECT_EQ(fast.status, 0) << fast.err;
  EXPECT_THAT(fast.out, HasSubstr("--fast /"));
  EXPECT_THAT(fast.out, HasSubstr("mount: no"));
  const Words slow{"--slow", dir_ / "old"};
  const auto told = gen({"--explain", slow[0], slow[1], app_});
  EXPECT_THAT(told.out, HasSubstr("slow: --slow " + dir_ / "old"));
  EXPECT_THAT(told.out, HasSubstr("mount: yes"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(is_cached({app_}, 1, slow)) << "--explain has resolved it";
    EXPECT_NE(report()["via"], "none");
    if (::access("/dev/fuse", R_OK | W_OK) == 0) {
      EXPECT_NE(report()["via"], "direct");
    }
  }
  library(dir_ / "new", "2");
  EXPECT_FALSE(is_cached({app_}, 2, slow));
}

TEST_F(RunCache, a_tracer_does_not_make_files_slow) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  options_.env.push_back("HEDDLE_FAST=");
  const auto ours =
      run({"strace", "-f", "-o", dir_ / "trace", fs_gen_, "--explain", "/bin/true"}, options_);
  EXPECT_EQ(ours.status, 0) << ours.err;
  EXPECT_THAT(gen({"--explain", "/bin/true"}).out,
              HasSubstr(ours.out.substr(ours.out.find("mount:"))));
}

TEST_F(RunCache, one_rank_of_a_job_checks_slow_files_for_all_on_the_node) {
  const Words slow{"--slow", dir_ / "old"};
  (void)is_cached({app_}, 1, slow);
  ASSERT_TRUE(is_cached({app_}, 1, slow));
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  for (const char* rank : {"SLURM_PROCID", "NO_RANK"}) {
    const auto ours =
        sh(std::string("strace -f -qq -e trace=newfstatat,stat -o trace sh -c 'for i in "
                       "0 1 2; do ") +
           rank + "=$i $FS_GEN -q --slow $DIR/old ./app; done; exit 7'");
    EXPECT_EQ(ours.status, 7) << ours.err;
    EXPECT_EQ(occurrences(read_file(dir_ / "trace").value_or(""), "/new/\""),
              std::string(rank) == "NO_RANK" ? 3U : 1U);
  }
}

TEST_F(RunCache, a_check_keeps_32_requests_in_flight) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 120});
  fs::rename(dir_ / "farm", dir_ / "source");
  grow_old();
  SlowMount slow(dir_ / "source", dir_ / "farm", dir_ / "counts", {.delay_us = 10'000});
  // Without a run, whose daemon would ask, too.
  const Words check{"--slow", dir_ / "farm", "--explain", farm.program};
  EXPECT_THAT(gen(check).out, HasSubstr("map: resolved now"));
  (void)slow.reset();
  EXPECT_THAT(gen(check).out, HasSubstr("map: cached and unchanged"));
  const auto counts = slow.counts();
  EXPECT_GE(counts.total, farm.libraries.size());
  EXPECT_GE(counts.most_in_flight, 32U);
}

TEST_F(RunCache, what_two_callers_ask_for_stays_apart) {
  const auto by_library = *built_ / "by_library";
  for (const Words& slow : {Words(), Words{"--slow", built_->path()}}) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run_guided({by_library, "a"}, slow).status, 'a');
    EXPECT_EQ(report()["probes_with"], 0U);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run_guided({by_library, "b"}, slow).status, 'b');
    EXPECT_EQ(report()["probes_with"], 0U);
    EXPECT_EQ(run_guided({by_library, "a"}, slow).status, 'a');
    EXPECT_EQ(report()["probes_with"], 0U);
  }
}

class LearnedModules : public RunCache {
 protected:
  int learned(const Words& words) {
    int status = 0;
    for (int i = 0; i < 3; ++i) status = run_guided(words).status;
    return status;
  }

  const std::string open_ = *built_ / "open";
};

TEST_F(LearnedModules, each_gets_the_library_beside_it) {
  const auto a = *built_ / "a/mod.so", b = *built_ / "b/mod.so";
  EXPECT_EQ(learned({open_, a}), 3);
  EXPECT_EQ(report()["probes_with"], 0U) << "it is guided";
  EXPECT_EQ(learned({open_, b}), 4);
  EXPECT_EQ(report()["probes_with"], 0U);
  EXPECT_EQ(learned({open_, a}), 3);
  options_.env.push_back("HEDDLE_SLOW=" + built_->path());
  EXPECT_EQ(learned({open_, a}), 3);
  EXPECT_EQ(learned({open_, b}), 4);
  EXPECT_EQ(learned({open_, a}), 3);
}

TEST_F(LearnedModules, a_new_file_earlier_in_the_search_is_found) {
  const auto mod = dir_ / "mod.so";
  EXPECT_EQ(learned({open_, mod}), 3);
  EXPECT_EQ(report()["probes_with"], 0U) << "it is guided";
  dep(dir_ / "new", 4);
  EXPECT_EQ(run_guided({open_, mod}).status, 4);
}

TEST_F(LearnedModules, an_rpath_of_what_loaded_the_caller_counts) {
  const auto mid = *built_ / "mid.so", plain = *built_ / "plain.so", a = *built_ / "outer_a.so",
             b = *built_ / "outer_b.so";
  for (const bool has_path : {false, true}) {
    if (has_path)
      options_.env.push_back("LD_LIBRARY_PATH=" + *built_ / "none" + ":" + *built_ / "a");
    for (const auto& first : {plain, a, b}) {
      EXPECT_EQ(gen({"cache", "clear"}).status, 0);
      (void)learned({open_, first, mid});
      for (const auto& then : {plain, a, b}) {
        const auto bare = run({open_, then, mid}, options_).status;
        EXPECT_EQ(learned({open_, then, mid}), bare) << has_path << first << then;
      }
    }
  }
}

TEST_F(LearnedModules, an_rpath_that_leads_to_no_other_file_does_not_count) {
  options_.env.push_back("LD_LIBRARY_PATH=" + *built_ / "none" + ":" + *built_ / "a");
  EXPECT_EQ(learned({open_, *built_ / "outer_none.so", *built_ / "mid.so"}), 3);
  EXPECT_EQ(report()["failed_probes"], 0U);
}

TEST_F(LearnedModules, another_library_path_of_a_child_counts) {
  const std::string run_it = open_ + " " + dir_ / "mod.so" + "; echo $?; ";
  const Words words = {"/bin/sh", "-c", run_it + "LD_LIBRARY_PATH=" + *built_ / "b" + " " + run_it};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run_guided(words).out, "3\n4\n") << i;
}

TEST_F(LearnedModules, another_library_path_that_leads_to_no_other_file_does_not_count) {
  // As mpirun of Open MPI sets one for its ranks, if it is started by its path.
  fs::create_directories(dir_ / "more");
  for (const auto& slow : {std::string(), built_->path()}) {
    options_.env.push_back("HEDDLE_SLOW=" + slow);
    EXPECT_EQ(learned({"/bin/sh", "-c",
                       "LD_LIBRARY_PATH=" + dir_ / "more" + " " + open_ + " " +
                           *built_ / "a/mod.so" + "; exit $?"}),
              3);
    EXPECT_EQ(report()["failed_probes"], 0U);
    EXPECT_EQ(report()["unguided_processes"], 0U);
  }
}

TEST_F(LearnedModules, what_is_gone_or_new_is_not_resolved_again) {
  const Words words = {
      "/bin/sh", "-c",
      app_ + "; cp " + app_ + " $0/one; $0/one; rm $0/one; cp " + app_ + " $0/two; $0/two; exit 0",
      dir_ / "tmp2"};
  fs::create_directory(dir_ / "tmp2");
  (void)learned(words);
  const auto before = entries();
  ASSERT_EQ(before.size(), 1U);
  struct stat old {
  }, now{};
  ASSERT_EQ(::stat(before[0].c_str(), &old), 0);
  EXPECT_EQ(run_guided(words).status, 0);
  ASSERT_EQ(::stat(before[0].c_str(), &now), 0);
  EXPECT_EQ(now.st_ino, old.st_ino);
  EXPECT_THAT(gen({"cache", "show"}).out, testing::Not(HasSubstr("tmp2")));
}

TEST_F(RunCache, a_rank_does_not_trust_its_own_mark) {
  // In an sbatch script each command has the rank 0.
  const Words slow{"--slow", dir_ / "old"};
  (void)is_cached({app_}, 1, slow);
  ASSERT_TRUE(is_cached({app_}, 1, slow));
  library(dir_ / "two", "2");
  const auto ours =
      sh("export SLURM_PROCID=0; a() { $FS_GEN -q --slow $DIR/old ./app; echo $?; }; a; a; "
         "cp two/libx.so.1 new/; a; rm new/libx.so.1; a");
  EXPECT_EQ(ours.out, "1\n1\n2\n1\n") << ours.err;
}

TEST_F(RunCache, a_full_cache_keeps_what_an_app_may_be_running_with) {
  (void)is_cached({app_}, 1);
  ASSERT_TRUE(is_cached({app_}, 1));
  const auto others = [&] {
    std::size_t count = 0;
    for (const auto& entry : entries()) count += entry.find("/other") != entry.npos;
    return count;
  };
  for (int i = 0; i < 1100; ++i) {
    write_text_file(runs() + "/plain-" + std::to_string(i), "", 0600);
    write_text_file(runs() + "/other" + std::to_string(i % 20), "", 0600);
  }
  EXPECT_EQ(gen({"-q", "/bin/true"}).status, 0);
  EXPECT_TRUE(is_cached({app_}, 1));
  EXPECT_LT(entries().size(), 100U);
  EXPECT_EQ(others(), 20U);
  for (int i = 0; i < 1100; ++i) write_text_file(runs() + "/other" + std::to_string(i), "", 0600);
  EXPECT_EQ(gen({"-q", "/bin/true", "x"}).status, 0);
  EXPECT_TRUE(is_cached({app_}, 1));
  EXPECT_EQ(others(), 1100U);
  const timespec times[2] = {{1, 0}, {1, 0}};
  for (int i = 5; i < 1100; ++i)
    ASSERT_EQ(::utimensat(AT_FDCWD, (runs() + "/other" + std::to_string(i)).c_str(), times, 0), 0);
  EXPECT_EQ(gen({"-q", "/bin/true", "y"}).status, 0);
  EXPECT_TRUE(is_cached({app_}, 1));
  EXPECT_EQ(others(), 5U);
}

TEST_F(RunCache, a_relative_slow_directory_is_one_of_the_working_directory) {
  fs::create_directory(dir_ / "elsewhere");
  const auto ours =
      sh("for d in . elsewhere; do cd $DIR/$d; $FS_GEN --explain --slow old $DIR/app; "
         "HEDDLE_SLOW=old $FS_GEN --explain $DIR/app; done | grep mount:");
  EXPECT_EQ(ours.out,
            "mount: yes, serving all files\nmount: yes, serving all files\n"
            "mount: no, no file is on a slow file system\n"
            "mount: no, no file is on a slow file system\n");
}

/// What a rank leaves for the others of its launcher.
TEST_F(RunCache, marks_of_launchers_that_have_ended_are_removed) {
  const auto runtime = dir_ / "runtime";
  ASSERT_EQ(::mkdir(runtime.c_str(), 0700), 0);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(runtime.c_str(), 65534, 65534), 0);
  }
  fs::permissions(dir_.path(), fs::perms(0755));
  const std::string user = ::geteuid() == 0 ? "setpriv --reuid 65534 --clear-groups " : "";
  const auto launched =
      "export PMI_RANK=0 XDG_RUNTIME_DIR=$DIR/runtime "
      "XDG_CACHE_HOME=$DIR/runtime/cache; for i in 1 2 3; do " +
      user + "$FS_GEN -q $DIR/app; done; ls $XDG_RUNTIME_DIR/heddle";
  for (int launches = 0; launches < 3; ++launches) {
    const auto names = lines_of(sh(launched).out);
    EXPECT_EQ(std::ranges::count_if(
                  names, [](const std::string& name) { return name.starts_with("valid-"); }),
              1);
  }
}

TEST_F(RunCache, heddle_off_says_which_options_do_nothing) {
  options_.env.push_back("HEDDLE=off");
  EXPECT_THAT(gen({"--explain", "/bin/sh", "-c", "echo ran"}).out,
              testing::AllOf(HasSubstr("map:"), testing::Not(HasSubstr("ran"))));
  for (const Words& words : {Words{"--out", dir_ / "map"}, Words{"--learn", "--out", dir_ / "map"},
                             Words{"--json", dir_ / "json"}, Words{"--compare", "1"}}) {
    Words all = words;
    all.insert(all.end(), {"/bin/sh", "-c", "echo ran"});
    const auto ours = gen(all);
    EXPECT_EQ(ours.out, "ran\n");
    EXPECT_THAT(ours.err,
                HasSubstr("HEDDLE=off: --out, --learn, --json and --compare do nothing\n"));
  }
}

}  // namespace
}  // namespace heddle::test
