// SPDX-License-Identifier: MIT
#include "base/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>

#include "base/child_end.hpp"

namespace heddle {
namespace {

std::vector<char*> to_c_array(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const auto& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

/// In the child, between fork and exec: async-signal-safe calls only. Descriptors are first moved
/// above every number that is wanted, so that no assignment overwrites a source still needed.
bool place_fds(const std::pair<int, int>* fds, int* moved, std::size_t count, int floor) {
  for (std::size_t i = 0; i < count; ++i) {
    moved[i] = ::fcntl(fds[i].first, F_DUPFD_CLOEXEC, floor);
    if (moved[i] < 0) return false;
  }
  for (std::size_t i = 0; i < count; ++i)
    if (::dup2(moved[i], fds[i].second) < 0) return false;
  return true;
}

/// Only where a tracer is, and no seccomp filter: under strace --seccomp-bpf each filtered system
/// call of an untraced child would fail with ENOSYS (seccomp(2), SECCOMP_RET_TRACE).
bool may_leave_tracer() {
  const auto status = read_file("/proc/self/status", 1U << 16);
  return status && status->find("\nTracerPid:\t0\n") == std::string::npos &&
         status->find("\nSeccomp:\t0\n") != std::string::npos;
}

void reset_signals() {
  struct sigaction defaults {};
  defaults.sa_handler = SIG_DFL;
  for (int n = 1; n < NSIG; ++n) ::sigaction(n, &defaults, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

int exit_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  return *this;
}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<int> Child::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0)
    if (errno != EINTR) return fail_errno("", "cannot wait for a child process");
  pid_ = -1;
  return exit_status(status);
}

Result<std::optional<int>> Child::wait_for(std::chrono::milliseconds limit) {
  const auto ended = watch_child_end(pid_);
  if (!ended) return fail(ended.error());
  pollfd poll_entry{ended->get(), POLLIN, 0};
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    const int n = ::poll(&poll_entry, 1, static_cast<int>(std::max<long>(0, left.count())));
    if (n > 0) {
      auto status = wait();
      if (!status) return fail(std::move(status.error()));
      return std::optional<int>(*status);
    }
    if (n == 0) return std::optional<int>();
    if (errno != EINTR) return fail_errno("", "cannot wait for a child process");
  }
}

Result<Child> spawn(const std::string& path, const std::vector<std::string>& argv,
                    const SpawnOptions& options) {
  const auto c_argv = to_c_array(argv);
  std::vector<char*> c_environment;
  if (options.environment) c_environment = to_c_array(*options.environment);
  std::vector<int> moved(options.fds.size());
  int floor = 3;
  for (const auto& [from, to] : options.fds) floor = std::max({floor, from + 1, to + 1});

  auto error_pipe = make_pipe();
  if (!error_pipe) return fail(std::move(error_pipe.error()));
  floor = std::max(floor, error_pipe->write_end.get() + 1);
  const pid_t pid = options.untraced && may_leave_tracer()
                        ? static_cast<pid_t>(::syscall(SYS_clone, CLONE_UNTRACED | SIGCHLD, nullptr,
                                                       nullptr, nullptr, nullptr))
                        : ::fork();
  if (pid < 0) return fail_errno(path, "cannot start");
  if (pid == 0) {
    reset_signals();
    const int report_fd = ::fcntl(error_pipe->write_end.get(), F_DUPFD_CLOEXEC, floor);
    if (place_fds(options.fds.data(), moved.data(), moved.size(), floor))
      ::execve(path.c_str(), c_argv.data(), options.environment ? c_environment.data() : ::environ);
    const int error = errno;
    [[maybe_unused]] const ssize_t n = ::write(report_fd, &error, sizeof(error));
    ::_exit(127);
  }
  Child child(pid);
  error_pipe->write_end.reset();
  int error = 0;
  ssize_t n;
  do {
    n = ::read(error_pipe->read_end.get(), &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof(error))) return fail_errno(path, "cannot start", error);
  return child;
}

Result<std::string> own_program_dir() {
  std::error_code error;
  const auto exe = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return fail_errno("/proc/self/exe", "cannot read", error.value());
  return exe.parent_path().string();
}

}  // namespace heddle
