// SPDX-License-Identifier: MIT
#include "container-hooks/watched_work.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>

#include "base/child.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "container-hooks/hook_progress.hpp"
#include "container-hooks/kill_descendants.hpp"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

/// What is killed ends within milliseconds, or waits in the kernel.
constexpr std::chrono::milliseconds kGrace{1000};
/// For some dozens of umount2(2).
constexpr std::chrono::milliseconds kUndo{3000};

/// In the new process. Whoever ends the hook itself ends its work too.
int work_apart(pid_t watcher, int talk, const std::function<int()>& work) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != watcher) return exit_failure;
  const auto null = open_file("/dev/null", O_RDWR);
  if (!null || ::dup2(null->get(), STDIN_FILENO) < 0 || ::dup2(null->get(), STDOUT_FILENO) < 0 ||
      ::dup2(talk, STDERR_FILENO) < 0)
    return exit_failure;
  try {
    return work();
  } catch (const std::exception& error) {
    say(error.what());
    return exit_failure;
  }
}

/// What is in the pipe, to our stderr. False: nobody will say more.
bool pass_on(const Fd& talk) {
  char buffer[4096];
  const ssize_t n = ::read(talk.get(), buffer, sizeof(buffer));
  if (n < 0) return errno == EINTR;
  (void)write_all(STDERR_FILENO, {buffer, static_cast<std::size_t>(n)}, "stderr");
  return n > 0;
}

/// Until the process has ended, or its time is over: false.
bool relay_until_end(const Fd& process, const Fd& talk, Clock::time_point end) {
  std::array<pollfd, 2> entries{pollfd{process.get(), POLLIN, 0}, pollfd{talk.get(), POLLIN, 0}};
  while (entries[0].revents == 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    const auto wait = static_cast<int>(std::min<std::int64_t>(left, 1'000'000));
    if (::poll(entries.data(), entries.size(), wait) <= 0) continue;
    if (entries[1].revents != 0 && !pass_on(talk)) entries[1].fd = -1;
  }
  return true;
}

/// Until what stands in the container has been taken away, by the process that has put it there.
/// It sees that nobody leads it any more, and waits for no program of ours: they have been killed.
void let_it_undo(pid_t process) {
  const auto end = Clock::now() + kUndo;
  while (placed_by() != 0 && Clock::now() < end && ::kill(process, 0) == 0) {
    (void)::waitpid(process, nullptr, WNOHANG);
    ::poll(nullptr, 0, 2);
  }
}

/// What it said last. Not to the pipe's end: one that cannot be killed has it open.
void relay_rest(const Fd& talk) {
  (void)::fcntl(talk.get(), F_SETFL, O_NONBLOCK);
  while (pass_on(talk)) {
  }
}

}  // namespace

Result<WatchedEnd> run_watched(std::chrono::milliseconds limit, const std::function<int()>& work) {
  const auto progress = HookProgress::share();
  if (!progress) return fail(progress.error());
  auto talk = make_pipe();
  if (!talk) return fail(std::move(talk.error()));
  adopt_orphans();
  const pid_t watcher = ::getpid();
  const auto end = Clock::now() + limit;
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("fs-hook", "cannot start a process");
  if (pid == 0) ::_exit(work_apart(watcher, talk->write_end.get(), work));
  Child worker(pid);
  talk->write_end.reset();
  WatchedEnd out;
  const auto process = watch_child_end(pid);
  if (!process) return fail(process.error());
  if (relay_until_end(*process, talk->read_end, end)) {
    auto status = worker.wait();
    if (!status) return fail(std::move(status.error()));
    out.status = *status;
  }
  out.step = progress->step();
  if (!out.done()) {
    (void)worker.release();
    if (const pid_t placer = placed_by(); placer != 0) {
      (void)kill_descendants(kGrace, placer);
      let_it_undo(placer);
    }
    out.unending = kill_descendants(kGrace);
  }
  relay_rest(talk->read_end);
  out.placed = placed_by() != 0;
  return out;
}

}  // namespace heddle
