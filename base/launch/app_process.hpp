// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "base/launch/signal_relay.hpp"
#include "base/result.hpp"

namespace heddle {

struct AppCommand {
  std::string path;               ///< what is executed
  std::vector<std::string> argv;  ///< as the user gave it, argv[0] included
  std::vector<std::string> environment;
};

/// What APP's process does on its way from fork to exec, in this order; each may be empty. It is
/// single-threaded, so namespaces can be entered.
struct AppSetup {
  /// Moves the process into its namespace and mounts there. The device is sent to the parent, for
  /// the daemon.
  std::function<Result<Fd>()> mount;
  /// Runs when the parent's run() says that the daemon answers: the file system can be used.
  std::function<Result<void>()> enter;
  /// The last thing before exec.
  std::function<void()> before_exec;
};

/// APP's process, from its fork on: first it makes its private mount, then it waits for the daemon
/// to answer there, then it becomes APP. It stays in our process group, on our terminal; it gets
/// SIGKILL when we die. Destroyed before it was waited for, it is killed and reaped.
class AppProcess {
 public:
  /// Forks.
  static Result<AppProcess> start(const AppCommand& command, const AppSetup& setup,
                                  const SignalRelay& signals);

  /// The device that AppSetup::mount made, or what went wrong in the child.
  Result<Fd> take_fuse_fd();
  /// Lets it enter and execute APP. An exec that fails is reported here, code() the errno; so is a
  /// failure of AppSetup::enter, code() 0.
  Result<void> run();
  /// Exit status, 128+n for a signal.
  Result<int> wait(SignalRelay& signals);
  pid_t pid() const noexcept { return child_.pid(); }

 private:
  AppProcess(Child child, Fd socket) : child_(std::move(child)), socket_(std::move(socket)) {}
  Child child_;
  Fd socket_;
};

}  // namespace heddle
