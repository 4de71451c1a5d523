// SPDX-License-Identifier: MIT
// The audit library without fs-gen: guidance, missing or damaged input, other auditors.

#include "tests/audit/guided_world.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

/// Builds libraries and programs, and worlds that map them.
class Audit : public ::testing::Test {
 protected:
  TestDir dir_;

  std::string library(const std::string& name, const std::string& source) {
    return build_library(
        {dir_ / name, source, {"-Wl,-soname," + name.substr(name.rfind('/') + 1)}});
  }
  std::string program(const std::string& source, const std::vector<std::string>& flags = {}) {
    return build_program({dir_ / "app", source, flags});
  }
  /// A world that maps `app` with what it needs and `more`.
  GuidedWorld world(const std::string& app, const GuidedWorld::Libraries& more = {}) {
    GuidedWorld out(dir_ / "world");
    out.add_program(app, more);
    out.publish();
    return out;
  }
};

TEST_F(Audit, library_has_no_dependencies) {
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
  EXPECT_EQ(names, "la_activity la_objclose la_objopen la_objsearch la_preinit la_version ");
}

TEST_F(Audit, auditor_adds_no_system_call_per_library) {
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
  // ld.so makes ten calls a library: openat, read, fstat, five mmaps, close, and mprotect after
  // relocation; now and then an mmap for its malloc.
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

TEST_F(Audit, a_rebuilt_program_runs_unguided) {
  const std::string lib = library("lib/libx.so.1", "int x(void) { return 7; }");
  const std::string source = "int x(void); int main(void) { return x(); }";
  const std::vector<std::string> flags = {lib, "-Wl,-rpath," + (dir_ / "lib")};
  const std::string app = program(source, flags);
  const GuidedWorld w = world(app);
  EXPECT_EQ(w.run({app}).status, 7);
  EXPECT_EQ(w.counters().guided_processes, 1u);
  // Changed in place: the same inode, another mtime.
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, app.c_str(), times, 0), 0);
  EXPECT_EQ(w.run({app}).status, 7);
  fs::remove(app);
  program(source, flags);
  EXPECT_EQ(w.run({app}).status, 7);
  EXPECT_EQ(w.counters().guided_processes, 1u);
  EXPECT_EQ(w.counters().unguided_processes, 2u);
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
    // The other auditor's libc requests ld.so in its own namespace; that name is never guided.
    EXPECT_LE(w.counters().names_unknown, 1u);
  }
}

TEST_F(Audit, preloads_and_absolute_needs_are_guided) {
  const std::string preload = library("p/libpre.so", "int x(void) { return 9; }");
  const std::string bare = build_library({dir_ / "n/libnosoname.so", "int x(void) { return 7; }"});
  const std::string app = program("int x(void); int main(void) { return x(); }", {bare});
  const GuidedWorld w = world(app, {{"libpre.so", preload}});
  EXPECT_EQ(w.run({app}).status, 7);
  fs::rename(bare, bare + ".away");  // the library now comes from the flat directory
  EXPECT_EQ(w.run({app}).status, 7);
  EXPECT_EQ(w.run({app}, {"LD_PRELOAD=libpre.so"}).status, 9);
  EXPECT_EQ(w.run({app}, {"LD_PRELOAD=" + preload}).status, 9);
  EXPECT_EQ(w.counters().probes, 0u);
}

TEST_F(Audit, missing_or_damaged_index_means_unguided) {
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
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  std::string other = good;
  other[8] = 9;  // version
  std::vector<std::string> cases = {"",
                                    "=",
                                    "=/nonexistent",
                                    "=/",
                                    "=/dev/zero",
                                    "=" + (dir_ / "fifo"),
                                    "=" + write_text_file(dir_ / "other", other)};
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{39}, std::size_t{40},
                                 good.size() / 2, good.size() - 1})
    cases.push_back("=" +
                    write_text_file(dir_ / ("cut" + std::to_string(size)), good.substr(0, size)));
  for (const auto& index : cases) EXPECT_TRUE(unguided("HEDDLE_INDEX" + index)) << index;
  EXPECT_FALSE(unguided("X=1"));
  write_text_file(dir_ / "text", std::string(4096, 'x'));
  write_text_file(dir_ / "short", "HEDDLCT1");
  for (const std::string& path :
       {std::string("/nonexistent"), std::string("/dev/null"), dir_ / "text", dir_ / "short"})
    EXPECT_EQ(w.run({farm.program}, {"HEDDLE_COUNTERS=" + path}).out, farm.output) << path;
  EXPECT_EQ(value_or_throw(read_file(dir_ / "text")), std::string(4096, 'x'));
}

TEST_F(Audit, ready_time_is_recorded_for_the_requested_pid) {
  const ElfFarm farm = ElfFarm::build(dir_ / "farm", {.libraries = 5});
  const GuidedWorld w = world(farm.program);
  // A shell writes its pid into the page and execs the program.
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

TEST_F(Audit, program_ends_while_a_thread_opens_libraries) {
  const ElfFarm farm = ElfFarm::build(dir_ / "farm", {.libraries = 100});
  std::vector<std::string> flags = {"-pthread", "-Wl,--no-as-needed",
                                    "-Wl,-rpath," + farm.library_path};
  flags.insert(flags.end(), farm.libraries.begin(), farm.libraries.end());
  const auto plugin = library("plugin/libplugin.so", "int plugin;");
  const auto other = library("plugin/libother.so", "int other;");
  const auto app = program(
      "#include <dlfcn.h>\n#include <pthread.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
      "static char** paths; static void* work(void* a) { for (;;) { void* x = dlopen(paths[1], 2);"
      " void* y = dlopen(paths[2], 2); if (x) dlclose(x); if (y) dlclose(y); } return a; }\n"
      "int main(int c, char** v) { pthread_t t; paths = v; pthread_create(&t, 0, work, 0);\n"
      "pthread_create(&t, 0, work, 0); usleep(1000 + 100 * atoi(v[3])); exit(5); }",
      flags);
  const GuidedWorld w = world(app, {{plugin, plugin}, {other, other}});
  // In qemu-user one try takes as long as ten. Once, in some 10,000 tries there, ld.so ended one
  // with an error of its own (status 127).
  const int tries = std::getenv("HEDDLE_EMULATOR") ? 20 : 200;
  for (int i = 0; i < tries; ++i) {
    const RunResult result = w.run({app, plugin, other, std::to_string(i % 20)});
    ASSERT_EQ(result.status, 5) << i << ": " << result.err;
  }
}

TEST_F(Audit, program_without_proc_runs_unguided) {
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

}  // namespace
}  // namespace heddle::test
