// SPDX-License-Identifier: MIT
// fs-job collects real programs, and those do not notice.
#include "jobs/collate.hpp"
#include "jobs/collector/record_format.hpp"
#include "jobs/metadata.hpp"
#include "tests/jobs/archive_text.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {
namespace {

class Collected : public ::testing::Test {
 protected:
  void SetUp() override {
    fs_job_ = staged_program("fs-job");
    if (fs_job_.empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
    options_.env = {"HEDDLE_JOB_SPOOL=" + (dir_ / "spool"), "SLURM_JOB_ID=1"};
    options_.cwd = dir_.path();
  }
  RunResult fs_job(const Strings& words) const { return run(Strings{fs_job_} + words, options_); }
  RunResult sh(const std::string& script) const { return run({"sh", "-c", script}, options_); }
  /// `fs-job run command`; its archive is in archive_.
  RunResult collect(const Strings& command, const Strings& options = {}) {
    for (const auto& file : archives()) fs::remove(file);
    const auto result = fs_job(Strings{"run", "-q"} + options + Strings{"--"} + command);
    const auto found = archives();
    EXPECT_EQ(found.size(), 1U) << result.err;
    if (!found.empty()) archive_ = read_job(found[0]);
    return result;
  }
  Strings archives() const {
    Strings out;
    for (const auto& entry : fs::directory_iterator(dir_.path()))
      if (entry.path().string().ends_with(".gz") || entry.path().extension() == ".tgz")
        out.push_back(entry.path());
    return out;
  }
  /// A program of C source `text`.
  std::string compile(const std::string& name, const std::string& text, const Strings& flags = {}) {
    std::ofstream(dir_ / (name + ".c")) << text;
    run_checked(Strings{"cc", "-O1", "-o", dir_ / name, dir_ / (name + ".c")} + flags);
    return dir_ / name;
  }

  /// Of what archives() have: the programs `echo` and `true`, by the job's restart.
  std::map<int, std::string> programs_by_restart() const {
    std::map<int, std::string> out;
    for (const auto& file : archives()) {
      const auto found = read_job(file);
      for (const std::string name : {"echo", "true"})
        if (!found.of(name).empty()) out[found.job["restart"]] += name + " ";
      EXPECT_EQ(found.job["collector"].contains("left"), found.job["restart"] == 0);
    }
    return out;
  }

  TestDir dir_;
  std::string fs_job_;
  RunOptions options_;
  JobArchive archive_;
};

TEST_F(Collected, start_and_stop_are_once_each) {
  EXPECT_NE(fs_job({"stop"}).status, 0);
  EXPECT_NE(fs_job({"stage"}).status, 0);
  EXPECT_EQ(fs_job({"start", "-e"}).status, 0);
  EXPECT_EQ(fs_job({"start", "-e"}).status, 1);
  const auto again = fs_job({"start"});
  EXPECT_EQ(again.status, 0);
  EXPECT_THAT(again.err, HasSubstr("warning: 1: the job was started already"));
  EXPECT_NE(fs_job({"stage"}).status, 0);
  EXPECT_EQ(fs_job({"stop", "-e"}).status, 0);
  EXPECT_EQ(fs_job({"stop", "-e"}).status, 1);
  EXPECT_EQ(fs_job({"stop"}).status, 0);
  const auto staged = fs_job({"stage"});
  EXPECT_EQ(staged.status, 0) << staged.err;
  ASSERT_EQ(archives().size(), 1U);
  EXPECT_EQ(fs::canonical(lines_of(staged.out).at(0)), fs::canonical(archives()[0]));
  struct stat st {};
  ASSERT_EQ(::stat(archives()[0].c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777U, 0600U);
  EXPECT_FALSE(fs::exists(dir_ / "spool/1"));
}

TEST_F(Collected, a_session_without_a_job_id_is_the_job) {
  options_.env.back() = "SLURM_JOB_ID";
  const auto result = collect({"true"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.err, HasSubstr("no SLURM_JOB_ID or PBS_JOBID: the job is session-"));
  EXPECT_THAT(std::string(archive_.job["jobid"]), StartsWith("session-"));
}

TEST_F(Collected, exit_status_and_signal_are_the_commands) {
  EXPECT_EQ(collect({"sh", "-c", "exit 7"}).status, 7);
  ASSERT_EQ(archive_.rows.size(), 1U);
  EXPECT_EQ(archive_.rows[0]["exitcode"], "7");
  EXPECT_EQ(archive_.job["exitcode"], 7);
  EXPECT_EQ(collect({"sh", "-c", "kill -9 $$"}).status, 137);
  ASSERT_EQ(archive_.rows.size(), 1U);
  EXPECT_EQ(archive_.rows[0]["exitsignal"], "9");
  EXPECT_EQ(archive_.rows[0]["marks"], "partial");
  EXPECT_EQ(archive_.rows[0]["ended_by"], "parent");
  EXPECT_EQ(archive_.rows[0]["path"], fs::canonical("/bin/sh"));
}

TEST_F(Collected, arguments_and_tags_keep_every_byte) {
  const Strings words{"%s\\n",       "a b",  "$X",   "*",        "",    "tab\there",
                      "line\nbreak", "q'\"", "%:\\", "\xC3\xA9", "\xFF"};
  options_.env.push_back("PAPIEX_TAGS=op:x;op_instance:1\t\\");
  const auto result = collect(Strings{"printf"} + words);
  EXPECT_EQ(result.status, 0);
  ASSERT_EQ(archive_.rows.size(), 1U);
  EXPECT_EQ(archive_.rows[0].args(), words);
  EXPECT_EQ(archive_.rows[0]["tags"], "op:x;op_instance:1\t\\");
  collect({"printf", "secret"}, {"--argv", "exe"});
  EXPECT_EQ(archive_.rows[0]["args"], "");
}

TEST_F(Collected, every_process_of_a_tree_has_a_row) {
  const auto is_static = compile(
      "unlinked", "int main(void) { for (volatile long i = 0; i < 50000000; ++i); return 3; }",
      {"-static"});
  const auto threads = compile("threads", R"(
#include <pthread.h>
#include <unistd.h>
static void* body(void* wait) { for (volatile long i = 0; i < 20000000; ++i); if (wait) pause(); return 0; }
int main(void) {
  pthread_t t[3];
  for (long i = 0; i < 3; ++i) pthread_create(&t[i], 0, body, i == 2 ? &t : 0);
  pthread_join(t[0], 0); pthread_join(t[1], 0);
  return 0;
})",
                               {"-pthread"});
  const auto forks = compile("forks", R"(
#include <sys/wait.h>
#include <unistd.h>
int main(void) { if (fork() == 0) _exit(5); wait(0); return 0; })");
  collect({"bash", "-c",
           "/bin/true; " + threads + "; " + forks + "; (exec sh -c 'exec /bin/echo x'); " +
               is_static + " 'a b' ''; :"});
  ASSERT_EQ(archive_.of("bash").size(), 1U);
  const auto top = archive_.of("bash")[0];
  ASSERT_EQ(archive_.of("threads").size(), 1U);
  const auto row = archive_.of("threads")[0];
  EXPECT_EQ(row["numtids"], "4");
  EXPECT_EQ(row["marks"], "rest");
  EXPECT_EQ(row.threads.size(), 3U);  // main, the one that waits, the rest
  EXPECT_GT(row.threads.back().at("usertime"), row.threads[1].at("usertime"));
  EXPECT_EQ(row["ppid"], top["pid"]);
  ASSERT_EQ(archive_.of("forks").size(), 2U);
  EXPECT_EQ(archive_.of("forks")[1]["ppid"], archive_.of("forks")[0]["pid"]);
  EXPECT_EQ(archive_.of("forks")[1]["exitcode"], "5");
  ASSERT_EQ(archive_.of("echo").size(), 1U);
  const auto chain = archive_.of("dash");
  ASSERT_EQ(chain.size(), 1U);
  EXPECT_EQ(chain[0]["generation"], "0");
  EXPECT_EQ(chain[0]["ended_by"], "exec");
  EXPECT_EQ(archive_.of("echo")[0]["generation"], "1");
  EXPECT_EQ(archive_.of("echo")[0]["pid"], chain[0]["pid"]);
  // The static program is known by the one that executed it, and by its parent's wait.
  const auto partial = archive_.of("unlinked");
  ASSERT_EQ(partial.size(), 1U);
  EXPECT_EQ(partial[0]["exitcode"], "3");
  EXPECT_EQ(partial[0]["marks"], "partial");
  EXPECT_EQ(partial[0]["path"], fs::canonical(is_static));
  EXPECT_EQ(partial[0].args(), (Strings{"a b", ""}));
  EXPECT_EQ(partial[0]["ppid"], top["pid"]);
  EXPECT_GT(partial[0].sum("usertime"), 1000);
  EXPECT_EQ(archive_.rows.size(), 8U);
  EXPECT_THAT(archive_.libraries, HasSubstr("libc.so.6"));
}

TEST_F(Collected, programs_without_the_collector_have_names_however_they_were_executed) {
  const auto unlinked = compile("unlinked", "int main(int c, char** v) { return c; }", {"-static"});
  const auto executes = compile("executes", R"(
#define _GNU_SOURCE
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char** environ;
int main(int c, char** v) {
  char* words[] = {"x", v[1], 0};
  char* none[] = {0};
  pid_t p;
  int s;
  setenv("PATH", "/missing:.:/bin", 1);
  if (!strcmp(v[1], "spawn")) posix_spawn(&p, "./unlinked", 0, 0, words, environ);
  else if (!strcmp(v[1], "spawnp")) posix_spawnp(&p, "unlinked", 0, 0, words, environ);
  else if (!strcmp(v[1], "vfork")) { if (!(p = vfork())) { execve("./unlinked", words, environ); _exit(9); } }
  else if (!strcmp(v[1], "replace")) execv("./unlinked", words);
  else if (!(p = fork())) {
    if (!strcmp(v[1], "execvp")) execvp("unlinked", words);
    if (!strcmp(v[1], "execvpe")) execvpe("unlinked", words, none);
    if (!strcmp(v[1], "fails")) execv("./broken", words);
    _exit(9);
  }
  waitpid(p, &s, 0);
  return WEXITSTATUS(s);
})",
                                {"-include", "stdlib.h"});
  // Static by its headers, but no program that the kernel executes.
  auto broken = value_or_throw(read_file(unlinked));
  broken[18] = '\1', broken[19] = '\1';  // e_machine
  std::ofstream(dir_ / "broken", std::ios::binary) << broken;
  fs::permissions(dir_ / "broken", fs::perms::owner_all);
  for (const std::string how : {"spawn", "spawnp", "vfork", "execvp", "execvpe", "replace"}) {
    SCOPED_TRACE(how);
    EXPECT_EQ(collect({executes, how}).status, 2);
    const auto rows = archive_.of("unlinked");
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0]["path"], fs::canonical(unlinked));
    EXPECT_EQ(rows[0].args(), (Strings{how}));
    EXPECT_EQ(rows[0]["exitcode"], "2");
    EXPECT_EQ(rows[0]["generation"], how == "replace" ? "1" : "0");
    ASSERT_EQ(archive_.of("executes").size(), 1U);
    const auto by = archive_.of("executes")[0];
    EXPECT_EQ(by["ended_by"], how == "replace" ? "exec" : "self");
    EXPECT_EQ(rows[0][how == "replace" ? "pid" : "ppid"], by["pid"]);
    EXPECT_EQ(archive_.rows.size(), 2U);
  }
  if (const std::string ld = "/lib64/ld-linux-x86-64.so.2"; fs::exists(ld)) {
    EXPECT_EQ(collect({"sh", "-c", ld + " /bin/true; :"}).status, 0);
    EXPECT_EQ(archive_.rows.size(), 2U) << "a program that ld.so starts has one row";
  }
  // Also the command itself, whose children's time is theirs.
  EXPECT_EQ(collect({unlinked, "a b"}).status, 2);
  ASSERT_EQ(archive_.rows.size(), 1U);
  EXPECT_EQ(archive_.rows[0]["path"], fs::canonical(unlinked));
  EXPECT_EQ(archive_.rows[0].args(), Strings{"a b"});
  EXPECT_EQ(archive_.rows[0]["marks"], "partial");
  const auto parent = compile("parent", R"(
#include <sys/wait.h>
#include <unistd.h>
int main(int c, char** v) { if (fork() == 0) { execv(v[1], v + 1); _exit(9); } return wait(0) < 0; })",
                              {"-static"});
  const auto burns =
      compile("burns", "int main(void) { for (volatile int i = 0; i < 200000000; ++i); }");
  EXPECT_EQ(collect({parent, burns}).status, 0);
  ASSERT_EQ(archive_.of("parent").size() + archive_.of("burns").size(), 2U);
  EXPECT_LT(10 * archive_.of("parent")[0].sum("usertime"), archive_.of("burns")[0].sum("usertime"));
  EXPECT_EQ(collect({executes, "fails"}).status, 9);
  EXPECT_EQ(archive_.of("executes").size(), 2U);
  EXPECT_EQ(archive_.rows.size(), 2U) << "a program that was not executed has no row";
}

TEST_F(Collected, a_child_without_the_collector_has_an_end_by_waitid) {
  const auto unlinked = compile("unlinked", R"(
#include <signal.h>
#include <stdlib.h>
int main(int c, char** v) {
  for (volatile int i = 0; i < 300000000; ++i);
  if (c > 1) raise(atoi(v[1]));
  return 3;
})",
                                {"-static"});
  const auto waits = compile("waits", R"(
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int c, char** v) {
  siginfo_t info;
  pid_t child = fork();
  if (child == 0) { execv(v[1], v + 1); _exit(9); }
  if (waitid(P_PID, child, &info, WSTOPPED | WEXITED | WNOHANG) || info.si_pid) return 1;
  kill(child, SIGSTOP);
  if (waitid(P_PID, child, &info, WSTOPPED | WEXITED) || info.si_code != CLD_STOPPED) return 2;
  kill(child, SIGCONT);
  if (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) || info.si_pid != child) return 3;
  memset(&info, 0, sizeof info);
  if (waitid(P_PID, child, &info, WEXITED) || info.si_pid != child) return 4;
  if (waitid(P_ALL, 0, 0, WEXITED) != -1 || errno != ECHILD) return 5;
  siginfo_t none = info;
  if (waitid(P_ALL, 0, &none, WEXITED) != -1 || errno != ECHILD || none.si_pid) return 6;
  return info.si_code == CLD_EXITED ? info.si_status : 100 + info.si_status;
})");
  ASSERT_EQ(collect({waits, unlinked}).status, 3);
  ASSERT_EQ(archive_.of("unlinked").size(), 1U);
  EXPECT_EQ(archive_.of("unlinked")[0]["exitcode"], "3");
  EXPECT_EQ(archive_.of("unlinked")[0]["ended_by"], "parent");
  EXPECT_GT(archive_.of("unlinked")[0].sum("usertime"), 1000);
  ASSERT_EQ(collect({waits, unlinked, "9"}).status, 109);
  ASSERT_EQ(archive_.of("unlinked").size(), 1U);
  EXPECT_EQ(archive_.of("unlinked")[0]["exitsignal"], "9");
  EXPECT_EQ(archive_.rows.size(), 2U);
}

TEST_F(Collected, a_setuid_program_has_a_row_by_its_parent) {
  if (::geteuid() != 0) HEDDLE_SKIP("a file of root's is needed");
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0777), 0);
  fs::copy_file(fs::canonical("/bin/true"), dir_ / "gains");
  ASSERT_EQ(::chmod((dir_ / "gains").c_str(), 04711), 0);
  const auto result = run({"setpriv", "--reuid", "65534", "--clear-groups", fs_job_, "run", "-q",
                           "sh", "-c", "./gains x; :"},
                          options_);
  ASSERT_EQ(result.status, 0) << result.err;
  ASSERT_EQ(archives().size(), 1U) << result.err;
  archive_ = read_job(archives()[0]);
  ASSERT_EQ(archive_.of("gains").size(), 1U);
  const auto row = archive_.of("gains")[0];
  EXPECT_EQ(row["marks"], "partial");
  EXPECT_EQ(row["exitcode"], "0");
  EXPECT_EQ(row.args(), Strings{"x"});
  EXPECT_EQ(row["ppid"], archive_.of("dash").at(0)["pid"]);
}

TEST_F(Collected, a_known_load_is_measured) {
  const auto load = compile("load", R"(
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
int main(void) {
  char* memory = malloc(64 << 20);
  memset(memory, 1, 64 << 20);
  int fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
  for (int i = 0; i < 2; ++i) if (write(fd, memory, 50000000) != 50000000) return 1;
  fsync(fd);
  if (pread(fd, memory, 50000000, 0) != 50000000) return 1;
  struct rusage used;
  do { for (volatile int i = 0; i < 1000000; ++i); getrusage(RUSAGE_SELF, &used); }
  while (used.ru_utime.tv_sec + used.ru_stime.tv_sec < 2);
  int out = open("used", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  getrusage(RUSAGE_SELF, &used);
  dprintf(out, "%ld", (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000L + used.ru_utime.tv_usec + used.ru_stime.tv_usec);
  return 0;
})",
                            {"-include", "stdio.h"});
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(collect({load}).status, 0);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const auto row = archive_.rows.at(0);
  // The loop ends when both parts have full seconds of 2 in sum: less than 4 s.
  const auto cpu = row.sum("usertime") + row.sum("systemtime");
  EXPECT_GE(cpu, 1'900'000);
  const auto used = value_or_throw(read_file(dir_ / "used"));
  EXPECT_NEAR(static_cast<double>(cpu), std::stod(used), 0.05 * std::stod(used));
  EXPECT_NEAR(static_cast<double>(row.sum("time_oncpu")) / 1000, static_cast<double>(cpu),
              0.05 * static_cast<double>(cpu));
  // Without those of the collector; ld.so reads the first bytes of each library.
  EXPECT_EQ(row.sum("wchar"), 100'000'000 + static_cast<std::int64_t>(used.size()));
  EXPECT_EQ(row.sum("syscw"), 3);
  EXPECT_GE(row.sum("rchar"), 50'000'000);
  EXPECT_LT(row.sum("rchar"), 50'016'384);
  EXPECT_GE(row.sum("rssmax"), 65536);
  EXPECT_LT(row.number("finish") - row.number("start"),
            static_cast<std::int64_t>(wall.count() * 1e6));
}

TEST_F(Collected, what_children_read_and_write_is_theirs_alone) {
  // /proc/PID/io of their parents has it, too.
  const auto writes = compile("writes", R"(
#include <fcntl.h>
#include <unistd.h>
static char bytes[1000000];
int main(void) {
  int fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
  for (int i = 0; i < 10; ++i) if (write(fd, bytes, sizeof bytes) != sizeof bytes) return 1;
  return pread(fd, bytes, sizeof bytes, 0) != sizeof bytes;
})");
  const auto parent = compile("parent", R"(
#include <sys/wait.h>
#include <unistd.h>
int main(int c, char** v) {
  char* words[] = {v[1], v[2], 0};
  if (fork() == 0) { execv(v[1], words); _exit(9); }
  wait(0);
  if (c == 2 && write(open("own", 0101, 0600), "12345", 5) != 5) return 1;
  if (c == 2) execl("/bin/true", "true", (char*)0);
  return 0;
})",
                              {"-include", "fcntl.h"});
  ASSERT_EQ(collect({parent, parent, writes}).status, 0);  // a grandparent
  for (const auto& row : archive_.of("parent")) EXPECT_LE(row.sum("wchar"), 5);
  ASSERT_EQ(collect({parent, writes}).status, 0);
  ASSERT_EQ(archive_.of("writes").size(), 1U);
  EXPECT_EQ(archive_.of("writes")[0].sum("wchar"), 10'000'000);
  EXPECT_EQ(archive_.of("writes")[0].sum("syscw"), 10);
  EXPECT_EQ(archive_.of("parent").at(0).sum("wchar"), 5);
  EXPECT_EQ(archive_.of("parent")[0].sum("syscw"), 1);
  EXPECT_LT(archive_.of("parent")[0].sum("rchar"), 20'000);
  EXPECT_EQ(archive_.of("true").at(0).sum("wchar"), 0);
  EXPECT_LT(archive_.of("true")[0].sum("rchar"), 20'000);
}

TEST_F(Collected, the_47_keys_are_those_of_the_program_and_the_kernel) {
  // It prints what it knows of itself at its end, as `key value`.
  const auto knows = compile("knows", R"(
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>
static void work(void) {
  char* p = malloc(8 << 20);
  memset(p, 1, 8 << 20);
  for (volatile int i = 0; i < 30000000; ++i);
  for (int i = 0; i < 5; ++i) usleep(1000);
}
static long us(struct timeval t) { return t.tv_sec * 1000000L + t.tv_usec; }
int main(int argc, char** argv) {
  unsigned long long cycles = __rdtsc();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);
  if (fork() == 0) { work(); _exit(0); }
  wait(0);
  work();
  int data = open("data", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  static char bytes[1 << 20];
  if (write(data, bytes, sizeof bytes) != sizeof bytes) return 1;
  fsync(data);
  struct rusage own, children;
  getrusage(RUSAGE_SELF, &own);
  getrusage(RUSAGE_CHILDREN, &children);
  printf("usertime %ld\nsystemtime %ld\nrssmax %ld\nminflt %ld\nmajflt %ld\ninblock %ld\noutblock %ld\n",
         us(own.ru_utime), us(own.ru_stime), own.ru_maxrss, own.ru_minflt, own.ru_majflt, own.ru_inblock, own.ru_oublock);
  printf("vol_ctxsw %ld\ninvol_ctxsw %ld\n", own.ru_nvcsw, own.ru_nivcsw);
  printf("cutime %ld\ncstime %ld\ncminflt %ld\ncmajflt %ld\n", us(children.ru_utime), us(children.ru_stime), children.ru_minflt, children.ru_majflt);
  printf("pid %d\nppid %d\npgid %d\nsid %d\ntid %d\n", getpid(), getppid(), getpgid(0), getsid(0), gettid());
  char text[4096];
  FILE* file = fopen("/proc/self/stat", "r");
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  const char* at = strrchr(text, ')') + 2;
  const char* names[] = {[20] = "num_threads", [22] = "starttime", [39] = "processor", [42] = "delayacct_blkio_time", [43] = "guest_time"};
  for (int i = 3; i < 44; ++i, at = strchr(at, ' ') + 1)
    if (names[i]) printf("%s %ld\n", names[i], strtol(at, 0, 10));
  fclose(file);
  file = fopen("/proc/self/io", "r");
  while (fgets(text, sizeof text, file)) { char* colon = strchr(text, ':'); *colon = ' '; printf("%s", text); }
  fclose(file);
  unsigned long long sched[3];
  file = fopen("/proc/self/schedstat", "r");
  if (fscanf(file, "%llu %llu %llu", sched, sched + 1, sched + 2) != 3) return 1;
  printf("time_oncpu %llu\ntime_waiting %llu\ntimeslices %llu\n", sched[0], sched[1], sched[2]);
  printf("rdtsc_duration %llu\n", __rdtsc() - cycles);
  return 0;
})");
  options_.env = options_.env + Strings{"PAPIEX_TAGS=op:x", "SLURM_PROCID=3", "SLURM_NTASKS=5"};
  const auto result = collect({knows, "a", "b c"});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto rows = archive_.of("knows");
  ASSERT_EQ(rows.size(), 2U);
  const auto& row = rows[0].number("pid") == rows[1].number("ppid") ? rows[0] : rows[1];
  ASSERT_EQ(row.threads.size(), 1U);
  std::map<std::string, std::int64_t> known;
  for (const auto& line : lines_of(result.out))
    known[line.substr(0, line.find(' '))] = std::stoll(line.substr(line.find_last_of(' ')));
  // The program's last look is before the collector's: `slack` may come in between, -1 is any.
  struct Key {
    const char* name;
    std::int64_t slack;
  };
  const Key keys[] = {{"tid", 0},
                      {"usertime", 200'000},
                      {"systemtime", 200'000},
                      {"rssmax", 4096},
                      {"minflt", 500},
                      {"majflt", 100},
                      {"inblock", 10'000},
                      {"outblock", 10'000},
                      {"vol_ctxsw", 100},
                      {"invol_ctxsw", 1000},
                      {"cminflt", 0},
                      {"cmajflt", 0},
                      {"cutime", 0},
                      {"cstime", 0},
                      {"num_threads", 0},
                      {"starttime", 0},
                      {"processor", 0},
                      {"delayacct_blkio_time", 1000},
                      {"guest_time", 0},
                      {"read_bytes", 10'000'000},
                      {"write_bytes", 10'000'000},
                      {"cancelled_write_bytes", 0},
                      {"time_oncpu", 400'000'000},
                      {"time_waiting", -1},
                      {"timeslices", 2000},
                      {"rdtsc_duration", -1}};
  const auto& values = row.threads[0];
  for (const auto& [name, slack] : keys) {
    ASSERT_TRUE(known.contains(name)) << name;
    ASSERT_TRUE(values.contains(name)) << name;
    EXPECT_GE(values.at(name), known[name]) << name;
    if (slack >= 0) {
      EXPECT_LE(values.at(name), known[name] + slack) << name;
    }
  }
  // Without what the child and the collector did, which /proc has, too.
  for (const char* name : {"rchar", "wchar", "syscr", "syscw"}) {
    EXPECT_GT(values.at(name), 0) << name;
    EXPECT_LE(values.at(name), known[name] + 10'000) << name;
  }
  EXPECT_GT(known["cutime"], 1000);
  EXPECT_GT(known["cminflt"], 10);
  // The cycles of a child that only forked begin at its fork, too.
  const auto rate = [](const JobRow& of) {
    return static_cast<double>(of.threads[0].at("rdtsc_duration")) /
           static_cast<double>(of.number("finish") - of.number("start"));
  };
  EXPECT_NEAR(rate(rows[0]), rate(rows[1]), 0.4 * rate(row));
  EXPECT_GE(known["vol_ctxsw"], 5);
  EXPECT_EQ(values.at("mpirank"), 3);
  EXPECT_EQ(values.at("numranks"), 5);
  for (const char* name : {"pid", "ppid", "pgid", "sid"})
    EXPECT_EQ(row.number(name), known[name]) << name;
  EXPECT_EQ(row["tags"], "op:x");
  EXPECT_EQ(row["hostname"], archive_.job["host"]);
  EXPECT_EQ(row["exename"], "knows");
  EXPECT_EQ(row["path"], fs::canonical(knows));
  EXPECT_EQ(row["exitcode"] + row["exitsignal"] + row["generation"], "000");
  EXPECT_EQ(row["numtids"], "1");
  EXPECT_LT(row.number("start"), row.number("finish"));
  EXPECT_EQ(row.args(), (Strings{"a", "b c"}));
  EXPECT_EQ(values.size() + 15, 47U) << "with the columns of epmt's table";
}

TEST_F(Collected, epmt_reads_its_layout) {
  ASSERT_EQ(fs_job({"start"}).status, 0);
  ASSERT_EQ(sh("eval \"$(" + fs_job_ +
               " source --shell sh)\"; /bin/echo 'a b'; fs_job_uninstrument; " + fs_job_ + " stop")
                .status,
            0);
  const auto staged = fs_job({"stage", "--epmt"});
  ASSERT_EQ(staged.status, 0) << staged.err;
  const auto path = lines_of(staged.out).at(0);
  EXPECT_THAT(path, ::testing::EndsWith("/1.tgz"));
  const auto names = lines_of(run_checked({"tar", "tf", path}).out);
  ASSERT_EQ(names.size(), 3U);
  EXPECT_EQ(names[0], "./job_metadata");
  EXPECT_THAT(names[1], ::testing::EndsWith("-papiex-header.tsv"));
  const auto header = run_checked({"tar", "xzOf", path, names[1]}).out;
  const auto rows = lines_of(run_checked({"tar", "xzOf", path, names[2]}).out);
  ASSERT_EQ(rows.size(), 1U);  // stop is after uninstrument
  EXPECT_EQ(split(rows[0], '\t').size(), 16U);
  EXPECT_EQ(split(rows[0], '\t').size(), split(header, '\t').size());
  EXPECT_EQ(split(rows[0], '\t').back(), "a b");
  // And submit reads it.
  options_.env.push_back("FS_JOB_DB=" + dir_ / "jobs.db");
  const auto submitted = fs_job({"submit", path});
  ASSERT_EQ(submitted.status, 0) << submitted.err;
  const auto jobs = nlohmann::json::parse(fs_job({"query", "--format", "json"}).out);
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0]["jobid"], "1");
  EXPECT_EQ(jobs[0]["num_procs"], 1);
  EXPECT_GT(jobs[0]["cpu_time"], 0);
  EXPECT_THAT(fs_job({"show", "1", "--tree"}).out, HasSubstr("  echo a b "));
}

TEST_F(Collected, shells_are_instrumented_and_restored) {
  options_.env.push_back("LD_PRELOAD=libm.so.6");
  std::string missing;
  for (const std::string shell : {"bash", "sh", "csh", "tcsh", "fish"}) {
    if (run({"sh", "-c", "command -v " + shell}).status != 0) {
      missing += " " + shell;
      continue;
    }
    // A line each: csh expands the aliases of a whole line before it runs a part of it.
    const auto print = "echo $LD_PRELOAD\n";
    const auto eval = shell == "fish" ? fs_job_ + " source --shell fish | source\n"
                                      : "eval \"`" + fs_job_ + " source --shell " + shell + "`\"\n";
    std::ofstream(dir_ / "script") << eval << print << "fs_job_uninstrument\n"
                                   << print << "fs_job_instrument\n"
                                   << print;
    const auto result = run({shell, dir_ / "script"}, options_);
    const auto lines = lines_of(result.out);
    ASSERT_EQ(lines.size(), 3U) << shell << result.err;
    EXPECT_THAT(lines[0], AllOf(StartsWith("libm.so.6:"), HasSubstr("libheddle-job.so"))) << shell;
    EXPECT_EQ(lines[1], "libm.so.6") << shell;
    EXPECT_EQ(lines[2], lines[0]) << shell;
  }
  if (!missing.empty()) HEDDLE_SKIP("not installed:" + missing);
}

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
  EXPECT_LE(calls(), calls_alone + 37);
  const auto faults_alone = std::stol(run({faults}, options_).out);
  EXPECT_LE(std::stol(collect({faults}).out), faults_alone + 6);
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

TEST_F(Collected, a_process_that_runs_out_of_memory_has_a_row) {
  // Version 2 of control groups, and version 1.
  const bool is_new = fs::exists("/sys/fs/cgroup/cgroup.controllers");
  const auto group = (is_new ? "/sys/fs/cgroup/"s : "/sys/fs/cgroup/memory/"s) + "heddle-test-" +
                     std::to_string(::getpid());
  std::error_code failed;
  fs::create_directory(group, failed);
  const auto limit = group + (is_new ? "/memory.max" : "/memory.limit_in_bytes");
  if (failed || !fs::exists(limit) || !(std::ofstream(limit) << "50000000" << std::flush)) {
    fs::remove(group, failed);
    HEDDLE_SKIP("no memory control group can be made");
  }
  const auto hog = compile("hog", R"(
#include <stdlib.h>
#include <string.h>
int main(void) { for (;;) { char* p = malloc(1 << 20); if (p) memset(p, 1, 1 << 20); } })");
  const auto result =
      collect({"sh", "-c", "(echo 0 > " + group + "/cgroup.procs; " + hog + "; exit $?); exit $?"});
  fs::remove(group, failed);
  EXPECT_EQ(result.status, 137) << result.err;
  ASSERT_EQ(archive_.of("hog").size(), 1U);
  const auto row = archive_.of("hog")[0];
  EXPECT_EQ(row["exitsignal"], "9");
  EXPECT_EQ(row["marks"], "partial");
  EXPECT_GT(row.sum("rssmax"), 30'000);
}

TEST_F(Collected, software_events_are_counted_or_null_with_the_reason) {
  const auto load = compile("burns", R"(
#include <sys/mman.h>
int main(void) {
  const long size = 8 << 20;
  char* p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(p, size, MADV_NOHUGEPAGE);
  for (volatile char* c = p; c < p + size; c += 4096) *c = 1;
  for (volatile int i = 0; i < 50000000; ++i);
  return 0;
})");
  ASSERT_EQ(collect({load}, {"--perf"}).status, 0);
  ASSERT_EQ(archive_.of("burns").size(), 1U);
  const auto row = archive_.of("burns")[0];
  ASSERT_EQ(row.threads.size(), 1U);
  const auto& values = row.threads[0];
  if (archive_.job["collector"]["perf"] == "counted") {
    ASSERT_TRUE(values.contains("PERF_COUNT_SW_TASK_CLOCK"));
    const auto cpu = static_cast<double>(row.sum("usertime") + row.sum("systemtime"));
    EXPECT_NEAR(static_cast<double>(values.at("PERF_COUNT_SW_TASK_CLOCK")) / 1000, cpu, 0.3 * cpu);
    EXPECT_GE(values.at("PERF_COUNT_SW_PAGE_FAULTS"), 2000);
  }
  // Where the system call is refused; seccomp is inherited.
  const auto refuses = compile("refuses", R"(
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char** argv) {
  struct sock_filter code[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 13), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {4, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program)) return 9;
  execv(argv[1], argv + 1);
  return 8;
})");
  for (const auto& file : archives()) fs::remove(file);
  const auto refused = run({refuses, fs_job_, "run", "-q", "--perf", load}, options_);
  ASSERT_EQ(refused.status, 0) << refused.err;
  archive_ = read_job(archives().at(0));
  EXPECT_EQ(archive_.job["collector"]["perf"], "Permission denied");
  ASSERT_EQ(archive_.of("burns").size(), 1U);
  EXPECT_FALSE(archive_.of("burns")[0].threads.at(0).contains("PERF_COUNT_SW_TASK_CLOCK"));
}

TEST_F(Collected, totals_of_the_control_group_are_kept) {
  // Version 2, wherever this machine has it, in a mount namespace.
  const auto mounted = "mount --make-rprivate / && mount -t cgroup2 none /sys/fs/cgroup"s;
  if (run({"unshare", "-m", "sh", "-c", mounted}, options_).status != 0)
    HEDDLE_SKIP("no control groups of version 2 can be mounted");
  const auto result = run({"unshare", "-m", "sh", "-c",
                           mounted + " && sed -n 's/^0:://p' /proc/self/cgroup && exec " + fs_job_ +
                               " run -q sh -c 'cat /sys/fs/cgroup/$(sed -n s/^0:://p "
                               "/proc/self/cgroup)/cpu.stat'"},
                          options_);
  ASSERT_EQ(result.status, 0) << result.err;
  archive_ = read_job(archives().at(0));
  const auto& group = archive_.job["cgroup"];
  const std::string cpu = group["cpu.stat"];
  EXPECT_THAT(cpu, StartsWith("usage_usec "));
  const auto used = [](const std::string& text) {
    return std::stoll(text.substr(text.find("usage_usec ") + 11));
  };
  EXPECT_GE(used(cpu), used(result.out));
  EXPECT_TRUE(group.contains("memory.pressure") == fs::exists("/proc/pressure/memory")) << group;
}

TEST_F(Collected, the_container_is_known_by_the_files_that_it_mounts) {
  const std::string id(64, 'a');
  fs::create_directories(dir_ / ("containers/" + id + "/userdata"));
  const auto file = dir_ / ("containers/" + id + "/userdata/hostname");
  write_text_file(file, "box\n");
  const auto mounted = "mount --make-rprivate / && mount --bind " + file + " /etc/hostname";
  if (run({"unshare", "-m", "sh", "-c", mounted}, options_).status != 0)
    HEDDLE_SKIP("no file can be mounted over /etc/hostname");
  const auto result = run(
      {"unshare", "-m", "sh", "-c", mounted + " && exec " + fs_job_ + " run -q true"}, options_);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(read_job(archives().at(0)).job["container"], id);
  collect({"true"});
  EXPECT_FALSE(archive_.job.contains("container"));
}

TEST(Container, id_is_that_of_the_engines_control_group) {
  const std::string id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  for (const std::string& group :
       {"0::/machine.slice/libpod-" + id + ".scope",
        "0::/user.slice/libpod-" + id + ".scope/container", "4:memory:/docker/" + id + "\n0::/",
        "0::/kubepods/pod1/cri-containerd-" + id + ".scope"})
    EXPECT_EQ(jobs::container_id(group, ""), id) << group;
  EXPECT_EQ(
      jobs::container_id("0::/", "36 1 8:1 /docker/containers/" + id + "/hosts /etc/hosts rw\n"),
      id);
  // The host has the mounts of its containers.
  EXPECT_EQ(jobs::container_id("0::/user.slice", "36 1 0:9 / /overlay2/" + id + "/merged rw\n"),
            "");
  EXPECT_EQ(jobs::container_id("0::/job_" + id + "0", ""), "");
}

TEST_F(Collected, a_job_starts_where_name_services_hang) {
  std::ofstream(dir_ / "id") << "#!/bin/sh\nexec sleep 1000\n";
  fs::permissions(dir_ / "id", fs::perms(0755));
  const auto mounted = "mount --make-rprivate / && mount --bind " + (dir_ / "id") + " /usr/bin/id";
  if (run({"unshare", "-m", "sh", "-c", mounted}, options_).status != 0)
    HEDDLE_SKIP("no file can be mounted over id(1)");
  const auto result = run(
      {"unshare", "-m", "sh", "-c", mounted + " && exec " + fs_job_ + " run -q true"}, options_);
  ASSERT_EQ(result.status, 0) << result.err;
  archive_ = read_job(archives().at(0));
  EXPECT_EQ(archive_.job["user"], std::to_string(::getuid()));
}

TEST(ControlGroup, of_slurm_is_the_jobs_and_limits_hold_below) {
  const TestDir dir;
  const auto write = [&](const std::string& file, const std::string& text) {
    fs::create_directories(fs::path(dir / file).parent_path());
    std::ofstream(dir / file) << text << "\n";
  };
  // Slurm limits the job and the step, and its tasks are in groups of their own.
  const auto job = "system.slice/slurmstepd.scope/job_7/"s;
  write("system.slice/memory.max", "max");
  write("system.slice/memory.peak", "99999");
  write(job + "memory.max", "1000");
  write(job + "memory.peak", "400");
  write(job + "memory.events", "low 0\noom 1\noom_kill 2");
  write(job + "step_0/user/memory.max", "500");
  write(job + "step_0/user/task_0/memory.max", "max");
  write(job + "step_0/user/task_0/memory.peak", "100");
  write(job + "step_0/user/task_0/memory.events", "oom_kill 0");
  write(job + "step_0/user/task_0/cpu.stat", "usage_usec 5");
  EXPECT_EQ(jobs::control_group("0::/" + job + "step_0/user/task_0\n", dir.path()),
            (nlohmann::json{{"memory.max", 500},
                            {"memory.peak", 400},
                            {"memory.oom_kill", 2},
                            {"cpu.stat", "usage_usec 5\n"}}));
  // Elsewhere it is the process's own.
  write("user.slice/memory.max", "2000");
  write("user.slice/memory.peak", "1500");
  write("user.slice/own/memory.peak", "7");
  EXPECT_EQ(jobs::control_group("0::/user.slice/own\n", dir.path()),
            (nlohmann::json{{"memory.max", 2000}, {"memory.peak", 7}}));
  // Version 1, with the other beside it.
  write("memory/memory.limit_in_bytes", "9223372036854771712");
  write("memory/slurm/uid_1/job_7/memory.limit_in_bytes", "3000");
  write("memory/slurm/uid_1/job_7/memory.max_usage_in_bytes", "2500");
  write("memory/slurm/uid_1/job_7/step_0/memory.max_usage_in_bytes", "1");
  write("memory/slurm/uid_1/job_7/memory.oom_control", "under_oom 0\noom_kill 3");
  EXPECT_EQ(
      jobs::control_group(
          "9:cpu:/x\n4:memory:/slurm/uid_1/job_7/step_0\n1:name=systemd:/y\n0::/z\n", dir.path()),
      (nlohmann::json{{"memory.max", 3000}, {"memory.peak", 2500}, {"memory.oom_kill", 3}}));
  EXPECT_EQ(jobs::control_group("", dir.path()), nlohmann::json::object());
}

TEST(Collate, many_processes_without_a_start_take_seconds) {
  // Static programs, children of static ones.
  constexpr int kMany = 100'000;
  const TestDir dir;
  {
    std::ofstream records(dir / "records", std::ios::binary);
    for (int i = 0; i < kMany; ++i) {
      struct {
        jobs::RecordHeader header;
        jobs::ReapedBody body;
      } record{};
      record.header = {
          jobs::kRecordMagic, sizeof record, jobs::RecordType::reaped, 0, 100 + i, 0, 0};
      record.body.time = 1'000'000 + i;
      record.body.parent = 99 + i;
      record.body.usage.utime = record.body.usage.stime = 10;
      records.write(reinterpret_cast<const char*>(&record), sizeof record);
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto collated = value_or_throw(jobs::collate(dir / "records"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
  EXPECT_EQ(collated.processes.size(), static_cast<std::size_t>(kMany));
  EXPECT_EQ(collated.partial, kMany);
}

TEST(Collate, process_of_more_cpu_hours_than_a_number_holds_keeps_its_end) {
  const TestDir dir;
  std::string records;
  const auto add = [&](jobs::RecordType type, const auto& body, const std::string& rest) {
    const auto size =
        static_cast<std::uint16_t>(sizeof(jobs::RecordHeader) + sizeof body + rest.size());
    const jobs::RecordHeader header{jobs::kRecordMagic, size, type, 0, 10, 0, 1'000'000};
    records.append(reinterpret_cast<const char*>(&header), sizeof header);
    records.append(reinterpret_cast<const char*>(&body), sizeof body) += rest;
  };
  constexpr std::int64_t kExact = std::int64_t{1} << 53;
  jobs::StartBody start{};
  start.ppid = 1;
  jobs::EndBody end{};
  end.status = 5;
  end.threads = 2;  // one has ended: the other's times are its own row
  end.usage.time = 3'000'000;
  end.usage.cpu_ns = end.usage.perf[0] = std::numeric_limits<std::int64_t>::max();
  end.usage.task.utime = 1;
  for (auto& value : end.usage.task.sched) value = std::numeric_limits<std::int64_t>::max();
  add(jobs::RecordType::start, start, std::string("/bin/sh\0\0\0sh\0", 13));
  add(jobs::RecordType::end, end, "");
  write_text_file(dir / "records", records);
  const auto collated = value_or_throw(jobs::collate(dir / "records"));
  EXPECT_EQ(collated.damaged, 0);
  ASSERT_EQ(collated.processes.size(), 1U);
  EXPECT_EQ(collated.processes[0].exitcode, 5);
  for (const auto& row : collated.processes[0].threads)
    for (const auto& value : row) EXPECT_LE(value.value_or(0), kExact);
}

TEST_F(Collected, archives_of_nodes_that_share_a_directory_are_all_kept) {
  // epmt's name has no host in it.
  for (int i = 0; i < 16; ++i) {
    options_.env[0] = "HEDDLE_JOB_SPOOL=" + (dir_ / ("spool" + std::to_string(i)));
    ASSERT_EQ(fs_job({"start"}).status, 0);
    ASSERT_EQ(fs_job({"stop"}).status, 0);
  }
  const auto result =
      sh("for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do HEDDLE_JOB_SPOOL=$PWD/spool$i " +
         fs_job_ + " stage --epmt & done; wait");
  EXPECT_EQ(archives().size(), 16U) << result.out << result.err;
}

TEST_F(Collected, nodes_whose_scheduler_tells_no_start_are_one_job) {
  if (run({"unshare", "-u", "hostname", "n1"}).status != 0)
    HEDDLE_SKIP("no host name of its own can be given to a process");
  options_.env = options_.env + Strings{"SLURM_JOB_NODELIST=n[1-3]", "SLURM_JOB_START_TIME"};
  const auto result = sh(
      "for n in n1 n2 n3; do HEDDLE_JOB_SPOOL=$PWD/spool-$n unshare -u sh -c \"hostname $n; exec " +
      fs_job_ + " run -q sleep 3\" & sleep 0.1; done; wait");
  ASSERT_EQ(archives().size(), 3U) << result.err;
  const auto submitted = fs_job(Strings{"submit", "--db", dir_ / "jobs.db"} + archives());
  ASSERT_EQ(submitted.status, 0) << submitted.err;
  const auto jobs =
      nlohmann::json::parse(fs_job({"query", "--db", dir_ / "jobs.db", "--format", "json"}).out);
  ASSERT_EQ(jobs.size(), 1U) << jobs;
  EXPECT_EQ(jobs[0]["num_hosts"], 3);
  EXPECT_EQ(jobs[0]["complete"], 1);
}

TEST_F(Collected, a_killed_run_is_written_by_the_next) {
  auto result = sh(fs_job_ + " run -q sh -c '/bin/echo first; echo $$ >pid; sleep 60' & run=$!\n" +
                   "while [ ! -s pid ]; do sleep 0.05; done; kill -9 $run; wait $run; echo $?");
  EXPECT_EQ(result.out, "first\n137\n");
  const auto pid = read_file(dir_ / "pid").value_or("");
  EXPECT_TRUE(wait_until(10s, [&] {
    const auto status = read_file("/proc/" + pid.substr(0, pid.find('\n')) + "/status");
    return !status || status->find("State:\tZ") != status->npos;
  }));
  EXPECT_TRUE(archives().empty());
  ASSERT_EQ(collect({"true"}).status, 0);
  EXPECT_EQ(archive_.of("echo").size(), 1U);
  EXPECT_EQ(archive_.of("true").size(), 1U);
  EXPECT_EQ(archive_.of("dash").size(), 1U);
  EXPECT_FALSE(fs::exists(dir_ / "spool/1"));
}

TEST_F(Collected, a_requeued_job_is_one_of_its_own) {
  const auto killed =
      sh(fs_job_ + " run -q sh -c '/bin/echo first; echo $$ >pid; exec sleep 60' & run=$!\n" +
         "while [ ! -s pid ]; do sleep 0.05; done; kill -9 $run; wait $run; kill -9 $(cat pid)");
  EXPECT_EQ(killed.out, "first\n");
  options_.env.push_back("SLURM_RESTART_COUNT=1");
  EXPECT_EQ(fs_job({"run", "-q", "true"}).status, 0);
  EXPECT_EQ(programs_by_restart(), (std::map<int, std::string>{{0, "echo "}, {1, "true "}}));
  const auto submitted = fs_job(Strings{"submit", "--db", dir_ / "jobs.db"} + archives());
  ASSERT_EQ(submitted.status, 0) << submitted.err;
  EXPECT_EQ(lines_of(fs_job({"list", "--db", dir_ / "jobs.db"}).out), (Strings{"1", "1"}));
}

TEST_F(Collected, a_requeued_job_of_a_prolog_is_one_of_its_own) {
  const auto environment = options_.env;
  const auto collected = [this](const std::string& program) {
    return sh("eval \"$(" + fs_job_ + " source --shell sh)\"; " + program).status;
  };
  // Prologs of a node's tasks run at once: any may be the first.
  for (const std::string first : {"start", "source"}) {
    SCOPED_TRACE(first);
    for (const auto& file : archives()) fs::remove(file);
    options_.env = environment;
    ASSERT_EQ(fs_job({"start"}).status, 0);
    EXPECT_EQ(collected("/bin/echo"), 0);
    EXPECT_EQ(fs_job({first}).status, 0);
    EXPECT_EQ(archives().size(), 0U) << "the job runs";
    options_.env.push_back("SLURM_RESTART_COUNT=1");
    EXPECT_EQ(fs_job({first}).status, 0);
    EXPECT_EQ(archives().size(), 1U);
    EXPECT_EQ(collected("/bin/true"), 0);
    EXPECT_EQ(fs_job({"start"}).status, 0);
    // Without the scheduler's variables it is the same job.
    EXPECT_EQ(sh("unset SLURM_RESTART_COUNT; " + fs_job_ + " start").status, 0);
    EXPECT_EQ(fs_job({"stop"}).status, 0);
    EXPECT_EQ(fs_job({"stage"}).status, 0);
    EXPECT_EQ(programs_by_restart(), (std::map<int, std::string>{{0, "echo "}, {1, "true "}}));
  }
}

TEST_F(Collected, a_run_without_arguments_has_none_in_a_job_that_keeps_them) {
  const auto unlinked = compile("unlinked", "int main(void) { return 0; }", {"-static"});
  ASSERT_EQ(fs_job({"start"}).status, 0);
  for (const std::string what : {"full", "exe", "none"})
    EXPECT_EQ(fs_job({"run", "-q", "--argv", what, "--", unlinked, what}).status, 0);
  ASSERT_EQ(fs_job({"stop"}).status, 0);
  ASSERT_EQ(fs_job({"stage"}).status, 0);
  const auto found = read_job(archives().at(0));
  Strings all;
  for (const auto& row : found.of("unlinked")) all = all + row.args();
  EXPECT_EQ(found.of("unlinked").size(), 3U);
  EXPECT_EQ(all, Strings{"full"});
}

TEST_F(Collected, a_recording_says_which_files_each_process_used) {
  const auto fs_record = fs::path(fs_job_).parent_path() / "fs-record";
  write_text_file(dir_ / "data", std::string(70'000, 'x'));
  const auto result = collect({fs_record, "-q", "--io", "--out", dir_ / "trace", "sh", "-c",
                               "cat data >copy; cat missing; exit 3"});
  if (const auto alone = run({fs_record, "-q", "--out", dir_ / "alone", "true"}, options_);
      alone.status != 0)
    HEDDLE_SKIP("fs-record cannot mount here: " + alone.err);
  ASSERT_EQ(result.status, 3) << result.err;
  options_.env.push_back("FS_JOB_DB=" + dir_ / "jobs.db");
  ASSERT_EQ(fs_job({"submit", archives().at(0)}).status, 0);
  const auto joined = fs_job({"submit", "--trace", dir_ / "trace", "1"});
  ASSERT_EQ(joined.status, 0) << joined.err;
  std::map<std::string, std::map<std::string, int>> of_cat;
  for (const auto& row :
       nlohmann::json::parse(fs_job({"show", "1", "--files", "--format", "json"}).out))
    if (row["exename"] == "cat" && row["path"].is_string()) {
      auto& all = of_cat[fs::path(row["path"]).filename()];
      for (const char* name : {"opens", "failed", "bytes_read", "bytes_written"})
        all[name] += row[name].get<int>();
    }
  EXPECT_EQ(of_cat["data"]["opens"], 1);
  EXPECT_EQ(of_cat["data"]["bytes_read"], 70'000);
  EXPECT_EQ(of_cat["copy"]["bytes_written"], 70'000);
  EXPECT_GE(of_cat["missing"]["failed"], 1);
  EXPECT_EQ(of_cat["missing"]["opens"], 0);
  EXPECT_GE(of_cat["libc.so.6"]["opens"], 2)
      << "of both, though ld.so opens it before the collector";
  EXPECT_NE(fs_job({"submit", "--trace", dir_ / "trace", "-n", "1"}).status, 0);
  EXPECT_NE(fs_job({"submit", "--trace", dir_ / "data", "1"}).status, 0);
}

TEST_F(Collected, a_running_job_is_annotated_by_its_own_commands) {
  const auto result = collect({"sh", "-c",
                               fs_job_ + " annotate model=a 'note=x y' && " + fs_job_ +
                                   " annotate 1 model=b && " + fs_job_ + " tag 'exp:1;quick'"},
                              {"--annotate", "model=0"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(archive_.job["annotations"], (nlohmann::json{{"model", "b"}, {"note", "x y"}}));
  EXPECT_EQ(archive_.job["tags"], (nlohmann::json{{"exp", "1"}, {"quick", "1"}}));
  ASSERT_EQ(fs_job({"start"}).status, 0);
  EXPECT_EQ(fs_job({"annotate", "a=1"}).status, 0);
  EXPECT_EQ(fs_job({"annotate", "--replace", "b=2"}).status, 0);
  EXPECT_EQ(fs_job({"stop"}).status, 0);
  EXPECT_EQ(fs_job({"annotate", "c=3"}).status, 0) << "not staged yet";
  for (const auto& file : archives()) fs::remove(file);
  EXPECT_EQ(fs_job({"stage"}).status, 0);
  EXPECT_EQ(read_job(archives().at(0)).job["annotations"],
            (nlohmann::json{{"b", "2"}, {"c", "3"}}));
  const auto none = fs_job({"annotate", "a=1"});
  EXPECT_EQ(none.status, 3);
  EXPECT_THAT(none.err, HasSubstr("no job is collected on this node"));
}

TEST_F(Collected, an_epilog_writes_what_a_killed_run_has_left) {
  if (::geteuid() != 0) HEDDLE_SKIP("setpriv needs root");
  const auto epilog = fs_job_.substr(0, fs_job_.rfind("/bin/")) + "/share/heddle/fs-job-epilog.sh";
  fs::create_directories(dir_ / "to");
  ASSERT_EQ(::chown((dir_ / "to").c_str(), 65534, 65534), 0);
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0777), 0);
  // Both are killed at once, as slurmd does it.
  const auto killed = [&](const std::string& id) {
    return "export SLURM_JOB_ID=" + id +
           "; rm -f pid; setsid setpriv --reuid 65534 --clear-groups " + fs_job_ +
           " run -q --to to sh -c '/bin/echo x >&2; echo $$ >pid; sleep 60' & run=$!\n" +
           "while [ ! -s pid ]; do sleep 0.05; done; kill -9 -$run; kill -9 -$(cat pid) "
           "2>/dev/null\n";
  };
  auto result = sh(killed("7") + killed("8") + killed("9") +
                   "export SLURM_JOB_UID=65534 SLURM_JOB_GID=65534 SLURM_JOB_ID=; cd /\n" +
                   "SLURM_JOB_ID=7 sh " + epilog + " || exit 1; SLURM_JOB_ID=77 sh " + epilog);
  EXPECT_EQ(result.status, 0) << result.err;
  Strings found;
  for (const auto& entry : fs::directory_iterator(dir_ / "to")) found.push_back(entry.path());
  ASSERT_EQ(found.size(), 1U) << result.err;
  archive_ = read_job(found[0]);
  EXPECT_EQ(archive_.job["jobid"], "7");
  EXPECT_EQ(archive_.job["collector"]["left"], true);
  EXPECT_FALSE(archive_.job.contains("environment_changes"));
  ASSERT_EQ(archive_.of("echo").size(), 1U);
  EXPECT_LE(archive_.of("echo")[0].number("finish"), archive_.job["stop"]);
  EXPECT_EQ(archive_.of("sleep").size() + archive_.of("dash").size(), 2U);
  EXPECT_FALSE(fs::exists(dir_ / "spool/7"));
  // The others by one command; what still runs, or may go on, stays.
  result =
      sh("SLURM_JOB_ID=1 setpriv --reuid 65534 --clear-groups " + fs_job_ + " start\n" +
         "SLURM_JOB_ID=2 setpriv --reuid 65534 --clear-groups " + fs_job_ +
         " run -q --to to sh -c ': >runs; sleep 2' & while [ ! -e runs ]; do sleep 0.05; done\n" +
         "setpriv --reuid 65534 --clear-groups " + fs_job_ + " stage --left; ls spool; wait");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("to/8-"), HasSubstr("to/9-"), ::testing::EndsWith("\n1\n2\n")));
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
}

TEST_F(Collected, an_archive_for_which_there_is_no_room_is_none_and_can_be_written_later) {
  ASSERT_EQ(fs_job({"start"}).status, 0);
  ASSERT_EQ(sh("eval \"$(" + fs_job_ + " source --shell sh)\"; /bin/true").status, 0);
  ASSERT_EQ(fs_job({"stop"}).status, 0);
  fs::create_directory(dir_ / "full");
  const auto full = dir_ / "full";
  const auto failed =
      sh("unshare -m sh -c 'mount --make-rprivate / && mount -t tmpfs -o size=4k none " + full +
         " || exit 77; head -c 4096 /dev/zero >" + full + "/x; " + fs_job_ + " stage --to " + full +
         "; code=$?; ls -A " + full + "; exit $code'");
  if (failed.status == 77) HEDDLE_SKIP("no tmpfs can be mounted");
  EXPECT_NE(failed.status, 0);
  EXPECT_EQ(failed.out, "x\n");
  EXPECT_EQ(lines_of(failed.err).size(), 1U) << failed.err;
  EXPECT_THAT(failed.err, HasSubstr("No space left on device"));
  const auto staged = fs_job({"stage"});
  ASSERT_EQ(staged.status, 0) << staged.err;
  EXPECT_EQ(read_job(archives().at(0)).of("true").size(), 1U);
}

TEST_F(Collected, failed_lookups_are_counted_with_lookups) {
  compile("libodd.so", "int odd(void) { return 0; }", {"-shared", "-fPIC"});
  const auto program =
      compile("asks", "int odd(void); int main(void) { return odd(); }",
              {"-L" + dir_.path(), "-l:libodd.so",
               "-Wl,-rpath," + (dir_ / "a") + ":" + (dir_ / "b") + ":" + dir_.path()});
  fs::create_directories(dir_ / "a");
  fs::create_directories(dir_ / "b");
  ASSERT_EQ(collect({program}, {"--lookups"}).status, 0);
  EXPECT_GE(archive_.rows.at(0).number("failed_lookups"), 2);
  bool found = false;
  for (const auto& line : lines_of(archive_.libraries)) {
    const auto fields = split(line, '\t');
    if (fields[1] != "libodd.so") continue;
    found = true;
    EXPECT_EQ(fields[2], dir_ / "libodd.so");
    EXPECT_GE(std::stoi(fields[3]), 2);
    EXPECT_EQ(fields.at(4), std::to_string(fs::file_size(dir_ / "libodd.so")));
  }
  EXPECT_TRUE(found) << archive_.libraries;
}

TEST_F(Collected, secrets_are_masked) {
  options_.env = options_.env + Strings{"SLURM_TOKEN=hidden", "OMP_PROXY=http://me:hidden@host/",
                                        "MY_OWN=unlisted"};
  collect(Strings{"true",
                  "--password",
                  "hidden",
                  "--api-token=hidden",
                  "ftp://u:hidden@h/x",
                  "https://hidden@h/",
                  "https://hidden:x-oauth-basic@h/y",
                  "--pass",
                  "hidden",
                  "-H",
                  "Authorization: Bearer hidden",
                  "-HX-Api-Key: hidden",
                  "--header=Cookie: hidden",
                  "-u",
                  "me:hidden",
                  "--user=me:hidden",
                  "-H",
                  "Accept: */*",
                  "ssh://git@h/",
                  "--pass-through",
                  "x",
                  "-u",
                  "plain",
                  "--key=2"});
  const auto text = archive_.job.dump() + archive_.rows.at(0)["args"];
  EXPECT_THAT(text, Not(HasSubstr("hidden")));
  EXPECT_THAT(text, Not(HasSubstr("unlisted")));
  const auto args = archive_.rows[0].args();
  EXPECT_EQ(Strings(args.end() - 8, args.end()),
            (Strings{"-H", "Accept: */*", "ssh://git@h/", "--pass-through", "x", "-u", "plain",
                     "--key=2"}));
  for (const std::string masked :
       {"me:***", "--user=me:***", "https://***@h/", "Authorization:***"})
    EXPECT_EQ(std::ranges::count(args, masked), 1) << masked;
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
  ASSERT_EQ(fs_job({"stage"}).status, 0);
  archive_ = read_job(archives().at(0));
  EXPECT_EQ(archive_.of("true").size(), 2U);
  EXPECT_EQ(archive_.job["collector"]["damaged"], 1);
}

TEST_F(Collected, runs_of_one_job_at_once_make_one_archive) {
  const auto result =
      sh("for i in 1 2 3 4 5 6 7 8; do " + fs_job_ + " run -q sleep 0.5 & done; wait");
  EXPECT_EQ(result.status, 0) << result.err;
  ASSERT_EQ(archives().size(), 1U);
  EXPECT_EQ(read_job(archives()[0]).of("sleep").size(), 8U);
}

TEST_F(Collected, watch_shows_what_runs) {
  ASSERT_EQ(fs_job({"start"}).status, 0);
  const auto result =
      sh("eval \"$(" + fs_job_ + " source --shell sh)\"; sleep 30 & fs_job_uninstrument; " +
         fs_job_ + " watch 1 --interval 0.1 --count 3; kill $!");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("job 1: 1 processes"), HasSubstr("  sleep\n")))
      << result.out;
  EXPECT_NE(fs_job({"watch", "2"}).status, 0);
}

TEST_F(Collected, watch_shows_rates_in_a_terminal) {
  if (sh("command -v script").status != 0) HEDDLE_SKIP("script(1) is not installed");
  const auto spins = compile("spins", R"(
#include <fcntl.h>
#include <unistd.h>
static char bytes[1 << 16];
int main(void) {
  for (int fd = open("/dev/null", O_WRONLY);;) {
    for (volatile int i = 0; i < 100000; ++i);
    if (write(fd, bytes, sizeof bytes) < 0) return 1;
  }
})");
  ASSERT_EQ(fs_job({"start", "--lookups"}).status, 0);
  // ld.so misses a path of a preload that is not there.
  const auto result =
      sh("eval \"$(" + fs_job_ + " source --lookups --shell sh)\"; " + spins +
         " & spins=$!\nexport LD_LIBRARY_PATH=$PWD\nwhile :; do /bin/true; done & starts=$!\n"
         "fs_job_uninstrument\nscript -qec '" +
         fs_job_ +
         " watch 1 --interval 0.5 --count 3 --rows 1' /dev/null\n"
         "kill $spins $starts; wait");
  const auto last = result.out.rfind("\033[H\033[J");
  ASSERT_NE(last, std::string::npos) << result.out << result.err;
  const auto picture = result.out.substr(last);
  double starts = 0, cpu = 0, lookups = 0;
  const auto at = picture.find(" processes, "), failed = picture.find("failed look-ups ");
  ASSERT_NE(at, std::string::npos) << picture;
  ASSERT_NE(failed, std::string::npos) << picture;
  EXPECT_EQ(std::sscanf(picture.c_str() + at, " processes, %lf starts/s, CPU %lf", &starts, &cpu),
            2);
  EXPECT_EQ(std::sscanf(picture.c_str() + failed, "failed look-ups %lf", &lookups), 1) << picture;
  EXPECT_GT(starts, 0) << picture;
  EXPECT_GT(cpu, 0) << picture;
  EXPECT_GT(lookups, 0) << picture;
  EXPECT_THAT(picture, AllOf(HasSubstr("  spins\r\n"), Not(HasSubstr(", written 0B/s"))));
}

}  // namespace
}  // namespace heddle::test
