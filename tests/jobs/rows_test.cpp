// SPDX-License-Identifier: MIT
// Which processes have rows, and what names them and tells their ends.
#include "tests/jobs/collected.hpp"

namespace heddle::test {
namespace {

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
static void* body(void* wait) {
  for (volatile long i = 0; i < (wait ? 1000 : 20000000); ++i);
  if (wait) pause();
  return 0;
}
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
  // The kernel divides a short time by chance.
  const auto cpu = [](const auto& thread) {
    return thread.at("usertime") + thread.at("systemtime");
  };
  EXPECT_GT(cpu(row.threads.back()), cpu(row.threads[1]));
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
#include <fcntl.h>
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
    if (!strcmp(v[1], "execl")) execl("./unlinked", "x", v[1], (char*)0);
    if (!strcmp(v[1], "execlp")) execlp("unlinked", "x", v[1], (char*)0);
    if (!strcmp(v[1], "execle")) execle("./unlinked", "x", v[1], (char*)0, none);
    if (!strcmp(v[1], "fexecve")) fexecve(open("unlinked", O_RDONLY), words, none);
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
  write_text_file(dir_ / "broken", broken, 0700);
  for (const std::string how : {"spawn", "spawnp", "vfork", "execvp", "execvpe", "execl", "execlp",
                                "execle", "fexecve", "replace"}) {
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
  const auto burns = compile("burns", R"(
#include <time.h>
int main(void) { while (clock() < CLOCKS_PER_SEC / 2) for (volatile int i = 0; i < 10000000; ++i); })");
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

TEST_F(Collected, a_child_that_no_function_of_libcs_reaps_has_a_row) {
  const auto unlinked = compile("unlinked", "int main(void) { return 3; }", {"-static"});
  const auto waits = compile("waits", R"(
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int c, char** v) {
  if (!strcmp(v[1], "system")) return WEXITSTATUS(system("exec ./unlinked"));
  if (!strcmp(v[1], "killed")) return WTERMSIG(system("kill -9 $$"));
  siginfo_t info;
  int status = 0;
  if (!strcmp(v[1], "ignores")) signal(SIGCHLD, SIG_IGN);
  const pid_t child = fork();
  if (child == 0) { execv("./unlinked", v); _exit(9); }
  if (!strcmp(v[1], "syscall"))
    return syscall(SYS_wait4, child, &status, 0, 0) == child && syscall(SYS_wait4, -1, 0, 0, 0) == -1 &&
           errno == ECHILD ? WEXITSTATUS(status) : 1;
  return wait(0) == -1 ? 3 : 1;  // ignored
})");
  const auto rows = [&](const std::string& how, int status) {
    EXPECT_EQ(collect({waits, how}).status, status) << how;
    return archive_.rows;
  };
  // It ends as the kernel tells.
  ASSERT_EQ(rows("syscall", 3).size(), 2U);
  EXPECT_EQ(archive_.of("unlinked").at(0)["exitcode"], "3");
  EXPECT_EQ(archive_.of("unlinked")[0]["ended_by"], "parent");
  // Its end is not known: libc waits by itself, or not at all.
  for (const std::string how : {"system", "ignores"}) {
    EXPECT_EQ(rows(how, 3).size(), how == "system" ? 3U : 2U);
    ASSERT_EQ(archive_.of("unlinked").size(), 1U) << how;
    EXPECT_EQ(archive_.of("unlinked")[0]["marks"], "partial");
    EXPECT_EQ(archive_.of("unlinked")[0]["exitcode"], "");
  }
  ASSERT_EQ(rows("killed", 9).size(), 2U);
  EXPECT_EQ(archive_.of("dash").at(0)["marks"], "partial");
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

}  // namespace
}  // namespace heddle::test
