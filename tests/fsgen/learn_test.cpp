// SPDX-License-Identifier: MIT
// fs-gen --learn adds dlopened libraries and executed programs to the map of the next run.

#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

class Learn : public FsGenFixture {
 protected:
  RunResult learn(const Words& app) const {
    return run_guided(app, {"--learn", "--out", dir_ / "map"});
  }
  RunResult run_learned(const Words& app) const { return run_guided(app, {"--map", dir_ / "map"}); }
};

TEST_F(Learn, executed_programs_are_guided_in_the_next_run) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 10});
  const auto script = write_text_file(
      dir_ / "script", "#!/bin/sh\nd=" + (dir_.path() + "/farm") + "\n$d/app\n", 0755);
  EXPECT_EQ(learn({script}).out, farm.output);
  EXPECT_EQ(run_learned({script}).out, farm.output);
  EXPECT_EQ(report()["guided_processes"], 2U);
  EXPECT_EQ(report()["unguided_processes"], 0U);
  EXPECT_EQ(report()["probes_with"], 0U);
}

TEST_F(Learn, program_with_another_environment_is_not_learned) {
  for (const char* name : {"a", "b"})
    build_library({dir_ / (std::string(name) + "/libx.so.1"),
                   "int x(void) { return " + std::to_string(name[0]) + "; }",
                   {"-Wl,-soname,libx.so.1"}});
  const auto child = build_program(
      {dir_ / "child",
       "int x(void); int main(void) { return x(); }",
       {dir_ / "a/libx.so.1", "-Wl,-rpath," + (dir_ / "a"), "-Wl,--enable-new-dtags"}});
  const auto script = write_text_file(
      dir_ / "script",
      "#!/bin/sh\nLD_LIBRARY_PATH=" + (dir_ / "b") + " " + dir_.path() + "/chil''d\n", 0755);
  EXPECT_EQ(learn({script}).status, 'b');
  EXPECT_EQ(run_learned({script}).status, 'b');
  EXPECT_EQ(run_learned({child}).status, 'a');
}

TEST_F(Learn, usage_errors_and_failures_are_reported) {
  EXPECT_EQ(gen({"--learn", "/bin/true"}).status, 2);
  EXPECT_EQ(gen({"--learn", "--map", "m", "--out", "o", "/bin/true"}).status, 2);
  const auto nowhere = gen({"-q", "--learn", "--out", "/proc/none/map", "/bin/sh", "-c", "exit 4"});
  EXPECT_EQ(nowhere.status, 3);  // before APP runs
  EXPECT_NE(nowhere.err.find("/proc/none/map"), std::string::npos) << nowhere.err;
  EXPECT_EQ(learn({"/bin/sh", "-c", "exit 5"}).status, 5);
  EXPECT_TRUE(fs::exists(dir_ / "map"));
}

TEST_F(Learn, garbage_in_the_log_is_harmless) {
  // The variable is inherited: any process of the run can write to the log.
  const auto ours =
      learn({"/bin/sh", "-c", "head -c 100000 /dev/urandom >> \"$HEDDLE_LEARN\"; /bin/true"});
  EXPECT_EQ(ours.status, 0) << ours.err;
  EXPECT_EQ(run_learned({"/bin/sh", "-c", "exit 6"}).status, 6);
}

}  // namespace
}  // namespace heddle::test
