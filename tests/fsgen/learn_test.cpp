// SPDX-License-Identifier: MIT
// fs-gen --learn adds dlopened libraries and executed programs to the map of the next run.

#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

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

TEST_F(Learn, a_child_with_much_tls_is_guided_in_the_next_run) {
  // Its libraries are searched for in 40 directories; the last one has the TLS.
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 40});
  const auto lib = build_library(
      {dir_ / "farm/lib/0040/libtls.so",
       "static __thread char big[65536] __attribute__((tls_model(\"initial-exec\"))) = {5};\n"
       "int tls(void) { return big[0]; }",
       {"-Wl,-soname,libtls.so"}});
  Words flags = {"-Wl,--no-as-needed,--disable-new-dtags"};
  flags.insert(flags.end(), farm.libraries.begin(), farm.libraries.end());
  flags.push_back(lib);
  for (const auto& directory : farm.directories) flags.push_back("-Wl,-rpath," + directory);
  build_program({dir_ / "child", "int tls(void); int main(void) { return tls(); }", flags});
  const Words words = {"/bin/sh", "-c", "d=" + dir_.path() + "; $d/chil''d; exit $?"};
  EXPECT_EQ(learn(words).status, 5);
  EXPECT_EQ(run_learned(words).status, 5);
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

TEST_F(Learn, ambiguous_name_is_left_to_ld_so) {
  for (const char* name : {"a", "b"}) {
    build_library({dir_ / (std::string(name) + "/libp.so"),
                   "int p(void) { return " + std::to_string(name[0]) + "; }",
                   {"-Wl,-soname,libp-" + std::string(name)}});
    build_library({dir_ / ("libopen" + std::string(name) + ".so"),
                   "#include <dlfcn.h>\nint open_" + std::string(name) +
                       "(void) { void* h = dlopen(\"libp.so\", RTLD_NOW);\n"
                       "return h ? ((int (*)(void))dlsym(h, \"p\"))() : 0; }",
                   {"-Wl,-rpath," + (dir_ / name), "-Wl,--enable-new-dtags",
                    "-Wl,-soname,libopen" + std::string(name) + ".so"}});
  }
  // Two processes, so that neither has the other's library loaded.
  const auto app = build_program(
      {dir_ / "app",
       "#include <stdio.h>\n#include <string.h>\nint open_a(void), open_b(void);\n"
       "int main(int c, char** v) { putchar(v[1][0] == 'a' ? open_a() : open_b()); return 0; }",
       {dir_ / "libopena.so", dir_ / "libopenb.so", "-Wl,-rpath," + dir_.path()}});
  const std::vector<std::string> words{"/bin/sh", "-c", app + " a; " + app + " b"};
  EXPECT_EQ(learn(words).out, "ab");
  EXPECT_EQ(run_learned(words).out, "ab");
}

TEST_F(Learn, each_of_two_modules_gets_the_library_beside_it) {
  Words modules;
  for (const char* name : {"a", "b"}) {
    const auto dep = build_library({dir_ / (std::string(name) + "/libdep.so.1"),
                                    "int p(void) { return " + std::to_string(name[0]) + "; }",
                                    {"-Wl,-soname,libdep.so.1"}});
    modules.push_back(build_library({dir_ / (std::string(name) + "/mod.so"),
                                     "int p(void); int q(void) { return p(); }",
                                     {dep, "-Wl,--enable-new-dtags,-rpath,$ORIGIN/none:$ORIGIN"}}));
  }
  const auto app = build_program(
      {dir_ / "app",
       "#include <dlfcn.h>\nint main(int c, char** v) { void* h = dlopen(v[1], RTLD_NOW);\n"
       "return h ? ((int (*)(void))dlsym(h, \"q\"))() : 1; }"});
  EXPECT_EQ(learn({app, modules[0]}).status, 'a');
  for (const std::string way : {"best", "direct"}) {
    const Words options = {"--map", dir_ / "map", "--via", way};
    EXPECT_EQ(run_guided({app, modules[0]}, options).status, 'a');
    EXPECT_EQ(report()["probes_with"], 0U) << way;
    EXPECT_EQ(run_guided({app, modules[1]}, options).status, 'b') << way;
  }
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
