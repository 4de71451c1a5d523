// SPDX-License-Identifier: MIT
#include "fuseovl/files/bounded_work.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "base/monotonic.hpp"
#include "base/packet.hpp"
#include "base/socket_pair.hpp"
#include "fuseovl/mount/background.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {
namespace {

using std::chrono::milliseconds;
using State = WorkResult::State;

/// A process that is killed from outside is followed by another, so often.
constexpr int kMostProcesses = 3;

/// How far a piece is, as both processes know it.
struct Slot {
  enum class Is : std::uint8_t { waiting, begun, done };
  std::atomic<Is> is;
  std::atomic<bool> has_file;  ///< it gave one, which is in a packet
  std::atomic<std::int64_t> at_ms;
};
struct Progress {
  explicit Progress(std::vector<std::size_t> pieces)
      : numbers(std::move(pieces)), slots(numbers.size()) {}
  std::vector<std::size_t> numbers;  ///< of the pieces that the slots stand for
  SharedArray<Slot> slots;
  Shared<std::atomic<std::size_t>> next;
};

/// Sends open files, many in a packet: their numbers, and they.
class FileSender {
 public:
  explicit FileSender(int socket) : socket_(socket) {}
  void add(std::size_t number, Fd file) {
    const std::lock_guard lock(mutex_);
    numbers_.push_back(number);
    files_.push_back(std::move(file));
    if (files_.size() == kMostPacketFds) send();
  }
  void flush() {
    const std::lock_guard lock(mutex_);
    send();
  }

 private:
  void send() {
    std::vector<int> fds;
    for (const auto& file : files_) fds.push_back(file.get());
    const std::string_view text(reinterpret_cast<const char*>(numbers_.data()),
                                numbers_.size() * sizeof(numbers_[0]));
    // The user's processes have only so many files on their way at once (unix(7), ETOOMANYREFS).
    // What is lost the other end does itself.
    constexpr timespec kPause{0, 1'000'000};
    for (int tries = 0; !fds.empty() && tries < 1000; ++tries) {
      const auto sent = send_packet(socket_, text, fds);
      if (sent || sent.error().code() != ETOOMANYREFS) break;
      ::nanosleep(&kPause, nullptr);
    }
    numbers_.clear();
    files_.clear();
  }

  int socket_;
  std::mutex mutex_;
  std::vector<std::size_t> numbers_;
  std::vector<Fd> files_;
};

/// The work's place in the process made for it.
class ApartPlace final : public WorkPlace {
 public:
  ApartPlace(Slot& slot, std::size_t number, FileSender& files)
      : slot_(slot), number_(number), files_(files) {}
  void moves_on() override { slot_.at_ms = monotonic_ms(); }
  void give(Fd file) override {
    slot_.has_file = true;
    files_.add(number_, std::move(file));
  }

 private:
  Slot& slot_;
  std::size_t number_;
  FileSender& files_;
};

/// And in ours.
class OwnPlace final : public WorkPlace {
 public:
  explicit OwnPlace(WorkResult& result) : result_(result) {}
  void moves_on() override {}
  void give(Fd file) override { result_.file = std::move(file); }

 private:
  WorkResult& result_;
};

void do_next_ones(Progress& progress, FileSender& files, std::size_t end, const Work& work) {
  for (;;) {
    auto at = progress.next->load();
    while (at < end && !progress.next->compare_exchange_weak(at, at + 1)) {
    }
    if (at >= end) break;
    Slot& slot = progress.slots[at];
    slot.at_ms = monotonic_ms();
    slot.is = Slot::Is::begun;
    const std::size_t number = progress.numbers[at];
    ApartPlace place(slot, number, files);
    work(number, place);
    slot.at_ms = monotonic_ms();
    slot.is = Slot::Is::done;
  }
  files.flush();
}

/// More threads than cores would not compute faster, but a file system far away answers many
/// requests at once.
constexpr std::size_t kMostThreads = 16;

/// Does the first few, and looks how long that takes: a local open takes 3 us and threads only
/// cost, a parallel file system answers in 0.1 to 10 ms.
bool needs_threads(Progress& progress, FileSender& files, const Work& work) {
  constexpr std::size_t kSample = 16;
  constexpr auto kSlow = std::chrono::microseconds(100);
  const std::size_t count = progress.slots.size();
  const auto begin = std::chrono::steady_clock::now();
  do_next_ones(progress, files, std::min(count, kSample), work);
  return count > 2 * kSample && std::chrono::steady_clock::now() - begin > kSlow * kSample;
}

void do_all(Progress& progress, FileSender& files, const Work& work, Threads threads) {
  const std::size_t count = progress.slots.size();
  std::vector<std::jthread> helpers;
  if (threads == Threads::at_once || needs_threads(progress, files, work)) {
    try {
      while (helpers.size() + 1 < std::min(count, kMostThreads))
        helpers.emplace_back([&] { do_next_ones(progress, files, count, work); });
    } catch (const std::system_error&) {  // no more threads: with those there are
    }
  }
  do_next_ones(progress, files, count, work);
}

/// The process for the work. Whoever reads our output to its end must not wait for it.
[[noreturn]] void live_apart(Progress& progress, int socket, const Work& work,
                             std::vector<int> kept, Threads threads) {
  ::prctl(PR_SET_NAME, "heddle-check");
  (void)::chdir("/");
  kept.push_back(socket);
  close_fds_but(kept);
  if (const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC)); null)
    for (const int n : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null.get(), n);
  try {
    FileSender files(socket);
    do_all(progress, files, work, threads);
  } catch (const std::exception&) {
    ::_exit(1);  // what is not done is done by whoever made us
  }
  ::_exit(0);
}

void take_files(const Fd& socket, std::vector<WorkResult>& results) {
  for (;;) {
    auto packet = receive_packet(socket.get(), milliseconds(0));
    if (!packet) return;
    std::vector<std::size_t> numbers(packet->text.size() / sizeof(std::size_t));
    std::memcpy(numbers.data(), packet->text.data(), numbers.size() * sizeof(std::size_t));
    for (std::size_t i = 0; i < std::min(numbers.size(), packet->fds.size()); ++i)
      if (numbers[i] < results.size()) results[numbers[i]].file = std::move(packet->fds[i]);
  }
}

/// The piece has not come back since `since`.
bool is_late(const Slot& slot, std::int64_t since) {
  return slot.is == Slot::Is::begun && slot.at_ms < since;
}

bool some_are_late(const Progress& progress, std::int64_t since) {
  for (std::size_t i = 0; i < std::min(progress.next->load(), progress.slots.size()); ++i)
    if (is_late(progress.slots[i], since)) return true;
  return false;
}

/// Until the process `child` has ended: its wait(2) status; or is to be left behind: nullopt, and
/// it is killed.
std::optional<int> watch(pid_t child, const Progress& progress, const Fd& socket,
                         milliseconds limit, std::vector<WorkResult>& results) {
  const Fd ended(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  const auto pace =
      static_cast<int>(std::clamp<std::int64_t>(limit.count() / 10, 10, ended ? 100 : 10));
  for (;;) {
    pollfd entries[] = {{ended.get(), POLLIN, 0}, {socket.get(), POLLIN, 0}};
    (void)::poll(entries, 2, pace);
    take_files(socket, results);
    int status = 0;
    if (const pid_t reaped = ::waitpid(child, &status, WNOHANG);
        reaped == child || (reaped < 0 && errno == ECHILD)) {
      take_files(socket, results);
      return status;
    }
    const auto since = monotonic_ms() - limit.count();
    if (!some_are_late(progress, since)) continue;
    ::kill(child, SIGKILL);
    // What else it was at comes back in time, as far as is known, and is for another to do.
    for (std::size_t i = 0; i < progress.slots.size(); ++i)
      if (is_late(progress.slots[i], since)) results[progress.numbers[i]].state = State::late;
    return std::nullopt;
  }
}

enum class End : std::uint8_t {
  regular,
  left_behind,
  died,
  not_begun,  ///< there is no process to be had
};

void take_progress(const Progress& progress, End end, std::vector<WorkResult>& results) {
  for (std::size_t i = 0; i < progress.slots.size(); ++i) {
    const Slot& slot = progress.slots[i];
    auto& result = results[progress.numbers[i]];
    result.at_ms = slot.at_ms;
    // Done, but what it gave was lost on its way: not done.
    if (slot.is == Slot::Is::done && (!slot.has_file || result.file)) result.state = State::done;
    // Of one that died in it nobody knows whether it would have come back: another tries.
    if (slot.is == Slot::Is::begun && end == End::died) result.state = State::late;
  }
}

/// Does what is not done in a process of its own.
End do_apart(milliseconds limit, const Work& work, const std::vector<int>& kept, Threads threads,
             std::vector<WorkResult>& results) {
  std::vector<std::size_t> pieces;
  for (std::size_t i = 0; i < results.size(); ++i)
    if (results[i].state != State::done) pieces.push_back(i);
  auto sockets = make_socket_pair();
  if (pieces.empty()) return End::regular;
  if (!sockets) return End::not_begun;
  for (const auto piece : pieces) results[piece].state = State::not_begun;
  Progress progress(std::move(pieces));
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return End::not_begun;
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    live_apart(progress, sockets->other.get(), work, kept, threads);
  }
  sockets->other.reset();
  const auto status = watch(child, progress, sockets->one, limit, results);
  const End end = !status ? End::left_behind : *status == 0 ? End::regular : End::died;
  take_progress(progress, end, results);
  return end;
}

void do_here(std::vector<WorkResult>& results, const Work& work) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].state != State::not_begun) continue;
    OwnPlace place(results[i]);
    work(i, place);
    results[i].state = State::done;
    results[i].at_ms = monotonic_ms();
  }
}

}  // namespace

std::vector<WorkResult> do_within(milliseconds limit, std::size_t count, const Work& work,
                                  const std::vector<int>& kept, Threads threads) {
  std::vector<WorkResult> results(count);
  for (int tries = 0; limit.count() > 0 && tries < kMostProcesses; ++tries) {
    const auto end = do_apart(limit, work, kept, threads, results);
    if (end == End::left_behind) return results;
    const bool all_done =
        std::ranges::all_of(results, [](const auto& r) { return r.state == State::done; });
    if (all_done) return results;
    if (end == End::not_begun) break;
  }
  do_here(results, work);
  return results;
}

}  // namespace heddle
