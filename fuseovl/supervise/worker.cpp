// SPDX-License-Identifier: MIT
#include "fuseovl/supervise/worker.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/insist.hpp"
#include "base/log.hpp"
#include "base/mount_service.hpp"
#include "fuseovl/mount/background.hpp"

namespace heddle {
namespace {

/// What ends a daemon is the supervisor's to decide upon, whichever of us it is sent to.
void pass_signals_on(pid_t supervisor, std::atomic<pid_t>& thread) {
  std::thread([supervisor, &thread] {
    thread = ::gettid();
    ::kill(supervisor, SIGCHLD);  // it watches this thread
    sigset_t set;
    ::sigemptyset(&set);
    for (const int n : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&set, n);
    for (int signal = 0; ::sigwait(&set, &signal) == 0;) ::kill(supervisor, signal);
  }).detach();
}

}  // namespace

void work(Overlay& overlay, const Fd& device, const ServeOptions& options, WorkerSandbox& sandbox,
          pid_t supervisor) {
  // A mount whose supervisor was killed is to end as one process would.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != supervisor) ::_exit(1);
  // A terminal's signals come to the supervisor; once.
  ::setpgid(0, 0);
  auto& state = overlay.state();
  state.worker = ::getpid();
  // A node that forbids filters gets its libraries all the same.
  if (const auto closed = sandbox.enter(supervisor); !closed && state.workers_lost == 0)
    warn(closed.error());
  std::vector<int> keep = overlay.descriptors();
  keep.insert(keep.end(), {device.get(), options.ready.get()});
  close_fds_but(keep);
  pass_signals_on(supervisor, state.thread);

  overlay.on_ready([&] {
    // Whoever waits for this byte would wait for ever; EPIPE: nobody does any more.
    if (options.ready && !state.told_ready.exchange(true))
      (void)insist([&] { return ::write(options.ready.get(), &kReadyByte, 1); },
                   [](int error) { return error != EPIPE; });
  });
  // The supervisor's stays open: the connection lives as long as that does.
  Fd own(::fcntl(device.get(), F_DUPFD_CLOEXEC, 0));
  auto session =
      Session::create(Overlay::ops(), overlay, std::move(own), options.session, &state.session);
  const auto served = session ? session->serve() : Result<void>(fail(session.error()));
  if (!served) {
    const std::string text = served.error().message();
    const auto end = std::min(text.size(), state.failure.size() - 1);
    std::copy_n(text.data(), end, state.failure.data());
    state.failure[end] = '\0';
  }
  state.exit_status = served ? 0 : 1;
  ::_exit(state.exit_status);
}

}  // namespace heddle
