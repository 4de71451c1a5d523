// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/listener.hpp"
#include "fuseovl/supervise/next_content.hpp"
#include "fuseovl/supervise/reload_protocol.hpp"

namespace heddle {

/// The part of a supervisor that reloads are asked of. One at a time: others wait in line. It never
/// waits itself, neither for who asks nor for the loader, a process that makes the next content
/// ready with the program that is to serve it: what goes wrong there goes wrong before anything has
/// changed.
class ReloadDesk {
 public:
  /// `arguments`: the fs-mount's own, which each that follows is run with.
  explicit ReloadDesk(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {}
  ReloadDesk(const ReloadDesk&) = delete;
  ReloadDesk& operator=(const ReloadDesk&) = delete;
  ~ReloadDesk() { end_loader(); }

  /// Listens at a name that nobody can guess or take before us; who may ask is seen when they do.
  Result<void> open();
  /// Goes on where another desk was; `client` waits for a reply.
  void adopt(std::string name, Fd listener, Fd client);
  /// For connect_abstract(); empty: not open.
  const std::string& name() const { return name_; }

  /// For poll(2).
  void add_to(std::vector<pollfd>& polled) const;
  /// When to call hear() in any case, monotonic_ms(); 0: never.
  std::int64_t wakes_at() const { return listener_.wakes_at(); }
  /// What poll(2) said. `pack` is called when a loader starts: the content must stay so from there
  /// on, as long as is_busy().
  void hear(const std::vector<pollfd>& polled, const std::function<HandOver()>& pack);
  bool is_busy() const { return answer_ || next_; }
  /// A child was reaped; it may be ours.
  void reaped(pid_t child) { loader_ = loader_ == child ? -1 : loader_; }

  /// There when the loader has it ready.
  const std::optional<NextContent>& next() const { return next_; }
  /// Fills the desk's and the content's part in.
  void hand_over(HandOver& task) const;
  const Fd& program() const { return request_->program; }
  const std::vector<std::string>& arguments() const { return arguments_; }

  /// Says so to who asked, and is ready for others.
  void reply(const ReloadReply& reply);
  void refuse(const Error& error, const std::string& warnings = {});

 private:
  void accept_client();
  void hear_client(const std::function<HandOver()>& pack);
  Result<void> start_loader(HandOver task);
  void hear_loader();
  void end_loader();

  std::vector<std::string> arguments_;
  std::string name_;
  Listener listener_;
  Fd client_;
  std::optional<ReloadRequest> request_;
  std::vector<int> handed_over_;  ///< descriptors of the content as the loader got it
  Fd answer_;                     ///< the loader's; open while it works
  pid_t loader_ = -1;
  NextContentReceiver receiver_;
  std::optional<NextContent> next_;
};

}  // namespace heddle
