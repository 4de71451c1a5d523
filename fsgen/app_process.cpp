// SPDX-License-Identifier: MIT
#include "fsgen/app_process.hpp"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#include <csignal>

#include "base/socket_pair.hpp"
#include "fuseovl/warm_up.hpp"

namespace heddle {
namespace {

std::uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

std::vector<char*> to_c_array(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const auto& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

[[noreturn]] void become(const AppCommand& command, const SignalRelay& signals, Counters* counters,
                         int socket) {
  const auto argv = to_c_array(command.argv);
  const auto environment = to_c_array(command.environment);
  // A script without #!: what execvp(3) and every shell do.
  std::vector<std::string> shell_words{"/bin/sh", command.path};
  if (command.argv.size() > 1)
    shell_words.insert(shell_words.end(), command.argv.begin() + 1, command.argv.end());
  const auto shell_argv = to_c_array(shell_words);
  signals.restore_in_child();
  if (counters) {
    counters->app_pid = static_cast<std::uint64_t>(::getpid());
    counters->exec_ns = monotonic_ns();
  }
  ::execve(command.path.c_str(), argv.data(), environment.data());
  if (errno == ENOEXEC) ::execve("/bin/sh", shell_argv.data(), environment.data());
  const int error = errno;
  (void)::send(socket, &error, sizeof(error), MSG_NOSIGNAL);
  ::_exit(error == ENOENT ? 127 : 126);
}

/// The child's life up to exec. `parent` tells whether we are still wanted.
[[noreturn]] void child_main(const AppCommand& command,
                             const std::optional<std::string>& mount_point, NamespaceKind kind,
                             const SignalRelay& signals, Counters* counters, int socket,
                             pid_t parent) {
  if (mount_point) {
    auto fuse = mount_privately(*mount_point, kind);
    if (!fuse) {
      send_failure(socket, fuse.error());
      ::_exit(126);
    }
    if (auto sent = send_fd(socket, fuse->get()); !sent) ::_exit(126);
  }
  // After unshare: changing credentials clears it (prctl(2)).
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(126);
  char go = 0;
  ssize_t n;
  do {
    n = ::recv(socket, &go, 1, 0);
  } while (n < 0 && errno == EINTR);
  if (n != 1) ::_exit(126);
  // A cold mount is a slower one, no more: APP starts all the same.
  if (mount_point) (void)warm_up(*mount_point);
  become(command, signals, counters, socket);
}

}  // namespace

Result<AppProcess> AppProcess::start(const AppCommand& command,
                                     const std::optional<std::string>& mount_point,
                                     NamespaceKind kind, const SignalRelay& signals,
                                     Counters* counters) {
  auto sockets = make_socket_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno(command.path, "cannot start");
  if (pid == 0) {
    sockets->one.reset();
    child_main(command, mount_point, kind, signals, counters, sockets->other.get(), parent);
  }
  return AppProcess(Child(pid), std::move(sockets->one));
}

Result<Fd> AppProcess::take_fuse_fd() { return receive_fd(socket_.get()); }

Result<void> AppProcess::run() {
  if (::send(socket_.get(), "g", 1, MSG_NOSIGNAL) != 1)
    return fail_errno("", "cannot start the program");
  // The child's end closes on exec: end of file is success.
  int error = 0;
  ssize_t n;
  do {
    n = ::recv(socket_.get(), &error, sizeof(error), 0);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof(error))) return fail_errno("", "cannot run", error);
  return {};
}

Result<int> AppProcess::wait(SignalRelay& signals) {
  auto status = signals.wait(child_.pid());
  if (status) (void)child_.release();  // reaped
  return status;
}

}  // namespace heddle
