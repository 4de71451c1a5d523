// SPDX-License-Identifier: MIT
#include "base/launch/app_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string_view>

#include "base/socket_pair.hpp"

namespace heddle {
namespace {

std::vector<char*> to_c_array(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const auto& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

/// An errno travels alone, so that run() can tell it from a failure's text.
void send_errno(int socket, int error) {
  (void)::send(socket, &error, sizeof(error), MSG_NOSIGNAL);
}

/// Whether a file that execve(2) does not know may be a script without #!: as bash does it
/// (general.c, check_binary_file), it is none with a NUL in its first line. sh alone would read a
/// program for another machine line by line.
bool may_be_script(const std::string& path) {
  char head[80];
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const ssize_t n = fd ? ::read(fd.get(), head, sizeof(head)) : 0;
  const std::string_view text(head, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return text.substr(0, text.find('\n')).find('\0') == std::string_view::npos;
}

[[noreturn]] void become(const AppCommand& command, const AppSetup& setup,
                         const SignalRelay& signals, int socket) {
  const auto argv = to_c_array(command.argv);
  const auto environment = to_c_array(command.environment);
  // A script without #!: what execvp(3) and every shell do.
  std::vector<std::string> shell_words{"/bin/sh", command.path};
  if (command.argv.size() > 1)
    shell_words.insert(shell_words.end(), command.argv.begin() + 1, command.argv.end());
  const auto shell_argv = to_c_array(shell_words);
  signals.restore_in_child();
  if (setup.before_exec) setup.before_exec();
  ::execve(command.path.c_str(), argv.data(), environment.data());
  int error = errno;
  if (error == ENOEXEC && may_be_script(command.path)) {
    ::execve("/bin/sh", shell_argv.data(), environment.data());
    error = errno;
  }
  send_errno(socket, error);
  ::_exit(error == ENOENT ? 127 : 126);
}

/// The child's life up to exec. `parent` tells whether we are still wanted.
[[noreturn]] void child_main(const AppCommand& command, const AppSetup& setup,
                             const SignalRelay& signals, int socket, pid_t parent) {
  if (setup.mount) {
    auto fuse = setup.mount();
    if (!fuse) {
      send_failure(socket, fuse.error(), FailureCode::sent);
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
  if (setup.enter) {
    if (auto entered = setup.enter(); !entered) {
      send_failure(socket, entered.error());
      ::_exit(126);
    }
  }
  become(command, setup, signals, socket);
}

}  // namespace

Result<AppProcess> AppProcess::start(const AppCommand& command, const AppSetup& setup,
                                     const SignalRelay& signals) {
  auto sockets = make_socket_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno(command.path, "cannot start");
  if (pid == 0) {
    sockets->one.reset();
    child_main(command, setup, signals, sockets->other.get(), parent);
  }
  return AppProcess(Child(pid), std::move(sockets->one));
}

Result<Fd> AppProcess::take_fuse_fd() { return receive_fd(socket_.get()); }

Result<void> AppProcess::run() {
  // Without an errno, which would say that it is exec that failed.
  const auto cannot_start = [](const std::string& reason) {
    return fail("", "cannot start the program", reason);
  };
  if (::send(socket_.get(), "g", 1, MSG_NOSIGNAL) != 1) return cannot_start(std::strerror(errno));
  // The child's end closes on exec: end of file is success.
  char text[4096];
  ssize_t n;
  do {
    n = ::recv(socket_.get(), text, sizeof(text), 0);
  } while (n < 0 && errno == EINTR);
  int error = 0;
  if (n == static_cast<ssize_t>(sizeof(error))) {
    std::memcpy(&error, text, sizeof(error));
    return fail_errno("", "cannot run", error);
  }
  if (n < 0) return cannot_start(std::strerror(errno));
  if (n == 0) return {};
  const auto failure = received_failure({text, static_cast<std::size_t>(n)});
  return fail("", failure.message(), std::string(), failure.hint());
}

Result<int> AppProcess::wait(SignalRelay& signals) {
  auto status = signals.wait(child_.pid());
  if (status) (void)child_.release();  // reaped
  return status;
}

}  // namespace heddle
