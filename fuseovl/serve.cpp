// SPDX-License-Identifier: MIT
#include "fuseovl/serve.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/kernel_mount.hpp"
#include "fuseovl/warm_up.hpp"

namespace heddle {
namespace {

constexpr int kEndOfSession = SIGUSR1;  // our own word to the signal thread

sigset_t handled_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int n : {SIGTERM, SIGINT, SIGHUP, SIGCHLD, kEndOfSession}) ::sigaddset(&set, n);
  return set;
}

/// Takes all signals of the process while it lives. Made before any other thread, which inherit the
/// mask.
class SignalThread {
 public:
  explicit SignalThread(const ServeOptions& options) : options_(options) {
    const sigset_t set = handled_signals();
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    // A disposition of SIG_IGN (nohup) would discard them before sigwait() sees them; SIGPIPE is
    // the reader's affair who went away.
    ::signal(SIGPIPE, SIG_IGN);
    thread_ = std::thread([this] { run(); });
  }
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;
  ~SignalThread() {
    ::pthread_kill(thread_.native_handle(), kEndOfSession);
    thread_.join();
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  void run() {
    const sigset_t set = handled_signals();
    for (bool leaving = false;;) {
      int signal = 0;
      ::sigwait(&set, &signal);
      if (signal == kEndOfSession) return;
      if (signal == SIGCHLD) {
        if (options_.helper) (void)::waitpid(*options_.helper, nullptr, WNOHANG);
        continue;
      }
      if (leaving || !detach()) end_at_once();
      leaving = true;
      say("detached; ends when its last user has gone, or at the next signal");
    }
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
    if (!options_.cleanup.empty()) (void)remove_tree(options_.cleanup);
    ::_exit(0);
  }

  const ServeOptions& options_;
  sigset_t before_{};
  std::thread thread_;
};

}  // namespace

Result<void> serve(Overlay& overlay, Fd device, ServeOptions options) {
  const SignalThread signals(options);
  bool answered = false;
  const auto tell = [&options](std::string_view word) {
    if (options.ready) (void)write_all(options.ready.get(), word, "ready");
  };
  overlay.on_ready([&] {
    answered = true;
    tell(std::string_view(&kReadyByte, 1));
    if (!options.report_at_end) options.ready.reset();
  });
  auto session = Session::create(Overlay::ops(), overlay, std::move(device), options.session);
  auto served = session ? session->serve() : Result<void>(fail(std::move(session.error())));
  if (!options.cleanup.empty()) (void)remove_tree(options.cleanup);
  if (answered && options.report_at_end) tell(overlay.stats_text());
  if (!answered) tell(served ? "the device is not mounted" : served.error().message());
  return served;
}

}  // namespace heddle
