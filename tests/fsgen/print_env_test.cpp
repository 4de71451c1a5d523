// SPDX-License-Identifier: MIT
// fs-gen --print-env: scripts and modulefiles that use an existing mount.

#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

class PrintEnv : public FsGenFixture {
 protected:
  void SetUp() override {
    FsGenFixture::SetUp();
    if (IsSkipped()) return;
    fs_mount_ = staged_program("fs-mount");
    fs_resolve_ = staged_program("fs-resolve");
    farm_ = ElfFarm::build(dir_ / "farm", {.libraries = 30});
    fs::create_directory(mount());
    run_checked({fs_resolve_, "build", "-o", map(), farm_.program}, options_);
    const auto mounted = run({fs_mount_, map(), mount()}, options_);
    if (mounted.status != 0) HEDDLE_SKIP("cannot mount here: " + mounted.err);
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) {
      EXPECT_EQ(run({fs_mount_, "-u", mount()}).status, 0);
    }
    FsGenFixture::TearDown();
  }
  std::string map() const { return dir_ / "a.map"; }
  std::string mount() const { return dir_ / "it's a \"mount\"\n\\ [\xc3\xa4]!"; }
  /// Runs `script` by sh with $1 = fs-gen, $2 = the map, $3 = the mount, $4 = the program.
  std::vector<std::string> shell(const std::string& script) const {
    return {"/bin/sh", "-eu", "-c", script, "sh", fs_gen_, map(), mount(), farm_.program};
  }
  RunResult print(const std::string& shell) const {
    return run({fs_gen_, "--print-env", "--shell", shell, map(), mount()}, options_);
  }

  std::string fs_mount_, fs_resolve_;
  ElfFarm farm_;
  bool mounted_ = false;
};

TEST_F(PrintEnv, a_script_s_programs_start_without_a_failed_probe) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  const auto traced =
      strace_counts(shell("eval \"$(\"$1\" --print-env \"$2\" \"$3\")\"; exec \"$4\""), options_);
  EXPECT_EQ(traced.run.out, farm_.output) << traced.run.err;
  const auto& start = traced.start_of(farm_.program);
  EXPECT_EQ(start.failed, std::vector<std::string>{});
  EXPECT_GE(start.opened.size(), 30U);
}

TEST_F(PrintEnv, shell_that_uses_a_mount_can_unmount_it) {
  // sleep is not in the map, so it holds no file of the mount open.
  auto words = shell(
      "eval \"$(\"$1\" --print-env \"$2\" \"$3\")\"; \"$4\" >/dev/null; sleep 60 & late=$!\n"
      "until grep -q sleep /proc/$late/comm && grep -q libc /proc/$late/maps; do :; done\n"
      "rc=0; \"$5\" -u \"$3\" || rc=$?; kill $late; exit $rc");
  words.push_back(fs_mount_);
  const auto result = run(words, options_);
  EXPECT_EQ(result.status, 0) << result.err;
  mounted_ = result.status != 0;
}

TEST_F(PrintEnv, fs_gen_in_such_a_shell_neither_doubles_the_auditor_nor_is_guided_when_it_is_off) {
  const auto result =
      run(shell("eval \"$(\"$1\" --print-env \"$2\" \"$3\")\"\n"
                "LD_AUDIT=$LD_AUDIT:$LD_AUDIT \"$1\" -q --map \"$2\" sh -c 'echo \"$LD_AUDIT\"'\n"
                "HEDDLE=off \"$1\" sh -c 'echo \"$LD_AUDIT\" \"${HEDDLE_INDEX-none}\"'"),
          options_);
  EXPECT_EQ(result.out.find(':'), std::string::npos) << result.out;
  EXPECT_THAT(result.out, ::testing::EndsWith("/libheddle-audit.so\n none\n")) << result.err;
}

TEST_F(PrintEnv, repeated_eval_adds_the_auditor_once) {
  const auto result =
      run(shell("LD_AUDIT=; e=$(\"$1\" --print-env \"$2\" \"$3\"); eval \"$e\"; eval \"$e\";\n"
                "printf '%s\\n' \"$LD_AUDIT\"; LD_AUDIT=/none.so; eval \"$e\"\n"
                "printf '%s\\n' \"$LD_AUDIT\"; unset LD_AUDIT HEDDLE_INDEX"),
          options_);
  const auto library = result.out.substr(0, result.out.find('\n'));
  EXPECT_TRUE(library.ends_with("/libheddle-audit.so")) << result.err;
  EXPECT_EQ(library.find(':'), std::string::npos);
  EXPECT_EQ(result.out, library + "\n" + library + ":/none.so\n");
}

TEST_F(PrintEnv, modulefile_sets_the_same_variables) {
  if (!fs::exists("/usr/bin/tclsh")) HEDDLE_SKIP("tclsh is not installed");
  const auto script = write_text_file(dir_ / "module.tcl",
                                      "proc prepend-path {name value} {puts \"$name=$value\"}\n"
                                      "proc setenv {name value} {puts \"$name=$value\"}\n" +
                                          print("modulefile").out);
  const auto out =
      run({"/usr/bin/tclsh", "-encoding", "utf-8", script}, {.env = {"LC_ALL=C.UTF-8"}}).out;
  const auto json = nlohmann::json::parse(print("json").out);
  EXPECT_EQ(out, "LD_AUDIT=" + json["LD_AUDIT"].get<std::string>() +
                     "\nHEDDLE_INDEX=" + json["HEDDLE_INDEX"].get<std::string>() + "\n");
  EXPECT_EQ(json["HEDDLE_INDEX"], mount() + "/.heddle/index");
}

TEST_F(PrintEnv, directory_may_have_any_name) {
  const auto there = dir_ / "p\xff";
  fs::create_directory(there);
  run_checked({fs_mount_, map(), there}, options_);
  const auto result = run({fs_gen_, "--print-env", map(), there}, options_);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(there + "/.heddle/index"));
  run_checked({fs_mount_, "-u", there});
}

TEST_F(PrintEnv, directory_without_a_mount_of_the_map_is_refused) {
  const auto expect_refused = [&](const std::string& map, const std::string& directory, int status,
                                  const std::string& why) {
    const auto result = run({fs_gen_, "--print-env", map, directory}, options_);
    EXPECT_EQ(result.status, status) << result.err;
    EXPECT_NE(result.err.find(why), std::string::npos) << result.err;
    // A script ends there, too.
    const auto script = "eval \"$('" + fs_gen_ + "' --print-env \"$1\" \"$2\" 2>&-)\"; echo on";
    const auto ended = run({"/bin/sh", "-ec", script, "sh", map, directory}, options_);
    EXPECT_NE(ended.status, 0);
    EXPECT_EQ(ended.out, "");
    EXPECT_EQ(run({fs_gen_, "--print-env", "--shell", "json", map, directory}, options_).out, "");
  };
  expect_refused(map(), dir_.path(), 1, "no heddle mount is here");
  const auto other = dir_ / "other.map";
  run_checked({fs_resolve_, "build", "-o", other, "/bin/true"}, options_);
  expect_refused(other, mount(), 1, "it serves another map");
  expect_refused(map(), dir_ / "none", 3, "No such file");
  expect_refused(dir_ / "none.map", mount(), 3, "none.map");
  const auto dead = dir_ / "dead";
  fs::create_directory(dead);
  run_checked({fs_mount_, map(), dead}, options_);
  const auto stats = run_checked({fs_mount_, "--stats", "--json", dead}).out;
  ::kill(nlohmann::json::parse(stats)["supervisor_pid"], SIGKILL);
  ASSERT_TRUE(wait_until(10s, [&] { return run({fs_mount_, "--stats", dead}).status == 3; }));
  expect_refused(map(), dead, 1, "hint: its daemon has died: fs-mount -u DIR");
  run_checked({fs_mount_, "-u", dead});
  EXPECT_EQ(run({fs_gen_, "--print-env", map()}).status, 2);
  EXPECT_EQ(run({fs_gen_, "--print-env", map(), mount(), "more"}).status, 2);
  EXPECT_EQ(run({fs_gen_, "--shell", "sh", "/bin/true"}).status, 2);
}

}  // namespace
}  // namespace heddle::test
