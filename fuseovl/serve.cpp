// SPDX-License-Identifier: MIT
#include "fuseovl/serve.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <chrono>

#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/kernel_mount.hpp"
#include "fuseovl/warm_up.hpp"
#include "fuseovl/worker.hpp"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A worker that was killed from outside has lived or answered; one that dies of what it is asked,
// or of an empty memory, does neither, and its followers would not either.
constexpr milliseconds kLived{50};
constexpr int kHopeless = 10;
constexpr milliseconds kLongestPause{1000};

sigset_t handled_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int n : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) ::sigaddset(&set, n);
  return set;
}

/// Blocks the signals that the supervisor takes by sigwait(), and puts back what was.
class TakenSignals {
 public:
  TakenSignals() {
    const sigset_t set = handled_signals();
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    // An inherited SIG_IGN would have the kernel reap the workers.
    ::signal(SIGCHLD, SIG_DFL);
    // A reader that went away is told by EPIPE.
    ::signal(SIGPIPE, SIG_IGN);
  }
  TakenSignals(const TakenSignals&) = delete;
  TakenSignals& operator=(const TakenSignals&) = delete;
  ~TakenSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

class Supervisor {
 public:
  Supervisor(Overlay& overlay, Fd device, const ServeOptions& options)
      : overlay_(overlay),
        state_(overlay.state()),
        device_(std::move(device)),
        options_(options),
        set_(handled_signals()) {}

  /// Until the session has ended.
  Result<void> run() {
    state_.supervisor = ::getpid();
    if (auto started = start(); !started) return started;
    for (;;) {
      int signal = 0;
      ::sigwait(&set_, &signal);
      if (signal != SIGCHLD) {
        end_by_signal();
        continue;
      }
      if (options_.helper) (void)::waitpid(*options_.helper, nullptr, WNOHANG);
      int status = 0;
      if (::waitpid(worker_, &status, WNOHANG) != worker_) continue;
      if (WIFEXITED(status)) return ended(WEXITSTATUS(status));
      if (auto followed = follow(WTERMSIG(status)); !followed) return followed;
    }
  }

 private:
  Result<void> start() {
    started_ = Clock::now();
    answers_ = state_.session.answers;
    worker_ = ::fork();
    if (worker_ < 0) return fail_errno("fs-mount", "cannot start its worker");
    if (worker_ == 0) work(overlay_, device_, options_, state_.supervisor);
    return {};
  }

  Result<void> ended(int code) const {
    if (code == 0) return {};
    return fail(Error({}, state_.failure.data()));
  }

  /// One worker has died of `signal`: the next.
  Result<void> follow(int signal) {
    const std::string died =
        "its worker " + std::to_string(worker_) + " died of signal " + std::to_string(signal);
    ++state_.workers_lost;
    if (!state_.session.can_be_taken_over())
      return fail("fs-mount", died, "this kernel is older than Linux 6.9",
                  "nothing can take the mount over");
    const bool worked = Clock::now() - started_ >= kLived || state_.session.answers != answers_;
    hopeless_ = worked ? 0 : hopeless_ + 1;
    if (hopeless_ >= kHopeless) return fail("fs-mount", died, "as those before it did");
    for (milliseconds pause{hopeless_ == 0 ? 0 : 10 << hopeless_};;) {
      if (pause.count() > 0) rest(std::min(pause, kLongestPause));
      auto started = start();
      if (started) break;
      if (pause >= kLongestPause) return started;
      pause = std::max(2 * pause, milliseconds(20));
    }
    say(died + "; " + std::to_string(worker_) + " goes on in its place");
    return {};
  }

  /// Not longer than until somebody wants it to end.
  void rest(milliseconds pause) {
    sigset_t ending = set_;
    ::sigdelset(&ending, SIGCHLD);
    const timespec time{pause.count() / 1000, pause.count() % 1000 * 1000000};
    if (::sigtimedwait(&ending, nullptr, &time) > 0) end_by_signal();
  }

  void end_by_signal() {
    if (leaving_ || !detach()) end_at_once();
    leaving_ = true;
    if (!worker_ends_within(milliseconds(300)))
      say("detached; ends when its last user has gone, or at the next signal");
  }

  /// Mostly nobody uses a mount that is ended. The worker stays to be waited for.
  bool worker_ends_within(milliseconds limit) const {
    for (const auto end = Clock::now() + limit; Clock::now() < end;) {
      siginfo_t info{};
      if (::waitid(P_PID, static_cast<id_t>(worker_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid == worker_)
        return true;
      const timespec moment{0, 5'000'000};
      ::nanosleep(&moment, nullptr);
    }
    return false;
  }

  /// Result: whether to wait for the last user. The mount of another namespace cannot be detached;
  /// it goes with that namespace's last process, and a job's signal must not take its libraries
  /// away.
  bool detach() const {
    if (!options_.mount_point) return true;
    const auto mounted = find_mount(*options_.mount_point);
    if (!mounted || !*mounted || (*mounted)->device != options_.mount_device) return false;
    if (auto done = unmount_fuse(*options_.mount_point, Unmount::detach); !done) {
      report(done.error());
      return false;
    }
    return true;
  }

  // The kernel ends the connection when the device is closed; nothing else of ours is outside.
  [[noreturn]] void end_at_once() const {
    if (worker_ > 0 && ::kill(worker_, SIGKILL) == 0) (void)::waitpid(worker_, nullptr, 0);
    if (!options_.cleanup.empty()) (void)remove_tree(options_.cleanup);
    ::_exit(0);
  }

  Overlay& overlay_;
  ServingState& state_;
  Fd device_;
  const ServeOptions& options_;
  sigset_t set_;
  pid_t worker_ = -1;
  Clock::time_point started_;
  std::uint64_t answers_ = 0;  ///< there were when the worker was started
  int hopeless_ = 0;
  bool leaving_ = false;
};

}  // namespace

Result<void> serve(Overlay& overlay, Fd device, ServeOptions options) {
  const TakenSignals signals;
  auto served = Supervisor(overlay, std::move(device), options).run();
  const auto tell = [&options](std::string_view word) {
    if (options.ready) (void)write_all(options.ready.get(), word, "ready");
  };
  if (!options.cleanup.empty()) (void)remove_tree(options.cleanup);
  const bool answered = overlay.state().told_ready;
  if (answered && options.report_at_end) tell(overlay.stats_text());
  if (!answered) tell(served ? "the device is not mounted" : served.error().message());
  return served;
}

}  // namespace heddle
