// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/process.hpp"
#include "base/result.hpp"
#include "fsgen/private_mount.hpp"
#include "fsgen/signal_relay.hpp"
#include "resolver/map/counters_format.hpp"

namespace heddle {

struct AppCommand {
  std::string path;               ///< what is executed
  std::vector<std::string> argv;  ///< as the user gave it, argv[0] included
  std::vector<std::string> environment;
};

/// APP's process, from its fork on: first it makes its private mount, then it waits for the daemon
/// to answer there, then it becomes APP. It stays in our process group, on our terminal; it gets
/// SIGKILL when we die. Destroyed before it was waited for, it is killed and reaped.
class AppProcess {
 public:
  /// Forks. With `mount_point` the child mounts there; nullopt: no overlay, it goes straight on.
  static Result<AppProcess> start(const AppCommand& command,
                                  const std::optional<std::string>& mount_point, NamespaceKind kind,
                                  const SignalRelay& signals, Counters* counters);

  /// The mount's /dev/fuse descriptor, or what went wrong in the child.
  Result<Fd> take_fuse_fd();
  /// Lets it execute APP. An exec that fails is reported here, code() the errno.
  Result<void> run();
  Result<int> wait(SignalRelay& signals);
  pid_t pid() const noexcept { return child_.pid(); }

 private:
  AppProcess(Child child, Fd socket) : child_(std::move(child)), socket_(std::move(socket)) {}
  Child child_;
  Fd socket_;
};

}  // namespace heddle
