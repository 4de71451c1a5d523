// SPDX-License-Identifier: MIT
#include "base/launch/app_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/channel.hpp"

namespace heddle {

void raise_default(int number) {
  struct sigaction defaults {
  }, before{};
  defaults.sa_handler = SIG_DFL;
  ::sigaction(number, &defaults, &before);
  sigset_t only, mask;
  ::sigemptyset(&only);
  ::sigaddset(&only, number);
  // While it is blocked, so that a SIGCONT that comes now takes a pending stop back.
  ::raise(number);
  ::sigprocmask(SIG_UNBLOCK, &only, &mask);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::sigaction(number, &before, nullptr);
}

pid_t child_of(pid_t process) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(fmt::format("/proc/{}/task", process), error), end;
       !error && at != end; at.increment(error)) {
    const auto children = read_file(at->path() / "children");
    if (const pid_t first = children ? std::atoi(children->c_str()) : 0; first > 0) return first;
  }
  return 0;
}

int end_like(AppEnd end) {
  if (end.signal == 0) return end.status;
  // RLIMIT_CORE does not apply to a core_pattern that is a pipe (core(5)); this does.
  ::prctl(PR_SET_DUMPABLE, 0);
  raise_default(end.signal);
  return end.status;
}

Result<SignalRelay> SignalRelay::start() {
  sigset_t all;
  ::sigfillset(&all);
  // Faults must still end this process.
  for (int n : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP}) ::sigdelset(&all, n);
  sigset_t old_mask;
  if (::sigprocmask(SIG_BLOCK, &all, &old_mask) != 0) return fail_errno("", "cannot block signals");
  // With an inherited SIG_IGN for SIGCHLD the kernel would reap APP.
  struct sigaction defaults {};
  defaults.sa_handler = SIG_DFL;
  struct sigaction old_chld {};
  ::sigaction(SIGCHLD, &defaults, &old_chld);
  Fd fd(::signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return fail_errno("", "cannot make a signalfd");
  return SignalRelay(std::move(fd), old_mask, old_chld);
}

void SignalRelay::restore_in_child() const noexcept {
  ::sigaction(SIGCHLD, &old_chld_, nullptr);
  ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

SignalRelay::~SignalRelay() {
  if (fd_) restore_in_child();
}

void SignalRelay::relay_pending(pid_t app) {
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    const int number = static_cast<int>(info.ssi_signo);
    const bool from_terminal = info.ssi_code == SI_KERNEL;
    if (number == SIGCHLD || number == SIGPIPE) continue;
    // Asked for the terminal's, too: its answers are about what came since the last question.
    const bool from_group = group_got_ && group_got_(number) && ::getpgid(app) == ::getpgrp();
    if (from_terminal || from_group) continue;
    const pid_t child = to_child_ ? child_of(app) : 0;
    ::kill(child > 0 ? child : app, number);
  }
}

Result<AppEnd> SignalRelay::wait(pid_t app) {
  pollfd entry{fd_.get(), POLLIN, 0};
  for (;;) {
    int status = 0;
    const pid_t got = ::waitpid(app, &status, WNOHANG | WUNTRACED);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("", "cannot wait for the program");
    if (got == app && WIFSTOPPED(status)) {
      // The shell must see its job stop. A SIGCONT of the shell reaches APP too; one to this
      // process alone is forwarded.
      raise_default(WSTOPSIG(status));
      ::kill(app, SIGCONT);
      continue;
    }
    if (got == app) {
      // Late signals for APP must not end this process.
      signalfd_siginfo late{};
      while (::read(fd_.get(), &late, sizeof(late)) > 0) {
      }
      return AppEnd{exit_status(status), WIFSIGNALED(status) ? WTERMSIG(status) : 0};
    }
    if (::poll(&entry, 1, -1) < 0 && errno != EINTR)
      return fail_errno("", "cannot wait for signals");
    relay_pending(app);
  }
}

namespace {

/// Whether a file of an unknown format may be a script without #!: as in bash (general.c,
/// check_binary_file), not with a NUL in its first line. sh would interpret another machine's
/// program.
bool may_be_script(const std::string& path) {
  char head[80];
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const ssize_t n = fd ? ::read(fd.get(), head, sizeof(head)) : 0;
  const std::string_view text(head, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return text.substr(0, text.find('\n')).find('\0') == std::string_view::npos;
}

[[noreturn]] void become(const AppCommand& command, const AppSetup& setup,
                         const SignalRelay& signals, int socket) {
  signals.restore_in_child();
  if (setup.before_exec) setup.before_exec();
  const int error = execute(command);
  send_failure(socket, Error::from_errno("", "cannot run", error).because(Cause::exec));
  ::_exit(error == ENOENT ? 127 : 126);
}

/// The child up to exec. Ends if `parent` is no longer its parent.
[[noreturn]] void child_main(const AppCommand& command, const AppSetup& setup,
                             const SignalRelay& signals, int socket, pid_t parent) {
  const auto give_up = [socket](const Error& error) {
    send_failure(socket, error);
    ::_exit(126);
  };
  if (setup.mount) {
    const auto fuse = setup.mount();
    if (!fuse) give_up(fuse.error());
    if (!send_fd(socket, fuse->get())) ::_exit(126);
  }
  // After unshare, since a change of credentials clears it (prctl(2)).
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
    give_up(Error::from_errno("", "cannot be bound to this process", errno));
  if (::getppid() != parent || !receive_packet(socket, kNoLimit)) ::_exit(126);
  if (setup.enter)
    if (const auto entered = setup.enter(); !entered) give_up(entered.error());
  become(command, setup, signals, socket);
}

}  // namespace

int execute(const AppCommand& command) {
  const auto argv = to_c_array(command.argv);
  const auto environment = to_c_array(command.environment);
  ::execve(command.path.c_str(), argv.data(), environment.data());
  if (errno != ENOEXEC || !may_be_script(command.path)) return errno;
  std::vector<std::string> shell_words{"/bin/sh", command.path};
  if (command.argv.size() > 1)
    shell_words.insert(shell_words.end(), command.argv.begin() + 1, command.argv.end());
  ::execve("/bin/sh", to_c_array(shell_words).data(), environment.data());
  return errno;
}

Result<AppProcess> AppProcess::start(const AppCommand& command, const AppSetup& setup,
                                     const SignalRelay& signals) {
  auto sockets = TRY(make_socket_pair());
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno(command.path, "cannot start");
  if (pid == 0) {
    sockets.one.reset();
    child_main(command, setup, signals, sockets.other.get(), parent);
  }
  return AppProcess(Child(pid), std::move(sockets.one));
}

Result<Fd> AppProcess::take_fuse_fd() { return receive_fd(socket_.get()); }

Result<void> AppProcess::run() {
  TRY(send_packet(socket_.get(), "go"));
  // The child's end is close-on-exec, so ECONNRESET means success.
  auto failure = receive_record<Error>(socket_.get(), kNoLimit);
  if (failure) return fail(std::move(failure->message));
  if (failure.error().code() == ECONNRESET) return {};
  return fail(std::move(failure.error()));
}

Result<AppEnd> AppProcess::wait(SignalRelay& signals) {
  auto end = signals.wait(child_.pid());
  if (end) (void)child_.release();  // reaped
  return end;
}

}  // namespace heddle
