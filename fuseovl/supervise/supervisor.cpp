// SPDX-License-Identifier: MIT
#include "fuseovl/supervise/supervisor.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "base/insist.hpp"
#include "base/log.hpp"
#include "fuseovl/supervise/worker.hpp"

namespace heddle {
namespace {

using std::chrono::milliseconds;

// Of Linux 6.9's pidfd.h: told of one thread's end, whatever becomes of its process. Of the first
// thread it tells only with the last (kernel/exit.c, exit_notify), so it is another one.
constexpr unsigned kPidfdThread = O_EXCL;

sigset_t handled_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int n : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) ::sigaddset(&set, n);
  return set;
}

}  // namespace

TakenSignals::TakenSignals() {
  const sigset_t set = handled_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, &before_);
  // An inherited SIG_IGN would have the kernel reap the workers.
  ::signal(SIGCHLD, SIG_DFL);
  // A reader that went away is told by EPIPE.
  ::signal(SIGPIPE, SIG_IGN);
}

Supervisor::Supervisor(Overlay& overlay, Fd device, ServeOptions& options)
    : overlay_(overlay),
      state_(overlay.state()),
      device_(std::move(device)),
      options_(options),
      sandbox_(overlay.reopened(), overlay.staged_in(), overlay.content().origin_timeout),
      set_(handled_signals()),
      signals_(::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK)) {}

Result<void> Supervisor::run() {
  if (!signals_) return fail_errno("fs-mount", "cannot take signals");
  state_.supervisor = ::getpid();
  const bool unmounts = options_.mount_point.has_value();
  const bool way_is_closed =
      unmounts && !is_open_to_powerless_root(overlay_.content().facts.mount_point);
  // A node that forbids filters gets its libraries all the same.
  if (const auto confined = confine_supervisor(
          {.unmounts = unmounts, .reopens = !overlay_.reopened().empty() || way_is_closed});
      !confined)
    warn(confined.error());
  if (auto started = start_with_patience(); !started) return started;
  stager_ = overlay_.start_staging();
  for (;;) {
    pollfd polled[] = {{signals_.get(), POLLIN, 0},
                       {worker_thread_.get(), POLLIN, 0},
                       {options_.service.get(), POLLIN, 0}};
    (void)::poll(polled, std::size(polled), -1);
    if (options_.service && polled[2].revents != 0) {
      options_.service.reset();
      leaving_ = false;
      end_by_signal();
    }
    take_signals();
    const auto status = reap();
    if (!status) continue;
    const auto goes_on = after_worker(*status);
    if (!goes_on) return fail(goes_on.error());
    if (!*goes_on) return {};
  }
}

Result<void> Supervisor::start() {
  succession_.starts(state_.session.answers);
  state_.exit_status = ServingState::kWorks;
  state_.thread = 0;
  worker_ = ::fork();
  if (worker_ < 0) return fail_errno("fs-mount", "cannot start its worker");
  if (worker_ == 0) work(overlay_, device_, options_, sandbox_, state_.supervisor);
  // Until its thread is known. It takes a place from the first, so that their number stays.
  worker_thread_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, worker_, 0)));
  thread_watched_ = false;
  return {};
}

Result<void> Supervisor::start_with_patience() {
  for (milliseconds pause = succession_.pause();;) {
    if (pause.count() > 0) rest(std::min(pause, kLongestPause));
    auto started = start();
    if (started || pause >= kLongestPause) return started;
    pause = std::max(2 * pause, milliseconds(20));
  }
}

namespace {

/// A child whose end is not seen now is waited for without end: only the lack of one is a failure.
pid_t reap_now(pid_t which, int& status) {
  return insist([&] { return ::waitpid(which, &status, WNOHANG); },
                [](int error) { return error != ECHILD; });
}

}  // namespace

/// What became of the worker, when it has ended.
std::optional<int> Supervisor::reap() {
  std::optional<int> ended;
  int status = 0;
  // Others are the caller's to wait for.
  if (reap_now(worker_, status) == worker_) ended = status;
  int ignored = 0;
  if (stager_ && reap_now(*stager_, ignored) != 0) stager_.reset();
  return ended ? ended : stuck_end();
}

/// What has become of a worker that is dead but for a thread that cannot be killed: it waits for a
/// file system that has taken its request and does not answer (fs/fuse/dev.c, request_wait_answer).
/// Such a worker can do nothing any more and is left behind.
std::optional<int> Supervisor::stuck_end() {
  if (const pid_t thread = state_.thread; !thread_watched_ && thread != 0) {
    thread_watched_ = true;
    if (Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, thread, kPidfdThread))); fd)
      worker_thread_ = std::move(fd);
  }
  pollfd entry{worker_thread_.get(), POLLIN, 0};
  if (!worker_thread_ || ::poll(&entry, 1, 0) <= 0) return std::nullopt;
  int status = 0;
  if (worker_ends_within(milliseconds(200)) && ::waitpid(worker_, &status, WNOHANG) == worker_)
    return status;
  say(fmt::format("its worker {} cannot end: a file system does not answer it", worker_));
  worker_thread_.reset();
  const int code = state_.exit_status;
  return code == ServingState::kWorks ? SIGKILL : W_EXITCODE(code, 0);
}

Result<bool> Supervisor::after_worker(int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return false;
  if (WIFEXITED(status) && !state_.session.agreed) return fail(Error({}, state_.failure.data()));
  if (auto followed =
          follow(WIFEXITED(status) ? fmt::format("gave up: {}", state_.failure.data())
                                   : fmt::format("died of signal {}", WTERMSIG(status)));
      !followed)
    return fail(std::move(followed.error()));
  return true;
}

/// The worker has ended as `how` says: the next.
Result<void> Supervisor::follow(const std::string& how) {
  const auto died = fmt::format("its worker {} {}", worker_, how);
  ++state_.workers_lost;
  if (!state_.session.can_be_taken_over())
    return fail("", died, "nothing can take the mount over before Linux 6.9",
                "fs-mount MAP DIR mounts it anew");
  if (!succession_.died(state_.session.answers)) return fail("", died, "as those before it did");
  if (auto started = start_with_patience(); !started) return started;
  say(fmt::format("{}; {} goes on in its place", died, worker_));
  return {};
}

/// Not longer than until somebody wants it to end.
void Supervisor::rest(milliseconds pause) {
  sigset_t ending = set_;
  ::sigdelset(&ending, SIGCHLD);
  const timespec time{pause.count() / 1000, pause.count() % 1000 * 1000000};
  if (::sigtimedwait(&ending, nullptr, &time) > 0) end_by_signal();
}

}  // namespace heddle
