// SPDX-License-Identifier: MIT
//
// What the audit library does for programs, and where it has nothing to go by, or no right to.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/fd.hpp"
#include "tests/audit/guided_world.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

/// Libraries and programs of one's own, and worlds that map them.
class Audit : public ::testing::Test {
 protected:
  TestDir dir_;

  std::string library(const std::string& name, const std::string& source,
                      std::vector<std::string> flags = {}, const std::string& language = "c") {
    const std::string file = name.substr(name.rfind('/') + 1);
    flags.push_back("-Wl,-soname," + file);
    return build_library({dir_ / name, source, flags, language});
  }
  std::string program(const std::string& source, std::vector<std::string> flags = {},
                      const std::string& language = "c") {
    return build_program({dir_ / "app", source, flags, language});
  }
  /// A world that maps `app` with what it needs and `more`.
  GuidedWorld world(const std::string& app, const GuidedWorld::Libraries& more = {}) {
    GuidedWorld out(dir_ / "world");
    out.add_program(app, more);
    out.publish();
    return out;
  }
};

TEST_F(Audit, the_library_needs_nothing) {
  const std::string dynamic = run_checked({"readelf", "-dW", audit_library()}).out;
  EXPECT_EQ(dynamic.find("NEEDED"), std::string::npos) << dynamic;
  const std::string segments = run_checked({"readelf", "-lW", audit_library()}).out;
  EXPECT_EQ(segments.find("TLS"), std::string::npos) << segments;
  const std::string relocations = run_checked({"readelf", "-rW", audit_library()}).out;
  EXPECT_EQ(relocations.find("JUMP"), std::string::npos) << relocations;
  EXPECT_EQ(relocations.find("GLOB_DAT"), std::string::npos) << relocations;
  const std::string symbols = run_checked({"nm", "-D", "--format=posix", audit_library()}).out;
  std::string names;
  for (std::size_t at = 0; at < symbols.size(); at = symbols.find('\n', at) + 1)
    names += symbols.substr(at, symbols.find(' ', at) - at) + " ";
  EXPECT_EQ(names, "la_activity la_objopen la_objsearch la_preinit la_version ");
}

struct FarmCase {
  FarmShape shape;
  FarmTag tag;
  std::size_t libraries;
  const char* name;
};
class AuditFarm : public ::testing::TestWithParam<FarmCase> {};

TEST_P(AuditFarm, starts_without_one_failed_call) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  TestDir dir;
  const FarmCase& param = GetParam();
  const ElfFarm farm = ElfFarm::build(
      dir / "farm", {.libraries = param.libraries, .shape = param.shape, .tag = param.tag});
  std::vector<std::string> path;
  if (param.tag == FarmTag::none) path = {"LD_LIBRARY_PATH=" + farm.library_path};
  GuidedWorld world(dir / "world");
  world.add_program(farm.program, {}, path);
  world.publish();
  const StraceResult result = world.strace({farm.program}, path);
  EXPECT_EQ(result.run.status, 0) << result.run.err;
  EXPECT_EQ(result.run.out, farm.output);
  const ProgramStart& start = result.start_of("/app");
  EXPECT_EQ(start.failed, std::vector<std::string>{});
  EXPECT_GE(start.opened.size(), param.libraries + 1);
  const Counters counters = world.counters();
  EXPECT_EQ(counters.guided_processes, 1u);
  EXPECT_EQ(counters.probes, 0u);
  EXPECT_EQ(counters.names_unknown, 0u);
  EXPECT_EQ(counters.names_guided, param.libraries + 1);
}

INSTANTIATE_TEST_SUITE_P(
    All, AuditFarm,
    ::testing::Values(FarmCase{FarmShape::star, FarmTag::rpath, 80, "star_rpath"},
                      FarmCase{FarmShape::chain, FarmTag::rpath, 80, "chain_rpath"},
                      FarmCase{FarmShape::random, FarmTag::rpath, 300, "random_rpath"},
                      FarmCase{FarmShape::star, FarmTag::runpath, 80, "star_runpath"},
                      FarmCase{FarmShape::chain, FarmTag::runpath, 80, "chain_runpath"},
                      FarmCase{FarmShape::random, FarmTag::runpath, 80, "random_runpath"},
                      FarmCase{FarmShape::random, FarmTag::none, 50, "random_library_path"},
                      FarmCase{FarmShape::random, FarmTag::absolute, 50, "random_absolute"}),
    [](const auto& param_info) { return param_info.param.name; });

TEST_F(Audit, it_makes_no_system_call_of_its_own_per_library) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  const auto calls = [&](std::size_t libraries) {
    const std::string name = std::to_string(libraries);
    const ElfFarm farm = ElfFarm::build(dir_ / ("farm" + name), {.libraries = libraries});
    GuidedWorld w(dir_ / ("world" + name));
    w.add_program(farm.program);
    w.publish();
    std::vector<std::string> argv = {"strace", "-o", dir_ / "log", "/usr/bin/env"};
    for (const std::string& entry : w.env()) argv.push_back(entry);
    argv.push_back(farm.program);
    run_checked(argv);
    const std::string log = value_or_throw(read_file(dir_ / "log"));
    return std::count(log.begin(), log.end(), '\n');
  };
  // ld.so's own are ten: openat, read, fstat, five mmaps, close, and mprotect after relocation; and
  // now and then an mmap for its malloc.
  EXPECT_LT(calls(30) - calls(10), 20 * 11);
}

TEST_F(Audit, dlopen_by_soname_and_by_original_path_is_guided) {
  const std::string lib = library("lib/libx.so.1", "int x(void) { return 7; }");
  const std::string app = program(
      "#include <dlfcn.h>\n#include <stdio.h>\n"
      "int main(int c, char** v) { void* a = dlopen(\"libx.so.1\", RTLD_NOW);\n"
      "void* b = dlopen(v[1], RTLD_NOW); if (!a || !b) { puts(dlerror()); return 1; }\n"
      "printf(\"%d %d\\n\", a == b, ((int (*)(void))dlsym(a, \"x\"))()); return 0; }");
  const GuidedWorld w = world(app, {{"libx.so.1", lib}});
  RunResult result = w.run({app, lib});
  EXPECT_EQ(result.out, "1 7\n") << result.err;
  EXPECT_EQ(w.counters().probes, 0u);
  if (!strace_works()) return;
  const StraceResult traced = w.strace({app, lib});
  EXPECT_EQ(traced.start_of("/app").failed_later, std::vector<std::string>{});
}

TEST_F(Audit, names_the_index_does_not_know_are_left_to_the_loader) {
  library("lib/libx.so.1", "int x(void) { return 7; }");
  const std::string app = program(
      "#include <dlfcn.h>\n#include <stdio.h>\n"
      "int main(int c, char** v) { int i; for (i = 1; i < c; ++i) { void* h = dlopen(v[i], "
      "RTLD_NOW);\n"
      "puts(h ? \"found\" : dlerror()); } return 0; }",
      {"-Wl,-rpath," + (dir_ / "lib")});
  const GuidedWorld w = world(app);
  const std::vector<std::string> argv = {
      app, "libx.so.1", "no.so", "./no.so", "$ORIGIN/lib/libx.so.1", ""};
  EXPECT_EQ(w.run(argv).out, run(argv).out);
  EXPECT_GE(w.counters().names_unknown, 4u);
  EXPECT_GE(w.counters().probes, 1u);
}

TEST_F(Audit, dlmopen_works_with_the_loader_s_names_untouched) {
  const std::string lib =
      library("lib/libx.so.1", "#include <stdio.h>\nint x(void) { return puts(\"x\"); }");
  const std::string app = program(
      "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n"
      "int main(void) { void* a = dlmopen(LM_ID_NEWLM, \"libx.so.1\", RTLD_NOW);\n"
      "if (!a) { puts(dlerror()); return 1; } ((int (*)(void))dlsym(a, \"x\"))();\n"
      "void* b = dlmopen(LM_ID_NEWLM, \"ld-linux-x86-64.so.2\", RTLD_NOW);\n"
      "puts(b ? \"ld\" : dlerror()); return 0; }");
  const GuidedWorld w =
      world(app, {{"libx.so.1", lib}, {"ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"}});
  const RunResult result = w.run({app});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out.substr(result.out.find("ld")), "ld\n") << result.out;
}

TEST_F(Audit, a_rebuilt_program_runs_unguided) {
  const std::string lib = library("lib/libx.so.1", "int x(void) { return 7; }");
  const std::string source = "int x(void); int main(void) { return x(); }";
  const std::vector<std::string> flags = {lib, "-Wl,-rpath," + (dir_ / "lib")};
  const std::string app = program(source, flags);
  const GuidedWorld w = world(app);
  EXPECT_EQ(w.run({app}).status, 7);
  EXPECT_EQ(w.counters().guided_processes, 1u);
  // In place: the same inode, another mtime.
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, app.c_str(), times, 0), 0);
  EXPECT_EQ(w.run({app}).status, 7);
  fs::remove(app);
  program(source, flags);
  EXPECT_EQ(w.run({app}).status, 7);
  EXPECT_EQ(w.counters().guided_processes, 1u);
  EXPECT_EQ(w.counters().unguided_processes, 2u);
}

TEST_F(Audit, two_programs_get_each_its_own_file_under_one_soname) {
  GuidedWorld w(dir_ / "world");
  for (const char* name : {"one", "two"}) {
    const std::string lib = library(std::string(name) + "/libx.so.1",
                                    "int x(void) { return " + std::to_string(name[0]) + "; }");
    w.add_program(build_program({dir_ / (std::string("app_") + name),
                                 "int x(void); int main(void) { return x(); }",
                                 {lib, "-Wl,-rpath," + (dir_ / name)}}));
  }
  w.publish();
  EXPECT_EQ(w.run({dir_ / "app_one"}).status, 'o');
  EXPECT_EQ(w.run({dir_ / "app_two"}).status, 't');
  EXPECT_EQ(w.counters().guided_processes, 2u);
  EXPECT_EQ(w.counters().probes, 0u);
}

TEST_F(Audit, another_auditor_works_on_either_side) {
  const std::string other =
      library("other/other.so",
              "#include <link.h>\n#include <unistd.h>\n"
              "unsigned la_version(unsigned v) { write(2, \"other\\n\", 6); return v; }\n"
              "char* la_objsearch(const char* n, uintptr_t* c, unsigned f) { return (char*)n; }");
  const ElfFarm farm = ElfFarm::build(dir_ / "farm", {.libraries = 20});
  GuidedWorld w = world(farm.program);
  for (const std::string& list : {audit_library() + ":" + other, other + ":" + audit_library(),
                                  ":" + audit_library() + "::" + other}) {
    w.reset_counters();
    const RunResult result = w.run({farm.program}, {"LD_AUDIT=" + list});
    EXPECT_EQ(result.out, farm.output) << list;
    EXPECT_EQ(result.err, "other\n");
    EXPECT_EQ(w.counters().guided_processes, 1u);
    EXPECT_GE(w.counters().names_guided, 21u);
  }
}

TEST_F(Audit, preloads_and_absolute_needs_are_guided) {
  const std::string preload = library("p/libpre.so", "int x(void) { return 9; }");
  const std::string bare = build_library({dir_ / "n/libnosoname.so", "int x(void) { return 7; }"});
  const std::string app = program("int x(void); int main(void) { return x(); }", {bare});
  const GuidedWorld w = world(app, {{"libpre.so", preload}});
  EXPECT_EQ(w.run({app}).status, 7);
  fs::rename(bare, bare + ".away");  // so it must come from the flat directory
  EXPECT_EQ(w.run({app}).status, 7);
  EXPECT_EQ(w.run({app}, {"LD_PRELOAD=libpre.so"}).status, 9);
  EXPECT_EQ(w.run({app}, {"LD_PRELOAD=" + preload}).status, 9);
  EXPECT_EQ(w.counters().probes, 0u);
}

TEST_F(Audit, children_by_exec_and_posix_spawn_are_guided_when_mapped) {
  const ElfFarm farm = ElfFarm::build(dir_ / "farm", {.libraries = 10});
  const std::string app = program(
      "#define _GNU_SOURCE\n#include <spawn.h>\n#include <string.h>\n#include "
      "<sys/wait.h>\n#include <unistd.h>\n"
      "extern char** environ;\n"
      "int main(int c, char** v) { if (!strcmp(v[1], \"execl\")) execl(v[2], v[2], (char*)0);\n"
      "if (!strcmp(v[1], \"execvp\")) { char* a[] = {v[2], 0}; execvp(v[2], a); }\n"
      "pid_t p; int s; char* a[] = {v[2], 0}; posix_spawn(&p, v[2], 0, 0, a, environ);\n"
      "waitpid(p, &s, 0); return WEXITSTATUS(s); }");
  const GuidedWorld w = world(farm.program);
  for (const char* how : {"execl", "execvp", "posix_spawn"}) {
    w.reset_counters();
    EXPECT_EQ(w.run({app, how, farm.program}).out, farm.output) << how;
    EXPECT_EQ(w.counters().guided_processes, 1u);
    EXPECT_EQ(w.counters().unguided_processes, 1u);
    EXPECT_EQ(w.counters().probes, 0u);
  }
}

TEST_F(Audit, no_index_or_a_damaged_one_means_unguided_and_any_counters_do_no_harm) {
  const ElfFarm farm = ElfFarm::build(dir_ / "farm", {.libraries = 5});
  const GuidedWorld w = world(farm.program);
  const std::string good = value_or_throw(read_file(w.index_path()));
  const auto unguided = [&](const std::string& index) {
    w.reset_counters();
    const RunResult result = w.run({farm.program}, {index});
    EXPECT_EQ(result.out, farm.output) << index;
    EXPECT_EQ(result.err, "") << index;
    return w.counters().unguided_processes == 1 && w.counters().guided_processes == 0;
  };
  EXPECT_TRUE(unguided("HEDDLE_INDEX"));
  EXPECT_TRUE(unguided("HEDDLE_INDEX="));
  EXPECT_TRUE(unguided("HEDDLE_INDEX=/nonexistent"));
  EXPECT_TRUE(unguided("HEDDLE_INDEX=/"));
  EXPECT_TRUE(unguided("HEDDLE_INDEX=/dev/zero"));
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  EXPECT_TRUE(unguided("HEDDLE_INDEX=" + (dir_ / "fifo")));
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{39}, std::size_t{40},
                                 good.size() / 2, good.size() - 1}) {
    write_text_file(dir_ / "cut", good.substr(0, size));
    EXPECT_TRUE(unguided("HEDDLE_INDEX=" + (dir_ / "cut"))) << size;
  }
  std::string other = good;
  other[8] = 9;  // version
  write_text_file(dir_ / "other", other);
  EXPECT_TRUE(unguided("HEDDLE_INDEX=" + (dir_ / "other")));
  EXPECT_FALSE(unguided("X=1"));
  write_text_file(dir_ / "text", std::string(4096, 'x'));
  write_text_file(dir_ / "short", "HEDDLCT1");
  for (const std::string& path :
       {std::string("/nonexistent"), std::string("/dev/null"), dir_ / "text", dir_ / "short"})
    EXPECT_EQ(w.run({farm.program}, {"HEDDLE_COUNTERS=" + path}).out, farm.output) << path;
  EXPECT_EQ(value_or_throw(read_file(dir_ / "text")), std::string(4096, 'x'));
}

TEST_F(Audit, the_moment_of_readiness_is_told_for_the_program_asked_about) {
  const ElfFarm farm = ElfFarm::build(dir_ / "farm", {.libraries = 5});
  const GuidedWorld w = world(farm.program);
  // A shell writes its pid into the page, and execs the program under it.
  std::string script =
      "perl -e 'open F, \"+<\", $ARGV[0]; seek F, 56, 0; print F pack(\"Q\", $ARGV[1])' \"$0\" "
      "$$; ";
  for (const std::string& entry : w.env()) script += entry + " ";
  const RunResult result =
      run({"/bin/sh", "-c", script + "exec \"$1\"", w.counters_path(), farm.program});
  EXPECT_EQ(result.out, farm.output) << result.err;
  EXPECT_NE(w.counters().app_pid, 0u);
  EXPECT_NE(w.counters().ready_ns, 0u);
}

TEST_F(Audit, no_proc_means_unguided) {
  if (::geteuid() != 0) HEDDLE_SKIP("unmounting /proc needs root");
  const ElfFarm farm = ElfFarm::build(dir_ / "farm", {.libraries = 5});
  const GuidedWorld w = world(farm.program);
  std::vector<std::string> argv = {
      "unshare", "--mount", "sh", "-c", "mount -t tmpfs none /proc && exec env \"$@\"", "sh"};
  for (const std::string& entry : w.env()) argv.push_back(entry);
  argv.push_back(farm.program);
  const RunResult result = run(argv);
  if (result.status == 1 || result.status == 32) HEDDLE_SKIP("no right to mount: " + result.err);
  EXPECT_EQ(result.out, farm.output) << result.err;
  EXPECT_EQ(w.counters().unguided_processes, 1u);
}

TEST_F(Audit, a_setuid_program_ignores_it) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to make a setuid program of another user");
  const std::string app =
      program("#include <stdio.h>\nint main(void) { puts(\"plain\"); return 0; }");
  const GuidedWorld w = world(app);
  ASSERT_EQ(::chown(app.c_str(), 1, 1), 0);
  ASSERT_EQ(::chmod(app.c_str(), 04755), 0);
  for (fs::path p = dir_.path(); p != "/" && p != "/tmp"; p = p.parent_path())
    fs::permissions(p, fs::perms(0755), fs::perm_options::add);
  const RunResult result = w.run({app});
  EXPECT_EQ(result.out, "plain\n");
  EXPECT_EQ(w.counters().guided_processes + w.counters().unguided_processes, 0u);
}

TEST_F(Audit, names_with_any_bytes_are_guided) {
  const std::string odd = "odd dir\t\n\xc3\xa4";
  const std::string lib =
      build_library({dir_ / (odd + "/lib x\n.so"), "int x(void) { return 7; }"});
  const std::string app = program(
      "#include <dlfcn.h>\nint main(int c, char** v) { void* h = dlopen(v[1], RTLD_NOW);\n"
      "return h ? ((int (*)(void))dlsym(h, \"x\"))() : 1; }");
  GuidedWorld w(dir_ / ("world " + odd));
  w.add_program(app, {{"lib x\n.so", lib}});
  w.publish();
  EXPECT_EQ(w.run({app, "lib x\n.so"}).status, 7);
  EXPECT_EQ(w.run({app, lib}).status, 7);
  EXPECT_EQ(w.counters().probes, 0u);
}

}  // namespace
}  // namespace heddle::test
