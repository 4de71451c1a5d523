// SPDX-License-Identifier: MIT
//
// Where the audit library has nothing to go by, or no right to.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/fd.hpp"
#include "tests/audit/audit_fixture.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

TEST_F(Audit, no_index_or_a_damaged_one_means_unguided) {
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
}

TEST_F(Audit, counters_of_any_kind_do_no_harm) {
  const ElfFarm farm = ElfFarm::build(dir_ / "farm", {.libraries = 5});
  const GuidedWorld w = world(farm.program);
  write_text_file(dir_ / "text", std::string(4096, 'x'));
  write_text_file(dir_ / "short", "HEDDLCT1");
  for (const std::string& path : {std::string("/nonexistent"), std::string("/dev/null"),
                                  dir_ / "text", dir_ / "short", std::string()}) {
    const RunResult result = w.run({farm.program}, {"HEDDLE_COUNTERS=" + path});
    EXPECT_EQ(result.out, farm.output) << path;
  }
  EXPECT_EQ(value_or_throw(read_file(dir_ / "text")), std::string(4096, 'x'));
  EXPECT_EQ(value_or_throw(read_file(dir_ / "short")), "HEDDLCT1");
}

TEST_F(Audit, the_moment_of_readiness_is_told_for_the_program_asked_about) {
  const ElfFarm farm = ElfFarm::build(dir_ / "farm", {.libraries = 5});
  const GuidedWorld w = world(farm.program);
  // A shell execs the program under its own pid, which it first writes into the page.
  const std::string script =
      "perl -e 'open F, \"+<\", $ARGV[0]; seek F, 56, 0; print F pack(\"Q\", $ARGV[1])' \"$0\" $$; "
      "exec \"$1\"";
  RunOptions options;
  std::string env;
  const RunResult result =
      run({"/bin/sh", "-c",
           script.substr(0, script.find("; exec")) + "; LD_AUDIT=" + audit_library() +
               " HEDDLE_INDEX=" + w.index_path() + " HEDDLE_COUNTERS=" + w.counters_path() +
               " exec \"$1\"",
           w.counters_path(), farm.program});
  EXPECT_EQ(result.out, farm.output) << result.err;
  EXPECT_NE(w.counters().app_pid, 0u);
  EXPECT_NE(w.counters().ready_ns, 0u);
}

TEST_F(Audit, no_proc_means_unguided) {
  if (::geteuid() != 0) HEDDLE_SKIP("unmounting /proc needs root");
  const ElfFarm farm = ElfFarm::build(dir_ / "farm", {.libraries = 5});
  const GuidedWorld w = world(farm.program);
  std::vector<std::string> argv = {"unshare",
                                   "--mount",
                                   "--propagation",
                                   "private",
                                   "/bin/sh",
                                   "-c",
                                   "mount -t tmpfs none /proc && shift && exec env \"$@\"",
                                   "sh",
                                   "-"};
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

TEST_F(Audit, sixty_four_processes_at_once_are_all_counted) {
  const ElfFarm farm = ElfFarm::build(dir_ / "farm", {.libraries = 20});
  const GuidedWorld w = world(farm.program);
  const RunResult result =
      w.run({"/bin/sh", "-c", "for i in $(seq 64); do \"$0\" & done; wait", farm.program});
  std::string expected;
  for (int i = 0; i < 64; ++i) expected += farm.output;
  EXPECT_EQ(result.out, expected);
  EXPECT_EQ(w.counters().guided_processes, 64u);
  EXPECT_EQ(w.counters().names_guided, 64u * 21);
}

}  // namespace
}  // namespace heddle::test
