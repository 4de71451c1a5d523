// SPDX-License-Identifier: MIT
// libheddle-launch, and the examples of docs/tools.

#include "tests/session/local_holds.hpp"
#include "tests/session/sessions.hpp"

namespace heddle::test {
namespace {

TEST_F(Sessions, examples_are_compiled_and_do_what_the_manual_says) {
  const auto stage = fs::path(fs_launch_).parent_path().parent_path().string();
  const auto source = std::string(std::getenv("HEDDLE_SOURCE")) + "/docs/tools/";
  for (const std::string name : {"1_hold", "2_stage", "3_daemon", "4_signal", "5_stacks"})
    run_checked({"sh", "-c",
                 "cc -std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -o " + dir_ / name +
                     " " + source + name + ".c $(PKG_CONFIG_PATH=" + stage +
                     "/lib/pkgconfig pkg-config --cflags --libs heddle-launch) -Wl,-rpath," +
                     stage + "/lib"});
  build_program({dir_ / "app",
                 "#include <unistd.h>\n#include <stdlib.h>\n"
                 "__attribute__((noinline)) void compute(void) { sleep(988); _exit(1); }\n"
                 "__attribute__((noinline)) void wait_for_others(void) { sleep(988); _exit(1); }\n"
                 "int main(void) { atoi(getenv(\"SLURM_PROCID\")) == 3 ? compute() : "
                 "wait_for_others(); return 0; }",
                 {"-g", "-O0"}});
  const auto hold = cluster_->sh("./1_hold srun -Q -N4 -n8 hostname");
  EXPECT_EQ(hold.status, 0) << hold.err;
  auto lines = lines_of(hold.out);
  ASSERT_EQ(lines.size(), 16U) << hold.out;
  for (int rank = 0; rank < 8; ++rank)
    EXPECT_EQ(lines[rank],
              "rank " + std::to_string(rank) + " is on n" + std::to_string(1 + rank / 2));
  build_program({dir_ / "hello", "#include <stdio.h>\nint main(void){puts(\"hello\");return 0;}"});
  const auto staged = cluster_->sh("salloc -Q -N4 ./2_stage ./hello");
  EXPECT_EQ(staged.out, "some bytes sent\nhello\nhello\nhello\nhello\n") << staged.err;
  const auto step = step_of("./app");
  EXPECT_TRUE(wait_until(10s, [&] { return cluster_->on(4, "pgrep -cx app").out == "2\n"; }));
  const auto daemon = cluster_->sh("./3_daemon " + step);
  EXPECT_EQ(daemon.out, "n1: 2 ranks: 0 1\nn2: 2 ranks: 2 3\nn3: 2 ranks: 4 5\nn4: 2 ranks: 6 7\n")
      << daemon.err;
  const auto alive = cluster_->sh("./4_signal " + step + " 18");
  EXPECT_EQ(alive.out, "8 ranks were alive, 8 got signal 18\n") << alive.err;
  if (run({"sh", "-c", "command -v gdb"}).status == 0) {
    const auto stacks = cluster_->sh("./5_stacks " + step);
    EXPECT_THAT(stacks.out, StartsWith("8 ranks: main\n")) << stacks.err;
    EXPECT_THAT(stacks.out, HasSubstr("7 ranks: main > wait_for_others"));
    EXPECT_THAT(stacks.out, HasSubstr("1 ranks: main > compute"));
  }
  const auto none = cluster_->sh("./4_signal 99.9 18");
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("is no running step"));
  free_all();
}

TEST_F(Sessions, library_launches_where_it_is_told_and_attaches_to_what_each_launcher_holds) {
  const auto stage = fs::path(fs_launch_).parent_path().parent_path().string();
  write_text_file(dir_ / "tool.c", R"(
#include <heddle_launch.h>
#include <stdio.h>
#include <stdlib.h>
#define TRY(call) if (call) return fprintf(stderr, "%s: %s\n", #call, heddle_error()), 1
int main(int argc, char** argv) {
  heddle_job* job;
  heddle_session *session, *other;
  struct heddle_rank* ranks;
  size_t count;
  int status;
  char *here, *there;
  const char* word[] = {"WORD=given", "HOME=/given", NULL};
  const char* wrong[] = {"WORD", NULL};
  const char* rsh[] = {"--rsh", argv[1], "--nodes", "n1,n3", NULL};
  const char* daemon[] = {"sh", "-c", "echo $PWD ${HEDDLE_SESSION_STEP:+step}", NULL};
  const char* const* words = (const char* const*)argv + 2;
  if (!heddle_job_launch_in(NULL, wrong, words, NULL, NULL, &job)) return 2;
  printf("%s\n", heddle_error());
  if (!heddle_job_launch_in("not-there", NULL, words, NULL, NULL, &job)) return 2;
  if (!heddle_session_open("not-there", &session)) return 2;
  TRY(heddle_job_launch_in("sub", word, words, "exec", NULL, &job));
  if (heddle_job_wait_held(job, 15)) return heddle_job_signal(job, 9), 9;
  TRY(heddle_job_session(job, argv[1][0] ? rsh : NULL, &session));
  TRY(heddle_session_ranks(session, &ranks, &count));
  heddle_ranks_free(ranks);
  printf("%zu ranks\n", count);
  TRY(heddle_session_open(heddle_session_id(session), &other));
  TRY(heddle_session_set_directory(other, "/"));
  TRY(heddle_session_run(other, daemon, NULL, &there, &status));
  heddle_session_close(other);
  TRY(heddle_session_run(session, daemon, NULL, &here, &status));
  printf("%s%s", there, here);
  fflush(stdout);
  TRY(heddle_session_destroy(session));
  TRY(heddle_job_release(job));
  TRY(heddle_job_wait(job, &status));
  heddle_job_free(job);
  free(here);
  free(there);
  return status;
}
)");
  run_checked({"sh", "-c",
               "cd " + dir_.path() + " && mkdir sub && cc -Wall -Werror -o tool tool.c $(" +
                   "PKG_CONFIG_PATH=" + stage +
                   "/lib/pkgconfig pkg-config --cflags --libs heddle-launch) -Wl,-rpath," + stage +
                   "/lib"});
  const std::string rank = " sh -c 'echo $PWD $WORD $HOME'";
  for (const auto& launcher : Strings{"srun -Q -w n1,n3 -N2 -n4"} + launchers_by_rsh()) {
    const bool is_slurm = launcher.starts_with("srun");
    RunResult did;
    for (int attempt = 0; attempt == 0 || (attempt < 4 && did.status == 9); ++attempt)
      did = cluster_->sh("./tool '" + (is_slurm ? "" : cluster_->rsh()) + "' " + launcher + rank);
    EXPECT_EQ(did.status, 0) << launcher << did.err;
    auto lines = lines_of(did.out);
    ASSERT_EQ(lines.size(), 10U) << launcher << did.out << did.err;
    EXPECT_EQ(lines[0], "WORD: is not NAME=VALUE");
    EXPECT_EQ(lines[1], "4 ranks");
    EXPECT_EQ(Strings(lines.begin() + 2, lines.begin() + 6),
              (Strings{"/ step", "/ step", dir_.path() + " step", dir_.path() + " step"}));
    for (int i = 6; i < 10; ++i) {
      // The other launchers forward no variables to nodes by a remote shell.
      if (is_slurm)
        EXPECT_EQ(lines[i], dir_ / "sub given /given");
      else
        EXPECT_THAT(lines[i], StartsWith(dir_ / "sub")) << launcher;
    }
  }
}

TEST_F(Hold, library_stages_each_kind_and_signals_its_launcher) {
  const auto stage = fs::path(fs_launch_).parent_path().parent_path().string();
  const auto library = [&](const std::string& path, const std::string& body,
                           const Strings& options) {
    return build_library({dir_ / path, body,
                          options + Strings{"-Wl,-soname," + fs::path(path).filename().string()}});
  };
  const auto word = library("libs/libword.so.1", "int word(void) { return 42; }", {});
  (void)library("other/libword.so.1", "int word(void) { return 41; }", {});
  const auto use = library("libs/libuse.so.1", "int word(void);\nint use(void) { return word(); }",
                           {word, "-Wl,-rpath," + dir_ / "libs"});
  (void)library("lost/liblost.so.1", "int word(void);\nint use(void) { return word(); }", {word});
  build_program({dir_ / "user",
                 "int use(void);\nint main(void) { return use(); }",
                 {use, "-Wl,-rpath-link," + dir_ / "libs"}});
  run_checked({"sh", "-c",
               "cd " + dir_.path() + " && mkdir to d && echo content >file && echo hidden >d/.x"});
  write_text_file(dir_ / "tool.c", R"(
#include <heddle_launch.h>
#include <stdio.h>
#include <stdlib.h>
#define TRY(call) if (call) return fprintf(stderr, "%s: %s\n", #call, heddle_error()), 1
#define FAILS(call) if (!(call)) return fprintf(stderr, "%s succeeded\n", #call), 1; puts(heddle_error())
int main(int argc, char** argv) {
  heddle_session* session;
  heddle_job* job;
  unsigned long long bytes;
  size_t count;
  int status;
  char *text, *step;
  const char* options[] = {"--local", "--to", "to", "--ranks", argv[1], NULL};
  const char* user[] = {"./user", NULL};
  const char* files[] = {"sh", "-c", "cat $HEDDLE_SESSION_DIR/files/file $HEDDLE_SESSION_DIR/lib/d/.x; echo $K", NULL};
  const char* environment[] = {"K=v w", NULL};
  const char* sleeping[] = {"sleep", "9886", NULL};
  FAILS(heddle_session_create(NULL, options, &session));
  options[2] = argv[2];
  TRY(heddle_session_create(NULL, options, &session));
  TRY(heddle_session_add_file(session, "file"));
  TRY(heddle_session_add_directory(session, "d"));
  TRY(heddle_session_add_library(session, "libs/libuse.so.1"));
  FAILS(heddle_session_add_library(session, "lost/liblost.so.1"));
  FAILS(heddle_session_add_library(session, "other/libword.so.1"));
  TRY(heddle_session_ship(session, &bytes));
  TRY(bytes == 0);
  TRY(heddle_session_ship(session, &bytes));
  TRY(bytes != 0);
  TRY(rename("libs", "gone"));
  TRY(heddle_session_run(session, user, NULL, &text, &status));
  printf("%d\n", status);
  TRY(heddle_session_run(session, files, environment, &text, &status));
  printf("%s", text);
  TRY(heddle_session_signal(session, 0, &count));
  printf("%zu ranks\n", count);
  TRY(heddle_session_daemon(session, files, environment, "log"));
  TRY(system("until grep -q 'v w' log.*; do sleep 0.1; done"));
  TRY(heddle_session_destroy(session));
  TRY(heddle_job_launch(sleeping, NULL, NULL, &job));
  FAILS(heddle_job_step(job, &step));
  TRY(heddle_job_signal(job, 15));
  TRY(heddle_job_wait(job, &status));
  heddle_job_free(job);
  printf("%d\n", status);
  return 0;
}
)");
  const auto did = sh("cc -Wall -Werror -o tool tool.c $(PKG_CONFIG_PATH=" + stage +
                      "/lib/pkgconfig pkg-config --cflags --libs heddle-launch) -Wl,-rpath," +
                      stage + "/lib && ./tool none-" + std::to_string(::getpid()) + " $PWD/to");
  EXPECT_EQ(did.status, 0) << did.err;
  const auto lines = lines_of(did.out);
  ASSERT_EQ(lines.size(), 10U) << did.out;
  EXPECT_THAT(lines[0], HasSubstr("--to needs an absolute path"));
  EXPECT_THAT(lines[1], AllOf(HasSubstr("libword.so.1"), HasSubstr("liblost.so.1")));
  EXPECT_THAT(lines[2], AllOf(HasSubstr("libs/libword.so.1"), HasSubstr("other/libword.so.1")));
  EXPECT_EQ(
      Strings(lines.begin() + 3, lines.end()),
      (Strings{"42", "content", "hidden", "v w", "0 ranks", "the ranks are not held", "143"}));
  EXPECT_TRUE(wait_until(10s, [&] { return sh("cat log.*").out == "content\nhidden\nv w\n"; }));
  EXPECT_TRUE(wait_until(20s, [&] { return sh("ls to").out.empty(); }));
}

/// What a program that was built with this library needs of the next one: symbols with their
/// versions, prototypes, and the layout of the structure that callers see.
std::string launch_abi(const TestDir& dir, const std::string& lib, const std::string& header) {
  write_text_file(dir / "layout.c",
                  "#include \"" + header +
                      "\"\n#include <stdio.h>\n#define AT(field) printf(\"heddle_rank." +
                      "%s at %zu\\n\", #field, offsetof(struct heddle_rank, field))\n"
                      "int main(void) { AT(rank); AT(pid); AT(node); AT(job); AT(program);\n"
                      "printf(\"heddle_rank has %zu bytes\\n\", sizeof(struct heddle_rank)); }\n");
  return run_checked(
             {"sh", "-c",
              "cd " + dir.path() + " && nm -D --defined-only " + lib +
                  " | awk '$2 == \"T\" {print $3}' | LC_ALL=C sort && cc -E -P " + header +
                  " | tr -s ' \\n' ' ' | sed 's/; */;\\n/g' | grep -E 'heddle_[a-z_]+\\(|^typedef "
                  "struct heddle' | LC_ALL=C sort && cc -o layout layout.c && ./layout"})
      .out;
}

TEST(LaunchLibrary, has_the_abi_that_programs_were_built_with) {
  const auto fs_launch = staged_program("fs-launch");
  if (fs_launch.empty()) HEDDLE_SKIP("fs-launch is not installed in $HEDDLE_STAGE");
  const TestDir dir;
  const auto lib =
      fs::path(fs_launch).parent_path().parent_path().string() + "/lib/libheddle-launch.so";
  const std::string source = std::getenv("HEDDLE_SOURCE");
  // The list of 0.1.0. What is new is added to it; whatever else changes needs another soname.
  EXPECT_EQ(launch_abi(dir, lib, source + "/launch/api/heddle_launch.h"),
            run_checked({"cat", source + "/tests/session/heddle_launch.abi"}).out);
  const auto needed = run_checked({"sh", "-c", "readelf -d " + lib + " | grep NEEDED"}).out;
  EXPECT_THAT(needed, Not(HasSubstr("fmt")));
}

}  // namespace
}  // namespace heddle::test
