// SPDX-License-Identifier: MIT
#include "record/recording_supervisor.hpp"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/insist.hpp"
#include "record/loopback/handle.hpp"
#include "record/loopback/node_table.hpp"
#include "record/recording_worker.hpp"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// What there is is written this often at most: we must not be woken for each event, on the core
// where the program runs.
constexpr milliseconds kPause{30};
constexpr std::uint64_t kMany = EventRing::kEvents / 4;

sigset_t child_signal() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  return set;
}

std::set<int> open_descriptors() {
  std::set<int> out;
  DIR* folder = ::opendir("/proc/self/fd");
  if (!folder) return out;
  while (const dirent* entry = ::readdir(folder))
    if (entry->d_name[0] != '.') out.insert(std::atoi(entry->d_name));
  out.erase(::dirfd(folder));
  ::closedir(folder);
  return out;
}

void rest(milliseconds pause) {
  const timespec time{pause.count() / 1000, pause.count() % 1000 * 1000000};
  ::nanosleep(&time, nullptr);
}

}  // namespace

RecordingSupervisor::RecordingSupervisor(RecordingMemory& memory, const RecorderOptions& options,
                                         trace::TraceWriter writer, Fd device)
    : memory_(memory), options_(options), writer_(std::move(writer)), device_(std::move(device)) {}

Result<void> RecordingSupervisor::start() {
  const sigset_t set = child_signal();
  ::signal(SIGCHLD, SIG_DFL);  // an inherited SIG_IGN would have the kernel reap the workers
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  children_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!children_) return fail_errno("", "cannot start the recorder");
  own_fds_ = open_descriptors();
  return start_worker();
}

Result<void> RecordingSupervisor::start_worker() {
  succession_.starts(memory_.loopback.slots.answers());
  const pid_t supervisor = ::getpid();
  const bool follows = writer_.counts().workers_lost != 0;
  worker_ = fork_with_our_descriptors();
  if (worker_ < 0) return fail_errno("", "cannot start the recorder");
  if (worker_ == 0) work(memory_, options_, device_.get(), supervisor, follows);
  return {};
}

void RecordingSupervisor::write_events() {
  memory_.events->drain([this](const trace::Event& event) {
    if (!finished_) writer_.append(event);
  });
  if (!finished_) writer_.flush();
}

RecordingSupervisor::Until RecordingSupervisor::run(int input, std::optional<milliseconds> limit) {
  const auto end = Clock::now() + limit.value_or(milliseconds(0));
  auto& events = *memory_.events;
  while (worker_ > 0) {
    // Ask to be woken before looking: whoever puts in after the look rings.
    events.ring_after(1);
    const bool idle = events.empty();
    if (!idle) events.ring_after(kMany);
    auto wait = idle ? milliseconds(-1) : kPause;
    if (limit) {
      const auto left =
          std::max(milliseconds(0), std::chrono::ceil<milliseconds>(end - Clock::now()));
      wait = idle ? left : std::min(wait, left);
    }
    pollfd entries[3] = {
        {events.bell(), POLLIN, 0}, {children_.get(), POLLIN, 0}, {input, POLLIN, 0}};
    ::poll(entries, 3, static_cast<int>(wait.count()));
    if (entries[0].revents != 0) events.answer_bell();
    if (!idle || entries[1].revents != 0) write_events();
    if (entries[1].revents != 0) see_to_worker();
    if (entries[2].revents != 0) return Until::input;
    if (limit && Clock::now() >= end) return worker_ > 0 ? Until::time : Until::worker_ended;
  }
  return Until::worker_ended;
}

void RecordingSupervisor::see_to_worker() {
  signalfd_siginfo info;
  while (::read(children_.get(), &info, sizeof(info)) > 0) {
  }
  int status = 0;
  // The signal has been taken: nobody will tell us again.
  if (insist([&] { return ::waitpid(worker_, &status, WNOHANG); }, [](int) { return true; }) !=
      worker_)
    return;
  const pid_t died = worker_;
  worker_ = -1;
  write_events();
  Result<void> followed;
  if (WIFSIGNALED(status)) {
    if (!finished_)
      writer_.append_lost_worker(
          memory_.now(),
          "worker " + std::to_string(died) + " died of signal " + std::to_string(WTERMSIG(status)));
    // One that was not killed from outside may have died of what stands in its tables.
    if (WTERMSIG(status) != SIGKILL) memory_.loopback.tables.distrust();
    followed = follow();
  } else if (WEXITSTATUS(status) == kNoResend) {
    followed = fail("", "the recorder's worker died", "this kernel is older than Linux 6.9",
                    "nothing can take its work over");
  } else if (WEXITSTATUS(status) != kMountGone) {
    followed = fail("", "the recorder's worker ended before the mount had gone");
  }
  if (followed) return;
  failure_ = std::move(followed.error());
  device_.reset();  // the kernel ends the connection: the program's calls fail, rather than wait
}

/// The next worker, after a pause if those before it have done nothing.
Result<void> RecordingSupervisor::follow() {
  if (!succession_.died(memory_.loopback.slots.answers()))
    return fail("", "the recorder's workers died as soon as they began");
  close_unknown();
  for (milliseconds wait = succession_.pause();; wait = std::max(2 * wait, milliseconds(20))) {
    rest(std::min(wait, kLongestPause));
    auto started = start_worker();
    // No memory for a process, for the moment.
    if (started || wait >= kLongestPause) return started;
  }
}

/// A worker may have died with files open that are in none of its records.
void RecordingSupervisor::close_unknown() const {
  std::set<int> known = own_fds_;
  const auto& memory = memory_.loopback;
  for (const int fd : loopback::HandleSet::descriptors(memory.store)) known.insert(fd);
  for (const int fd : loopback::NodeTable::pins(memory)) known.insert(fd);
  for (const int fd : open_descriptors())
    if (!known.contains(fd)) ::close(fd);
}

void RecordingSupervisor::kill_worker() {
  if (worker_ <= 0) return;
  ::kill(worker_, SIGKILL);
  (void)::waitpid(worker_, nullptr, 0);
  worker_ = -1;
}

Result<void> RecordingSupervisor::finish(bool complete, std::optional<int> exit_status) {
  if (complete && !*memory_.on && !failure_)
    failure_ = Error("", "the recorder was never told that the program began");
  *memory_.on = false;
  write_events();
  finished_ = true;
  writer_.set_decided(memory_.loopback.slots.decided());
  auto done = writer_.finish(complete && !failure_, exit_status, memory_.now());
  if (done && failure_) return fail(Error(*failure_));
  return done;
}

}  // namespace heddle
