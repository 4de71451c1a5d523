// SPDX-License-Identifier: MIT
// Programs do not notice the collector, nor jobs that it fails.
#include "tests/jobs/collected.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {
namespace {

TEST_F(Collected, programs_do_not_notice) {
  struct Odd {
    const char* name;
    const char* source;
    Strings flags;
    int status;
  };
  const Odd programs[] = {
      {"closes",
       "#include <unistd.h>\nint main(void) { for (int i = 0; i < 1024; ++i) close(i); return 4; }",
       {},
       4},
      {"vforks",
       "#include <sys/wait.h>\n#include <unistd.h>\nint main(void) { int s; if (vfork() == 0) "
       "_exit(6); wait(&s); return WEXITSTATUS(s); }",
       {},
       6},
      {"setuids",
       "#include <unistd.h>\nint main(void) { if (getuid() == 0 && setuid(65534)) return 1; return "
       "4; }",
       {},
       4},
      {"limits",
       "#include <signal.h>\n#include <sys/resource.h>\nint main(void) { struct rlimit r = {1, 1}; "
       "setrlimit(RLIMIT_FSIZE, &r); return 4; }",
       {},
       4},
      {"nofiles",
       "#include <sys/resource.h>\nint main(void) { struct rlimit r = {0, 0}; "
       "setrlimit(RLIMIT_NOFILE, &r); return 4; }",
       {},
       4},
      {"seccomp",
       "#include <sys/prctl.h>\n#include <sys/syscall.h>\n#include <unistd.h>\nint main(void) { "
       "prctl(PR_SET_SECCOMP, 1, 0, 0, 0); syscall(SYS_exit, 4); }",
       {},
       4},
      {"cancels",
       R"(
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static void* body(void* p) { waitpid(*(pid_t*)p, 0, 0); return 0; }
int main(void) {
  pid_t child = fork();
  if (child == 0) { pause(); _exit(0); }
  pthread_t t; void* result;
  pthread_create(&t, 0, body, &child); usleep(20000);
  pthread_cancel(t); pthread_join(t, &result);
  kill(child, 9); waitpid(child, 0, 0);
  return result == PTHREAD_CANCELED ? 4 : 1;
})",
       {"-pthread", "-include", "signal.h"},
       4},
      {"forks_in_threads",
       R"(
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static void* body(void* p) { for (int i = 0; i < 20; ++i) { pid_t c = fork(); if (c == 0) _exit(0); waitpid(c, 0, 0); } return p; }
int main(void) {
  pthread_t t[8];
  for (int i = 0; i < 8; ++i) pthread_create(&t[i], 0, body, 0);
  for (int i = 0; i < 8; ++i) pthread_join(t[i], 0);
  return 4;
})",
       {"-pthread"},
       4},
      {"sanitized",
       "#include <stdlib.h>\nint main(void) { char* p = malloc(3); free(p); return 4; }",
       {"-fsanitize=address"},
       4},
      {"races",
       "#include <pthread.h>\nstatic void* body(void* p) { return p; }\nint main(void) { "
       "pthread_t t; pthread_create(&t, 0, body, 0); pthread_join(t, 0); return 4; }",
       {"-fsanitize=thread", "-pthread"},
       4},
      {"undefined", "int main(int c, char** v) { return 2 << c; }", {"-fsanitize=undefined"}, 8},
      {"parses",
       "#include <sys/wait.h>\n#include <unistd.h>\nint main(int c, char** v) { v[1] = 0; int s; "
       "if "
       "(fork() == 0) _exit(5); wait(&s); return WIFEXITED(s) && WEXITSTATUS(s) == 5 ? 4 : 1; }",
       {},
       4},
      {"titles",
       R"(
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char** environ;
int main(int c, char** v) {
  char** last = environ;
  while (last[1]) ++last;
  char* end = *last + strlen(*last);
  memset(v[0], 'x', end - v[0]);
  int s;
  if (fork() == 0) _exit(5);
  wait(&s);
  return WEXITSTATUS(s) == 5 ? 4 : 1;
})",
       {},
       4},
      {"execs_in_vain",
       "#include <unistd.h>\nint main(void) { execl(\"/missing\", \"x\", (char*)0); return 4; }",
       {},
       4},
  };
  for (const auto& each : programs) {
    const auto program = compile(each.name, each.source, each.flags);
    const auto alone = run({program, "word"}, options_);
    ASSERT_EQ(alone.status, each.status) << each.name << alone.err;
    const auto result = collect({program, "word"});
    EXPECT_EQ(result.status, each.status) << each.name << result.err;
    EXPECT_EQ(result.err, alone.err) << each.name;
    const auto rows = archive_.of(each.name);
    ASSERT_FALSE(rows.empty()) << each.name;
    EXPECT_EQ(rows[0]["exitcode"], std::to_string(each.status)) << each.name;
    if (each.name == "forks_in_threads"s) {
      EXPECT_EQ(rows.size(), 161U);
      EXPECT_EQ(rows[0]["numtids"], "9");
    }
    if (each.name == "parses"s || each.name == "titles"s) {
      ASSERT_EQ(rows.size(), 2U) << each.name;
      EXPECT_EQ(rows[1]["exitcode"], "5") << each.name;
      EXPECT_EQ(rows[1]["args"], "") << each.name;
      EXPECT_EQ(rows[1]["marks"], each.name == "titles"s ? "args" : "") << each.name;
    }
  }
}

TEST_F(Collected, a_process_costs_few_system_calls_and_page_faults) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  // Its own, of a process that links libc alone.
  const auto faults = compile("faults", R"(
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
  long least = 1000000;
  for (int i = 0; i < 20; ++i) {  // it depends on addresses
    struct rusage used;
    int status;
    if (vfork() == 0) { execl("/bin/true", "true", (char*)0); _exit(9); }
    if (wait4(-1, &status, 0, &used) < 0 || status != 0) return 1;
    if (used.ru_minflt < least) least = used.ru_minflt;
  }
  printf("%ld", least);
  return 0;
})");
  const auto calls = [&] { return lines_of(value_or_throw(read_file(dir_ / "calls"))).size(); };
  const Strings traced{"strace", "-qq", "-e", "signal=none", "-o", dir_ / "calls", "/bin/true"};
  ASSERT_EQ(run(traced, options_).status, 0);
  const auto calls_alone = calls();
  ASSERT_EQ(collect(traced).status, 0);
  EXPECT_GT(calls(), calls_alone);
  EXPECT_LE(calls(), calls_alone + 40);
  const auto faults_alone = std::stol(run({faults}, options_).out);
  EXPECT_LE(std::stol(collect({faults}).out), faults_alone + 6);
}

TEST_F(Collected, collector_needs_no_library_and_its_long_data_is_behind_the_rest) {
  const auto prefix = fs::path(fs_job_).parent_path().parent_path();
  const std::string library = prefix / "lib/heddle/libheddle-job.so";
  EXPECT_THAT(run_checked({"readelf", "-dW", library}).out, Not(HasSubstr("NEEDED")));
  for (const auto& line : lines_of(run_checked({"nm", "-D", "--undefined-only", library}).out))
    EXPECT_THAT(line, HasSubstr(" w "));
  // .data is less than a page, whichever units it comes from.
  EXPECT_THAT(run_checked({"readelf", "-SW", library}).out,
              ::testing::ContainsRegex(
                  R"( \.data +PROGBITS +[0-9a-f]+ [0-9a-f]+ 000[0-9a-f]{3} .* \.data1 )"));
}

TEST_F(Collected, valgrind_finds_no_error) {
  if (run({"sh", "-c", "command -v valgrind"}).status != 0)
    HEDDLE_SKIP("valgrind is not installed");
  EXPECT_EQ(collect({"valgrind", "-q", "--error-exitcode=9", "--trace-children=yes", "sh", "-c",
                     "/bin/true; exit 4"})
                .status,
            4);
}

TEST_F(Collected, a_filter_of_system_calls_harms_no_child) {
  // It kills at openat, by whichever call it was set; a fork inherits it.
  const auto filters = compile("filters", R"(
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char** argv) {
  struct sock_filter code[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {4, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 9;
  if (argc > 1 ? prctl(PR_SET_SECCOMP, 2, &program) : syscall(SYS_seccomp, 1, 0, &program)) return 9;
  int status;
  if (fork() == 0) _exit(5);
  wait(&status);
  return WIFEXITED(status) ? 4 : 1;
})");
  for (const Strings& words : {Strings{}, Strings{"prctl"}}) {
    EXPECT_EQ(collect(Strings{filters} + words).status, 4);
    ASSERT_EQ(archive_.of("filters").size(), 1U);
    EXPECT_EQ(archive_.of("filters")[0]["ended_by"], "parent");
  }
}

TEST_F(Collected, a_job_starts_where_name_services_hang) {
  write_text_file(dir_ / "id", "#!/bin/sh\nexec sleep 1000\n", 0755);
  const auto mounted = "mount --make-rprivate / && mount --bind " + (dir_ / "id") + " /usr/bin/id";
  if (run({"unshare", "-m", "sh", "-c", mounted}, options_).status != 0)
    HEDDLE_SKIP("no file can be mounted over id(1)");
  const auto result = run(
      {"unshare", "-m", "sh", "-c", mounted + " && exec " + fs_job_ + " run -q true"}, options_);
  ASSERT_EQ(result.status, 0) << result.err;
  archive_ = read_job(archives().at(0));
  EXPECT_EQ(archive_.job["user"], std::to_string(::getuid()));
}

TEST_F(Collected, a_full_spool_loses_whole_records_and_nothing_else) {
  fs::create_directory(dir_ / "spool");
  const auto result =
      sh("unshare -m sh -c 'mount --make-rprivate / && mount -t tmpfs -o size=32k,mode=0700 none "
         "spool || exit "
         "77; exec " +
         fs_job_ +
         " run -q sh -c \"for i in 1 2 3 4 5 6 7 8 9; do for k in 1 2 3 4 5 6 7 8 9; do sh -c "
         "\\\"exit \\$i\\\"; [ \\$? = \\$i ] || exit 99; done; done; exit 4\"'");
  if (result.status == 77) HEDDLE_SKIP("no tmpfs can be mounted");
  EXPECT_EQ(result.status, 4) << result.err;
  ASSERT_EQ(archives().size(), 1U) << result.err;
  archive_ = read_job(archives()[0]);
  EXPECT_GT(archive_.rows.size(), 10U);
  EXPECT_LT(archive_.rows.size(), 82U) << "the spool was not full";
  for (const auto& row : archive_.of("dash"))
    EXPECT_TRUE(row["exitcode"].empty() || row.number("exitcode") <= 9) << row["exitcode"];
  EXPECT_LE(archive_.job["collector"]["damaged"], 1)
      << "the last record of a full spool may be cut";
  EXPECT_EQ(archive_.job["collector"]["lost"], true);
  EXPECT_THAT(result.err,
              HasSubstr("spool/1: records of processes were lost: the file system is full"));
}

TEST_F(Collected, a_job_runs_where_nothing_can_be_collected) {
  options_.env[0] = "HEDDLE_JOB_SPOOL=/proc/no/such/directory";
  const auto result = fs_job({"run", "--", "sh", "-c", "echo runs; exit 7"});
  EXPECT_EQ(result.status, 7);
  EXPECT_EQ(result.out, "runs\n");
  EXPECT_THAT(result.err, HasSubstr("warning"));
}

TEST_F(Collected, damaged_records_are_counted_and_passed_over) {
  ASSERT_EQ(fs_job({"start"}).status, 0);
  const auto code = "eval \"$(" + fs_job_ + " source --shell sh)\"; ";
  ASSERT_EQ(
      sh(code + "/bin/true; printf 'garbage' >> " + (dir_ / "spool/1/records") + "; /bin/true")
          .status,
      0);
  ASSERT_EQ(fs_job({"stop"}).status, 0);
  const auto staged = fs_job({"stage"});
  ASSERT_EQ(staged.status, 0);
  EXPECT_THAT(staged.err, HasSubstr("records of processes were lost: they are damaged"));
  archive_ = read_job(archives().at(0));
  EXPECT_EQ(archive_.of("true").size(), 2U);
  EXPECT_EQ(archive_.job["collector"]["damaged"], 1);
}

}  // namespace
}  // namespace heddle::test
