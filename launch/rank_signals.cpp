// SPDX-License-Identifier: MIT
#include "launch/rank_signals.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "base/channel.hpp"
#include "base/child.hpp"
#include "base/try.hpp"

namespace heddle::launch {
namespace {

constexpr int kMostSignals = 64;
constexpr std::size_t kStackSize = std::size_t{2} << 20;
/// How long a sender that signals each process of a tree may take from one to the next.
constexpr timespec kTreesTime{0, 50'000'000};
/// From this process's start to the rank's.
constexpr std::chrono::seconds kRanksTime{2};

/// How long an answer of the witness may take, which stops with its group.
constexpr int kWitnessMs = 1000;

sigset_t set_of(int number) {
  sigset_t out;
  ::sigemptyset(&out);
  ::sigaddset(&out, number);
  return out;
}

/// Also those of faults, which end a process even if it blocks or ignores them.
sigset_t all_signals() {
  sigset_t out;
  ::sigfillset(&out);
  return out;
}

/// `BLOCKED:IGNORED`, a bit a signal, of this process.
std::string inherited_signals() {
  sigset_t mask;
  ::sigprocmask(SIG_SETMASK, nullptr, &mask);
  std::uint64_t blocked = 0, ignored = 0;
  for (int n = 1; n <= kMostSignals; ++n) {
    const auto bit = std::uint64_t{1} << (n - 1);
    struct sigaction action {};
    if (::sigismember(&mask, n) == 1) blocked |= bit;
    if (::sigaction(n, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) ignored |= bit;
  }
  return fmt::format("{:x}:{:x}", blocked, ignored);
}

/// As stopped as its child is, unless this process has been continued since.
void stop_like(int number) {
  sigset_t pending;
  if (::sigpending(&pending) == 0 && ::sigismember(&pending, SIGCONT) == 1) return;
  raise_default(number);
}

class Agent {
 public:
  Agent(pid_t collector, GroupWitness& witness) : collector_(collector), witness_(witness) {}

  /// Waits until the collector has ended. All signals are blocked.
  Result<AppEnd> wait() {
    const auto all = all_signals();
    for (;;) {
      int status = 0;
      const pid_t got = ::waitpid(collector_, &status, WNOHANG | WUNTRACED);
      if (got < 0 && errno != EINTR) return fail_errno("", "cannot wait for the rank");
      if (got == collector_ && WIFSTOPPED(status)) {
        stop_like(WSTOPSIG(status));
        ::kill(collector_, SIGCONT);
      } else if (got == collector_) {
        return AppEnd{exit_status(status), WIFSIGNALED(status) ? WTERMSIG(status) : 0};
      } else if (const int number = ::sigwaitinfo(&all, nullptr);
                 number > 0 && number != SIGCHLD && number != SIGPIPE) {
        forward(number);
      }
    }
  }

 private:
  void forward(int number) {
    // One that has left the group (timeout(1)) does not get what its group gets.
    const pid_t before = child_of(collector_);
    const bool is_member = before > 0 && ::getpgid(before) == ::getpgrp();
    if (witness_.has_got(number) && is_member) return;
    const auto end = std::chrono::steady_clock::now() + kRanksTime;
    pid_t rank = 0;
    while ((rank = child_of(collector_)) == 0 && is_alive() &&
           std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    // Without an archive the collector becomes the rank.
    ::kill(rank > 0 ? rank : collector_, number);
  }
  bool is_alive() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(collector_), &info, WEXITED | WNOHANG | WNOWAIT) ==
               0 &&
           info.si_pid == 0;
  }
  const pid_t collector_;
  GroupWitness& witness_;
};

/// Runs `collect` in a process that signals do not reach. It blocks signals to read them by
/// signalfd(2), and blocked signals are kept even if they are ignored; those of a process are
/// dropped if its first thread ignores and does not block them (kernel/signal.c, sig_ignored()). So
/// it runs in a second one.
int collect_without_signals(const std::function<int()>& collect) {
  auto all = all_signals();
  ::sigdelset(&all, SIGCHLD);
  for (int n = 1; n <= kMostSignals; ++n)
    if (::sigismember(&all, n) == 1) ::signal(n, SIG_IGN);
  std::packaged_task<int()> task(collect);
  auto status = task.get_future();
  const auto run = [](void* given) -> void* {
    (*static_cast<std::packaged_task<int()>*>(given))();
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_t thread{};
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStackSize);  // else RLIMIT_STACK, which may be little
  // With this thread's mask.
  if (const int error = ::pthread_create(&thread, &attributes, run, &task); error != 0)
    throw Error::from_errno("", "cannot start a thread", error);
  ::sigprocmask(SIG_UNBLOCK, &all, nullptr);
  ::pthread_join(thread, nullptr);
  return status.get();
}

}  // namespace

Result<GroupWitness> GroupWitness::start() {
  auto sockets = TRY(make_socket_pair());
  const auto serve = [socket = sockets.other.get()] {
    for (std::uint8_t number = 0; ::read(socket, &number, 1) == 1;) {
      const auto only = set_of(number);
      const std::uint8_t answer = ::sigtimedwait(&only, nullptr, &kTreesTime) == number;
      if (::write(socket, &answer, 1) != 1) break;
    }
    return 0;
  };
  // Of a name of its own: a signal by name to fs-launch would be taken for the group's.
  auto child = TRY(fork_child({.keep = std::vector<int>{sockets.other.get()},
                               .null_stdio = true,
                               .default_signals = false,
                               .name = "group-witness"},
                              serve));
  return GroupWitness(std::move(child), std::move(sockets.one));
}

bool GroupWitness::has_got(int number) {
  const auto asked = static_cast<std::uint8_t>(number);
  std::uint8_t answer = 0;
  pollfd ready{socket_.get(), POLLIN, 0};
  if (socket_ && ::write(socket_.get(), &asked, 1) == 1 && ::poll(&ready, 1, kWitnessMs) == 1 &&
      ::read(socket_.get(), &answer, 1) == 1)
    return answer == 1;
  socket_.reset();  // a late answer would be taken for the next one's
  return false;
}

Result<AppEnd> run_without_signals(const std::function<int(const std::string& signals)>& collect) {
  const auto signals = inherited_signals();
  const auto all = all_signals();
  struct sigaction defaults {};
  defaults.sa_handler = SIG_DFL;
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  ::sigaction(SIGCHLD, &defaults, nullptr);  // with SIG_IGN the kernel would reap the child
  const auto start = [&]() -> Result<std::pair<GroupWitness, Child>> {
    auto witness = TRY(GroupWitness::start());
    return std::pair(std::move(witness), TRY(fork_child({.default_signals = false}, [&] {
                       return collect_without_signals([&] { return collect(signals); });
                     })));
  };
  auto started = start();
  if (!started) {
    restore_signals(signals);
    return fail(started.error());
  }
  auto& [witness, child] = *started;
  const auto end = value_or_throw(Agent(child.pid(), witness).wait());
  (void)child.release();  // reaped
  return end;             // with signals blocked: late ones must not end this process
}

void restore_signals(const std::string& signals) {
  unsigned long long blocked = 0, ignored = 0;
  if (std::sscanf(signals.c_str(), "%llx:%llx", &blocked, &ignored) != 2) return;
  // One of a write of the collector's, beyond RLIMIT_FSIZE, is pending as long as it is blocked.
  const auto only = set_of(SIGXFSZ);
  const timespec now{};
  while (::sigtimedwait(&only, nullptr, &now) == SIGXFSZ) {
  }
  sigset_t mask;
  ::sigemptyset(&mask);
  for (int n = 1; n <= kMostSignals; ++n) {
    const auto bit = 1ULL << (n - 1);
    if ((blocked & bit) != 0) ::sigaddset(&mask, n);
    ::signal(n, (ignored & bit) != 0 ? SIG_IGN : SIG_DFL);
  }
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
}

}  // namespace heddle::launch
