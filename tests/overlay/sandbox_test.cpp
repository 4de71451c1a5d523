// SPDX-License-Identifier: MIT
// A worker's sandbox: the attempts of a compromised worker fail, and serving still works.
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/sandbox/sanitized.hpp"
#include "fuseovl/supervise/worker_sandbox.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

class WorkerSandboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) HEDDLE_SKIP("a sanitizer's runtime makes calls that the sandbox forbids");
  }

  /// errno of `attempt` (0: it worked) in a process inside the sandbox.
  static int inside(const std::function<int()>& attempt,
                    const std::vector<std::string>& reopened = {},
                    const std::vector<int>& trees = {}) {
    const pid_t supervisor = ::getpid();
    WorkerSandbox sandbox(reopened, {}, kOriginTimeout, trees);
    const pid_t child = ::fork();
    if (child == 0) {
      if (!sandbox.enter(supervisor)) ::_exit(255);
      errno = 0;
      ::_exit(attempt() < 0 ? errno : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  static int open_inside(const std::string& path, const std::vector<std::string>& reopened,
                         int flags = O_RDONLY) {
    return inside([&] { return ::open(path.c_str(), flags, 0600); }, reopened);
  }

  std::string write(const std::string& name) const { return write_text_file(dir_ / name, name); }

  TestDir dir_;
};

TEST_F(WorkerSandboxTest, worker_cannot_exec_send_trace_or_mount) {
  const std::pair<const char*, std::function<int()>> attempts[] = {
      {"execve", [] { return ::execl("/bin/true", "true", nullptr); }},
      {"fork", [] { return ::fork(); }},
      {"socket", [] { return ::socket(AF_INET, SOCK_STREAM, 0); }},
      {"unix socket", [] { return ::socket(AF_UNIX, SOCK_STREAM, 0); }},
      {"ptrace", [] { return static_cast<int>(::ptrace(PTRACE_ATTACH, ::getppid(), 0, 0)); }},
      {"mount", [] { return ::mount("none", "/", "tmpfs", 0, ""); }},
      {"unshare", [] { return ::unshare(CLONE_NEWUSER); }},
      {"kill of another", [] { return ::kill(1, 0); }},
      {"unlink", [] { return ::unlink("/nonexistent"); }},
      {"memory with code",
       [] {
         return ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
                        MAP_FAILED
                    ? -1
                    : 0;
       }},
      {"bpf", [] { return static_cast<int>(::syscall(SYS_bpf, 0, nullptr, 0)); }},
  };
  for (const auto& [name, attempt] : attempts) EXPECT_EQ(inside(attempt), EPERM) << name;
}

TEST_F(WorkerSandboxTest, worker_opens_only_the_files_it_reopens) {
  const auto served = write("served/liba.so");
  const auto other = write("other/secret");
  const int refused = Landlock().works() ? EACCES : 0;
  EXPECT_EQ(open_inside(served, {served}), 0);
  EXPECT_EQ(open_inside(other, {served}), refused);
  EXPECT_EQ(open_inside("/etc/shadow", {served}), refused);
  EXPECT_EQ(open_inside("/etc/passwd", {}), refused);
  EXPECT_EQ(open_inside(other, {dir_ / "other"}), 0);
}

TEST_F(WorkerSandboxTest, worker_opens_files_below_a_tree_for_reading_only) {
  const auto below = write("tree/deep/er/file"), beside = write("file");
  const Fd tree(::open((dir_ / "tree").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const auto open_it = [&](const std::string& path, int flags) {
    return inside([&] { return ::open(path.c_str(), flags, 0600); }, {}, {tree.get()});
  };
  const int refused = Landlock().works() ? EACCES : 0;
  EXPECT_EQ(open_it(below, O_RDONLY), 0);
  EXPECT_EQ(open_it(beside, O_RDONLY), refused);
  EXPECT_EQ(open_it(dir_ / "tree", O_RDONLY | O_DIRECTORY), refused);
  EXPECT_EQ(open_it(below, O_RDWR), EPERM);
  EXPECT_EQ(open_it(below + ".new", O_RDONLY | O_CREAT), EPERM);
}

TEST_F(WorkerSandboxTest, worker_cannot_write) {
  const auto served = write("liba.so");
  EXPECT_EQ(open_inside(served, {served}, O_RDWR), EPERM);
  EXPECT_EQ(open_inside(served, {served}, O_RDONLY | O_TRUNC), EPERM);
  EXPECT_EQ(open_inside(dir_ / "new", {dir_.path()}, O_RDONLY | O_CREAT), EPERM);
}

TEST_F(WorkerSandboxTest, worker_can_use_threads_and_pipes_and_signal_its_supervisor) {
  EXPECT_EQ(inside([] {
              int ends[2];
              if (::pipe2(ends, O_CLOEXEC) != 0) return -1;
              std::thread([&] { (void)!::write(ends[1], "x", 1); }).join();
              char byte = 0;
              return ::read(ends[0], &byte, 1) == 1 && ::kill(::getppid(), 0) == 0 ? 0 : -1;
            }),
            0);
}

}  // namespace
}  // namespace heddle::test
