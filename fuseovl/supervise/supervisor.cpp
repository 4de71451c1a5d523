// SPDX-License-Identifier: MIT
//
// serve(): the supervisor's loop, and the worker that it forks. The supervisor accesses no served
// file and no name in the mount, so nothing there can block it, but for kNaming once, where a
// bundle is damaged.

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <thread>

#include "base/backoff.hpp"
#include "base/child.hpp"
#include "base/log.hpp"
#include "base/mount_service.hpp"
#include "base/mounts.hpp"
#include "base/temp_dir.hpp"
#include "base/try.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/supervise/serve.hpp"
#include "fuseovl/supervise/worker_sandbox.hpp"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// For one answer when a bundle's originals are named: no program and no signal is served
/// meanwhile.
constexpr milliseconds kNaming{2000};

/// A signalfd(2) of the supervisor's signals, which are blocked from here on.
Fd take_signals_by_descriptor() {
  sigset_t set = ending_signals();
  ::sigaddset(&set, SIGCHLD);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // An inherited SIG_IGN would have the kernel reap the workers.
  ::signal(SIGCHLD, SIG_DFL);
  // A closed pipe is EPIPE.
  ::signal(SIGPIPE, SIG_IGN);
  return Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

class Supervisor {
 public:
  Supervisor(Overlay& overlay, Fd device, ServeOptions& options)
      : overlay_(overlay),
        state_(overlay.state()),
        device_(std::move(device)),
        options_(options),
        sandbox_(overlay.files().reopened(), overlay.files().staged_in(),
                 overlay.content().origin_timeout, overlay.content().trees->descriptors()) {}

  /// Until the session has ended.
  Result<void> run();

 private:
  void confine();
  Result<void> start_worker();
  [[noreturn]] void be_worker();
  /// The wait(2) status of a worker that has ended.
  std::optional<int> reap();
  std::optional<int> stuck_end();
  Result<void> replace_worker(int status);
  void take_signals();
  void leave();
  bool worker_ends_within(milliseconds limit) const;
  bool detach() const;
  [[noreturn]] void end_at_once() const;

  Overlay& overlay_;
  ServingState& state_;
  Fd device_;
  ServeOptions& options_;
  Fd signals_ = take_signals_by_descriptor();
  WorkerSandbox sandbox_;
  bool leaving_ = false;  ///< detached; waits for the last user
  Fd left_service_;       ///< ServeOptions::service after its hang-up: it ends after this daemon

  pid_t worker_ = -1;
  Fd worker_end_;  ///< readable when the worker's thread has ended (Linux 6.9)
  Clock::time_point started_;
  std::uint64_t answers_ = 0;  ///< SessionMemory::answers when the worker was started
  Backoff pauses_{milliseconds(20), milliseconds(1000)};  ///< after useless workers
  bool has_originals_ = false;  ///< workers may open those of the bundle's libraries
  int useless_ = 0;             ///< workers in a row that died at once and answered nothing
};

Result<void> Supervisor::run() {
  if (!signals_) return fail_errno("fs-mount", "cannot take signals");
  state_.supervisor = ::getpid();
  TRY(start_worker());  // which makes its own sandbox meanwhile
  confine();
  overlay_.files().start_staging();
  for (;;) {
    pollfd polled[] = {{signals_.get(), POLLIN, 0},
                       {worker_end_.get(), POLLIN, 0},
                       {options_.service.get(), POLLIN, 0}};
    (void)::poll(polled, std::size(polled), -1);
    if (options_.service && polled[2].revents != 0) {
      left_service_ = std::move(options_.service);
      const auto mounted = options_.mount_point ? find_mount(*options_.mount_point) : std::nullopt;
      // A service that was killed after it had detached the mount.
      leaving_ = mounted && !*mounted;
      if (!leaving_) leave();
    }
    take_signals();
    const auto status = reap();
    if (!status) continue;
    if (WIFEXITED(*status) && WEXITSTATUS(*status) == 0) return {};
    if (WIFEXITED(*status) && !state_.session.agreed)
      return fail(Error({}, state_.failure[0] ? state_.failure.data() : "its worker has ended"));
    TRY(replace_worker(*status));
  }
}

/// A node that forbids filters is served without.
void Supervisor::confine() {
  const bool unmounts = options_.mount_point.has_value();
  const bool way_is_closed =
      unmounts && !is_open_to_powerless_root(overlay_.content().facts.mount_point);
  const bool opens_files =
      !overlay_.files().reopened().empty() || !overlay_.content().trees->trees().empty();
  const auto confined =
      confine_supervisor({.unmounts = unmounts, .reopens = opens_files || way_is_closed});
  if (!confined) warn(confined.error());
  state_.is_confined = true;
}

Result<void> Supervisor::start_worker() {
  if (useless_ > 0) pauses_.sleep();
  // Only now: to name a file in the sandbox asks its file system. All of the bundle's, of which one
  // may not answer: those that are left out are errors.
  if (state_.wants_originals && !has_originals_) {
    has_originals_ = true;
    (void)sandbox_.allow(overlay_.files().reopened(true), kNaming);
  }
  started_ = Clock::now();
  answers_ = state_.session.answers;
  state_.exit_status = ServingState::kWorks;
  state_.thread = 0;
  const auto start = [this]() -> pid_t {
    auto child = fork_child({.default_signals = false}, [this]() -> int { be_worker(); });
    if (child) return child->release();
    errno = child.error().code();
    return -1;
  };
  worker_ = insist(start, [](int) { return true; });
  if (worker_ < 0) return fail_errno("fs-mount", "cannot start its worker");
  worker_end_.reset();  // until its thread is known
  return {};
}

/// Answers the kernel until the file system is gone (exit 0) or the session fails (exit 1, the
/// reason in the state). Has only the device, the overlay's files and `options.ready` open.
void Supervisor::be_worker() {
  const pid_t supervisor = state_.supervisor;
  // A terminal's signals reach the supervisor only.
  ::setpgid(0, 0);
  state_.worker = ::getpid();
  if (const auto closed = sandbox_.enter(supervisor); !closed && state_.workers_lost == 0)
    warn(closed.error());
  // Nothing is answered before the supervisor has its sandbox too.
  for (Backoff pauses(std::chrono::microseconds(50), milliseconds(1)); !state_.is_confined;)
    pauses.sleep();
  std::vector<int> keep = overlay_.descriptors();
  keep.insert(keep.end(), {device_.get(), options_.ready.get()});
  close_fds_but(keep);
  std::thread([this, supervisor] {
    state_.thread = ::gettid();
    ::kill(supervisor, SIGCHLD);  // stuck_end() opens this thread
    const sigset_t ending = ending_signals();
    for (int signal = 0; ::sigwait(&ending, &signal) == 0;) ::kill(supervisor, signal);
  }).detach();

  overlay_.on_ready([this] {
    if (options_.ready && !state_.ready_is_sent.exchange(true))
      (void)insist([&] { return ::write(options_.ready.get(), &kReadyByte, 1); },
                   [](int error) { return error != EPIPE; });
  });
  if (sandbox_.restricts_files() && !has_originals_)
    overlay_.files().on_forbidden([this] {
      if (!state_.session.can_be_taken_over()) return;
      state_.wants_originals = true;
      constexpr std::string_view why =
          "the bundle is damaged, and its libraries' originals are used";
      state_.failure[why.copy(state_.failure.data(), state_.failure.size() - 1)] = '\0';
      state_.exit_status = 1;
      ::_exit(1);
    });
  // The connection lives as long as the supervisor's descriptor.
  Fd own(::fcntl(device_.get(), F_DUPFD_CLOEXEC, 0));
  auto session =
      Session::create(Overlay::ops(), &overlay_, std::move(own), options_.session, state_.session);
  if (session) overlay_.notify_through(session->raw());
  const auto served = session ? session->serve() : Result<void>(fail(session.error()));
  if (!served) {
    const std::string text = served.error().message();
    state_.failure[text.copy(state_.failure.data(), state_.failure.size() - 1)] = '\0';
  }
  state_.exit_status = served ? 0 : 1;
  ::_exit(state_.exit_status);
}

/// Reaps other children, such as the staging process, without use of their status.
std::optional<int> Supervisor::reap() {
  std::optional<int> ended;
  for (int status = 0;;) {
    const pid_t pid = insist([&] { return ::waitpid(-1, &status, WNOHANG); },
                             [](int error) { return error != ECHILD; });
    if (pid <= 0) return ended ? ended : stuck_end();
    if (pid == worker_) ended = status;
  }
}

/// The status of a worker that has ended but for a thread that cannot be killed: it waits for a
/// file system that does not answer (fs/fuse/dev.c, request_wait_answer). That process is left
/// behind.
std::optional<int> Supervisor::stuck_end() {
  // PIDFD_THREAD of Linux 6.9: readable at the end of one thread. That of a process's first thread
  // waits for all others (kernel/exit.c, exit_notify), so this is another one's.
  constexpr unsigned kPidfdThread = O_EXCL;
  if (const pid_t thread = state_.thread; !worker_end_ && thread != 0)
    worker_end_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, thread, kPidfdThread)));
  pollfd entry{worker_end_.get(), POLLIN, 0};
  if (!worker_end_ || ::poll(&entry, 1, 0) <= 0) return std::nullopt;
  int status = 0;
  if (worker_ends_within(milliseconds(200)) && ::waitpid(worker_, &status, WNOHANG) == worker_)
    return status;
  say(fmt::format("worker {} is blocked in a file system that does not answer", worker_));
  worker_end_.reset();
  const int code = state_.exit_status;
  return code == ServingState::kWorks ? SIGKILL : W_EXITCODE(code, 0);
}

/// The worker has ended before the session. One that neither lived a while nor answered anything
/// died of a request or out of memory, and so would its successors.
Result<void> Supervisor::replace_worker(int status) {
  constexpr milliseconds kLived{50};
  constexpr int kMostUseless = 10;
  const auto died =
      fmt::format("its worker {} {}", worker_,
                  WIFEXITED(status) ? fmt::format("gave up: {}", state_.failure.data())
                                    : fmt::format("died of signal {}", WTERMSIG(status)));
  ++state_.workers_lost;
  if (!state_.session.can_be_taken_over())
    return fail("", died, "workers cannot be replaced before Linux 6.9",
                "fs-mount MAP DIR mounts it again");
  const bool worked = Clock::now() - started_ >= kLived || state_.session.answers != answers_;
  useless_ = worked ? 0 : useless_ + 1;
  if (worked) pauses_.restart();
  if (useless_ == kMostUseless)
    return fail("", died, fmt::format("after {} workers in a row", kMostUseless));
  TRY(start_worker());
  say(fmt::format("{}; replaced by worker {}", died, worker_));
  return {};
}

void Supervisor::take_signals() {
  for (signalfd_siginfo info{}; ::read(signals_.get(), &info, sizeof(info)) == sizeof(info);)
    if (info.ssi_signo != SIGCHLD) leave();
}

void Supervisor::leave() {
  if (leaving_ || !detach()) end_at_once();
  leaving_ = true;
  if (!worker_ends_within(milliseconds(300)))
    say("detached; ends when its last user has gone, or at the next signal");
}

/// Does not reap the worker.
bool Supervisor::worker_ends_within(milliseconds limit) const {
  Backoff pauses(std::chrono::microseconds(200), milliseconds(5));
  const auto end = Clock::now() + limit;
  do {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(worker_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == worker_)
      return true;
  } while (pauses.sleep_before(end));
  return false;
}

/// Result: whether to wait for the last user. The mount of another namespace ends with that
/// namespace's last process, that of a service is the service's to detach, and another mount may
/// have taken this one's place.
bool Supervisor::detach() const {
  if (!options_.mount_point || options_.service) return true;
  const auto mounted = find_mount(*options_.mount_point);
  if (!mounted || !*mounted) return false;
  if ((*mounted)->device != options_.mount_device) return true;
  if (auto done = unmount_fuse(*options_.mount_point, Unmount::detach); !done) {
    report(done.error());
    return false;
  }
  return true;
}

// The kernel ends the connection when the device is closed.
void Supervisor::end_at_once() const {
  // Ends the waits for file systems that do not answer.
  state_.giving_up = true;
  if (!worker_ends_within(milliseconds(300)) && ::kill(worker_, SIGKILL) == 0)
    (void)worker_ends_within(milliseconds(300));
  if (!options_.cleanup.empty()) (void)remove_tree(options_.cleanup);
  ::_exit(0);
}

}  // namespace

Result<void> serve(Overlay& overlay, Fd device, ServeOptions options) {
  auto served = Supervisor(overlay, std::move(device), options).run();
  if (!options.cleanup.empty()) (void)remove_tree(options.cleanup);
  const bool answered = overlay.state().ready_is_sent;
  if (!options.ready) return served;
  if (answered && options.report_at_end)
    (void)write_all(options.ready.get(), overlay.stats_text(), "ready");
  if (!answered)
    refuse_mount(options.ready.get(),
                 served ? Error({}, "the device is not mounted") : served.error());
  return served;
}

}  // namespace heddle
