// SPDX-License-Identifier: MIT
// What fs-gen keeps of a run for the next one, and that it never gives another answer than ld.so.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <thread>

#include "base/fd.hpp"
#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RunCache : public FsGenFixture {
 protected:
  void SetUp() override {
    FsGenFixture::SetUp();
    options_.env.insert(options_.env.end(), {"HEDDLE_SLOW=", "HEDDLE_FAST=/"});
  }
  /// A program that returns x() of the first libx.so.1 in new, old and LD_LIBRARY_PATH.
  std::string build_app() {
    fs::create_directory(dir_ / "new");
    library("old", "1");
    const auto app = build_program({dir_ / "app",
                                    "int x(void); int main(void) { return x(); }",
                                    {dir_ / "old/libx.so.1", "-Wl,--enable-new-dtags",
                                     "-Wl,-rpath," + dir_ / "new" + ":" + dir_ / "old"}});
    grow_old();
    return app;
  }
  void library(const std::string& directory, const std::string& answer) {
    build_library({dir_ / (directory + "/libx.so.1"),
                   "int x(void) { return " + answer + "; }",
                   {"-Wl,-soname,libx.so.1"}});
  }
  /// Nothing that changed in the last two seconds is cached.
  void grow_old() const {
    const auto built = std::time(nullptr);
    EXPECT_TRUE(
        wait_until(std::chrono::seconds(20), [&] { return std::time(nullptr) > built + 3; }));
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
  const auto app = build_app();
  EXPECT_FALSE(is_cached({app}, 1));
  EXPECT_TRUE(is_cached({app}, 1));
  // Another library earlier in the search.
  library("new", "2");
  EXPECT_FALSE(is_cached({app}, 2));
  // The same name, another file.
  grow_old();
  EXPECT_FALSE(is_cached({app}, 2));
  EXPECT_TRUE(is_cached({app}, 2));
  library("more", "3");
  fs::rename(dir_ / "more/libx.so.1", dir_ / "new/libx.so.1");
  EXPECT_FALSE(is_cached({app}, 3));
  fs::remove(dir_ / "new/libx.so.1");
  EXPECT_FALSE(is_cached({app}, 1));
  // The same program, another search.
  library("other", "4");
  options_.env.push_back("LD_LIBRARY_PATH=" + dir_ / "other");
  EXPECT_FALSE(is_cached({app}, 4));
  options_.env.back() = "LD_PRELOAD=" + dir_ / "other/libx.so.1";
  EXPECT_FALSE(is_cached({app}, 4));
  options_.env.pop_back();
  fs::remove_all(dir_ / "new");
  fs::create_directory_symlink(dir_ / "other", dir_ / "new");
  EXPECT_FALSE(is_cached({app}, 4));
}

TEST_F(RunCache, another_file_in_a_searched_directory_changes_nothing) {
  const auto app = build_app();
  (void)is_cached({app}, 1);
  write_text_file(dir_ / "new/output", "of the program itself");
  EXPECT_TRUE(is_cached({app}, 1));
  EXPECT_TRUE(is_cached({app}, 1));
}

TEST_F(RunCache, a_directory_with_another_hwcaps_level_is_noticed) {
  const auto app = build_app();
  (void)is_cached({app}, 1);
  library("old/glibc-hwcaps/x86-64-v2", "2");
  const auto bare = run({app}, options_);
  EXPECT_FALSE(is_cached({app}, bare.status));
}

TEST_F(RunCache, the_tunable_of_the_cpus_features_chooses_the_library_as_in_ld_so) {
  library("old/glibc-hwcaps/x86-64-v2", "2");
  library("old/glibc-hwcaps/x86-64-v3", "3");
  library("old/glibc-hwcaps/x86-64-v4", "4");
  const auto app = build_app();
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
  const auto app = build_app();
  (void)is_cached({app}, 1);
  ASSERT_EQ(entries().size(), 1U);
  const auto entry = entries()[0];
  const auto whole = value_or_throw(read_file(entry));
  for (const std::size_t cut : {std::size_t{0}, std::size_t{7}, whole.size() / 2}) {
    write_text_file(entry, whole.substr(0, cut), 0600);
    EXPECT_FALSE(is_cached({app}, 1)) << cut;
  }
  for (std::size_t at = 0; at < whole.size(); at += whole.size() / 7) {
    auto damaged = whole;
    damaged[at] = static_cast<char>(~damaged[at]);
    write_text_file(entry, damaged, 0600);
    EXPECT_FALSE(is_cached({app}, 1)) << at;
  }
  EXPECT_TRUE(is_cached({app}, 1));
  fs::permissions(runs(), fs::perms(0777));
  EXPECT_FALSE(is_cached({app}, 1));
  fs::permissions(runs(), fs::perms(0700));
  EXPECT_TRUE(is_cached({app}, 1));
  if (::geteuid() != 0) return;
  ASSERT_EQ(::chown(runs().c_str(), 1234, 1234), 0);
  EXPECT_FALSE(is_cached({app}, 1)) << "root opens no other user's";
  ASSERT_EQ(::chown(runs().c_str(), 0, 0), 0);
  ASSERT_EQ(::chown((dir_ / "cache").c_str(), 1234, 1234), 0);
  EXPECT_FALSE(is_cached({app}, 1)) << "another user could replace it";
}

TEST_F(RunCache, no_cache_is_no_reason_not_to_run) {
  const auto app = build_app();
  for (const char* cache : {"/proc/none", "/dev/null", "/sys"}) {
    options_.env.push_back(std::string("XDG_CACHE_HOME=") + cache);
    EXPECT_FALSE(is_cached({app}, 1)) << cache;
    options_.env.pop_back();
  }
  EXPECT_FALSE(is_cached({app}, 1, {"--no-cache"}));
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

TEST_F(RunCache, of_64_at_once_each_has_the_right_answer) {
  const auto app = build_app();
  std::vector<std::thread> all;
  std::atomic<int> good{0};
  for (int i = 0; i < 64; ++i)
    all.emplace_back([&] { good += run({fs_gen_, "-q", app}, options_).status == 1; });
  for (auto& one : all) one.join();
  EXPECT_EQ(good, 64);
  EXPECT_EQ(entries().size(), 1U);
  EXPECT_TRUE(is_cached({app}, 1));
}

TEST_F(RunCache, show_names_the_programs_and_clear_forgets_them) {
  const auto app = build_app();
  (void)is_cached({app}, 1);
  const auto shown = gen({"cache", "show"});
  EXPECT_THAT(shown.out, HasSubstr(app + "  1 programs"));
  EXPECT_THAT(shown.out, HasSubstr("direct, valid\n"));
  EXPECT_EQ(gen({"cache", "clear"}).status, 0);
  EXPECT_TRUE(entries().empty());
  EXPECT_FALSE(is_cached({app}, 1));
}

TEST_F(RunCache, what_a_run_loads_and_executes_is_guided_in_the_next) {
  const auto child = ElfFarm::build(dir_ / "child", {.libraries = 10});
  const auto opens = ElfFarm::build(dir_ / "opens", {.libraries = 10, .dlopen_roots = true});
  const auto script = write_text_file(
      dir_ / "script", "#!/bin/sh\n" + child.program + "\n" + opens.program + "\n", 0755);
  grow_old();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run_guided({script}, {"--no-learn"}).out, child.output + opens.output);
    EXPECT_EQ(report()["guided_processes"], 1) << "the shell";
  }
  EXPECT_EQ(run_guided({script}).out, child.output + opens.output);
  EXPECT_EQ(report()["guided_processes"], 1) << "it learns for the next";
  EXPECT_EQ(run_guided({script}).out, child.output + opens.output);
  EXPECT_EQ(report()["guided_processes"], 3);
  EXPECT_EQ(report()["unguided_processes"], 0);
  EXPECT_EQ(report()["probes_with"], 0);
  // A program that is rebuilt is found anew.
  fs::remove(child.libraries[3]);
  EXPECT_EQ(run_guided({script}).status, 0);
  EXPECT_THAT(run_guided({script}).err, HasSubstr(child.sonames[3]));
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
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 3});
  grow_old();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(gen({"-q", farm.program}).out, farm.output);
  EXPECT_EQ(run_guided({farm.program}).out, farm.output);
  EXPECT_TRUE(report()["guided"].get<bool>());
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
  const auto app = build_app();
  const auto fast = gen({"--explain", app});
  EXPECT_EQ(fast.status, 0) << fast.err;
  EXPECT_THAT(fast.out, HasSubstr("--fast /"));
  EXPECT_THAT(fast.out, HasSubstr("mount: no"));
  const Words slow{"--slow", dir_ / "old"};
  const auto told = gen({"--explain", slow[0], slow[1], app});
  EXPECT_THAT(told.out, HasSubstr("slow: --slow " + dir_ / "old"));
  EXPECT_THAT(told.out, HasSubstr("mount: yes"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(is_cached({app}, 1, slow)) << "--explain has resolved it";
    EXPECT_NE(report()["via"], "none");
    if (::access("/dev/fuse", R_OK | W_OK) == 0) {
      EXPECT_NE(report()["via"], "direct");
    }
  }
  library("new", "2");
  EXPECT_FALSE(is_cached({app}, 2, slow));
}

TEST_F(RunCache, one_rank_of_a_job_checks_slow_files_for_all_on_the_node) {
  const auto app = build_app();
  const Words slow{"--slow", dir_ / "old"};
  (void)is_cached({app}, 1, slow);
  ASSERT_TRUE(is_cached({app}, 1, slow));
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  for (const char* rank : {"SLURM_PROCID", "NO_RANK"}) {
    const auto ours =
        sh(std::string("strace -f -qq -e trace=newfstatat,stat -o trace sh -c 'for i in "
                       "0 1 2; do ") +
           rank + "=$i $FS_GEN -q --slow $DIR/old ./app; done; exit 7'");
    EXPECT_EQ(ours.status, 7) << ours.err;
    const auto calls = read_file(dir_ / "trace").value_or("");
    std::size_t looks = 0;
    for (auto at = calls.find("/new/\""); at != calls.npos; at = calls.find("/new/\"", at + 1))
      ++looks;
    EXPECT_EQ(looks, std::string(rank) == "NO_RANK" ? 3U : 1U);
  }
}

}  // namespace
}  // namespace heddle::test
