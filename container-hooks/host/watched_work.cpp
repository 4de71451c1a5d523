// SPDX-License-Identifier: MIT
#include "container-hooks/host/watched_work.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <sstream>
#include <vector>

#include "base/backoff.hpp"
#include "base/child.hpp"
#include "base/try.hpp"

namespace heddle::hook {
namespace {

using Clock = std::chrono::steady_clock;

/// A killed process ends within milliseconds, or waits in the kernel.
constexpr std::chrono::milliseconds kGrace{1000};
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 20);
/// For some dozens of umount2(2).
constexpr std::chrono::milliseconds kUndo{3000};

/// Without a lock: read when the writers have ended or hang.
struct Notes {
  std::atomic<pid_t> placer{0};  ///< the process that called note_placed(true) last
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

/// The value of a line of /proc/PID/status; empty: there is none.
std::string status_value(const std::string& status, const std::string& key) {
  const auto at = status.find("\n" + key + ":\t");
  if (at == status.npos) return {};
  const auto from = at + key.size() + 3;
  return status.substr(from, status.find('\n', from) - from);
}

/// The living descendants of the task `task` of /proc. In createContainer /proc may be the host's
/// and this process in the container's PID namespace: the last number of NSpid is the one that
/// kill(2) takes here.
void add_descendants(const std::string& task, std::vector<pid_t>& out) {
  std::istringstream numbers(read_file(task + "/children", 1U << 16).value_or(""));
  for (std::string number; numbers >> number;) {
    const auto status = read_file("/proc/" + number + "/status", 1U << 16).value_or("");
    const auto state = status_value(status, "State");
    const auto pids = status_value(status, "NSpid");
    const pid_t pid = std::atoi(pids.c_str() + pids.rfind('\t') + 1);
    if (!state.starts_with('Z') && !state.starts_with('X') && pid > 0) out.push_back(pid);
    std::error_code gone;
    for (const auto& thread :
         std::filesystem::directory_iterator("/proc/" + number + "/task", gone))
      add_descendants(thread.path().string(), out);
  }
}

/// Kills all descendants except `spared` and reaps orphans, for at most kGrace: some may wait in
/// the kernel.
void kill_descendants(pid_t spared) {
  Backoff pauses(std::chrono::milliseconds(1), std::chrono::milliseconds(16));
  const auto end = Clock::now() + kGrace;
  do {
    std::vector<pid_t> living;
    add_descendants("/proc/thread-self", living);
    std::erase(living, spared);
    for (const pid_t pid : living) (void)::kill(pid, SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (living.empty()) return;
  } while (pauses.sleep_before(end));
}

/// Waits until `placer`, whose socket is closed now, has undone its mounts.
void let_undo(pid_t placer) {
  const auto end = Clock::now() + kUndo;
  Backoff pauses(std::chrono::milliseconds(1), std::chrono::milliseconds(16));
  while (is_placed() && ::kill(placer, 0) == 0 && pauses.sleep_before(end))
    (void)::waitpid(placer, nullptr, WNOHANG);
}

}  // namespace

Result<WatchedEnd> run_watched(std::chrono::milliseconds limit, const std::function<int()>& work) {
  TRY(share_notes());
  // Not a pipe, which an unkillable process would hold open.
  const Fd messages(::memfd_create("messages", MFD_CLOEXEC));
  if (!messages) return fail_errno("fs-hook", "cannot keep messages");
  (void)::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ForkOptions options;
  options.null_stdio = true;
  options.log = messages.get();
  Child worker = TRY(fork_child(options, work));
  WatchedEnd out;
  out.status = TRY(worker.wait_for(limit.count() > 0 ? limit : kForever));
  out.step.assign(notes->step, ::strnlen(notes->step, sizeof(notes->step)));
  if (!out.done()) {
    (void)worker.release();
    if (const pid_t placer = notes->placer; placer != 0) {
      kill_descendants(placer);
      let_undo(placer);
    }
    kill_descendants(0);
  } else if (!is_placed()) {
    kill_descendants(0);  // elf-workers of a dead fs-resolve would hold the image's files open
  }
  (void)::lseek(messages.get(), 0, SEEK_SET);
  (void)write_all(STDERR_FILENO, read_all(messages.get(), "messages").value_or(""), "stderr");
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
