// SPDX-License-Identifier: MIT
#include "container-hooks/host/watched_work.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <new>
#include <sstream>

#include "base/backoff.hpp"
#include "base/child.hpp"
#include "base/try.hpp"

namespace heddle::hook {
namespace {

using Clock = std::chrono::steady_clock;

/// A killed process ends within milliseconds, or waits in the kernel.
constexpr std::chrono::milliseconds kGrace{1000};
/// For some dozens of umount2(2).
constexpr std::chrono::milliseconds kUndo{3000};

/// Read when the writers have ended, or have waited for long: no lock.
struct Notes {
  std::atomic<pid_t> placer{0};  ///< the process whose note_placed(true) was the last
  char step[4000] = "";
};
Notes* notes = nullptr;

Result<void> share_notes() {
  if (notes) return {};
  void* memory =
      ::mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return fail_errno("fs-hook", "cannot share memory");
  notes = new (memory) Notes;
  return {};
}

struct Process {
  pid_t pid = 0;
  std::string name;
};

/// The living descendants of the task `task` of /proc. Where that is the host's and this process
/// runs in a container's PID namespace (createContainer), its numbers are the host's; the last of
/// NSpid is the one that kill(2) takes here.
void add_descendants(const std::string& task, std::vector<Process>& out) {
  std::istringstream numbers(read_file(task + "/children", 1U << 16).value_or(""));
  for (std::string number; numbers >> number;) {
    Process child;
    char state = 'X';
    std::istringstream lines(read_file("/proc/" + number + "/status", 1U << 16).value_or(""));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string key;
      words >> key;
      if (key == "Name:") words >> child.name;
      if (key == "State:") words >> state;
      if (key == "NSpid:")
        for (pid_t pid; words >> pid;) child.pid = pid;
    }
    if (state != 'Z' && state != 'X' && child.pid > 0) out.push_back(std::move(child));
    std::error_code gone;
    for (const auto& thread :
         std::filesystem::directory_iterator("/proc/" + number + "/task", gone))
      add_descendants(thread.path().string(), out);
  }
}

/// Kills all descendants but `spared` and reaps what has become a child of this subreaper, for at
/// most kGrace. Result: the names of those that wait in the kernel.
std::vector<std::string> kill_descendants(pid_t spared) {
  Backoff pauses(std::chrono::milliseconds(1), std::chrono::milliseconds(16));
  for (const auto end = Clock::now() + kGrace;;) {
    std::vector<Process> living;
    add_descendants("/proc/thread-self", living);
    std::erase_if(living, [&](const Process& process) { return process.pid == spared; });
    for (const auto& process : living) (void)::kill(process.pid, SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (living.empty()) return {};
    if (!pauses.sleep_before(end)) {
      std::vector<std::string> names;
      for (auto& process : living) names.push_back(std::move(process.name));
      return names;
    }
  }
}

/// Copies what is in the pipe to stderr. False: there is no more.
bool relay(const Fd& messages) {
  char buffer[4096];
  const ssize_t n = ::read(messages.get(), buffer, sizeof(buffer));
  if (n < 0) return errno == EINTR;
  (void)write_all(STDERR_FILENO, {buffer, static_cast<std::size_t>(n)}, "stderr");
  return n > 0;
}

/// Until the process has ended. False: `end` came first.
bool relay_until_end(const Fd& process, const Fd& messages, std::optional<Clock::time_point> end) {
  std::array<pollfd, 2> entries{pollfd{process.get(), POLLIN, 0},
                                pollfd{messages.get(), POLLIN, 0}};
  while (entries[0].revents == 0) {
    std::int64_t wait = -1;
    if (end) wait = std::chrono::ceil<std::chrono::milliseconds>(*end - Clock::now()).count();
    if (end && wait <= 0) return false;
    if (::poll(entries.data(), entries.size(),
               static_cast<int>(std::min<std::int64_t>(wait, 1'000'000))) <= 0)
      continue;
    if (entries[1].revents != 0 && !relay(messages)) entries[1].fd = -1;
  }
  return true;
}

/// Waits until `placer` has taken away what it has in the container: it sees that no process leads
/// it any more, and waits for none of ours, which are dead.
void let_undo(pid_t placer) {
  const auto end = Clock::now() + kUndo;
  Backoff pauses(std::chrono::milliseconds(1), std::chrono::milliseconds(16));
  while (is_placed() && ::kill(placer, 0) == 0 && pauses.sleep_before(end))
    (void)::waitpid(placer, nullptr, WNOHANG);
}

}  // namespace

Result<WatchedEnd> run_watched(std::chrono::milliseconds limit, const std::function<int()>& work) {
  TRY(share_notes());
  Pipe messages = TRY(make_pipe());
  (void)::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::optional<Clock::time_point> end;
  if (limit.count() > 0) end = Clock::now() + limit;
  ForkOptions options;
  options.null_stdio = true;
  options.log = messages.write_end.get();
  Child worker = TRY(fork_child(options, work));
  messages.write_end.reset();
  const Fd process = TRY(watch_child_end(worker.pid()));
  WatchedEnd out;
  if (relay_until_end(process, messages.read_end, end)) out.status = TRY(worker.wait());
  out.step.assign(notes->step, ::strnlen(notes->step, sizeof(notes->step)));
  if (!out.done()) {
    (void)worker.release();
    if (const pid_t placer = notes->placer; placer != 0) {
      (void)kill_descendants(placer);
      let_undo(placer);
    }
    out.unending = kill_descendants(0);
  }
  // Not to the pipe's end: a process that cannot be killed holds it open.
  (void)::fcntl(messages.read_end.get(), F_SETFL, O_NONBLOCK);
  while (relay(messages.read_end)) {
  }
  out.placed = is_placed();
  return out;
}

void note_step(std::string_view doing, std::string_view what) {
  if (!notes) return;
  std::size_t at = 0;
  for (const auto part : {doing, std::string_view(" "), what})
    at += part.copy(notes->step + at, sizeof(notes->step) - 1 - at);
  notes->step[at] = '\0';
}

void note_placed(bool placed) {
  if (notes) notes->placer = placed ? ::getpid() : 0;
}

bool is_placed() { return notes && notes->placer != 0; }

}  // namespace heddle::hook
