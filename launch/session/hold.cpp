// SPDX-License-Identifier: MIT
#include "launch/session/hold.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <thread>

#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/run_directory.hpp"
#include "base/run_main.hpp"
#include "base/try.hpp"
#include "launch/hooks.hpp"
#include "launch/session/processes.hpp"
#include "resolver/elf/cached_facts.hpp"

namespace heddle::launch {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;
constexpr std::chrono::seconds kToolIsGone{10};
constexpr std::chrono::seconds kBeat{1};
/// Until all waiting processes of a job have seen that its ranks are to end.
constexpr std::chrono::seconds kAllSee{1};
/// Ranks take a tool for gone that is silent for kToolIsGone: its directory is of no use then.
constexpr std::chrono::minutes kOld{10};
constexpr std::size_t kLongestId = 64;

std::string holds_directory() { return value_or_throw(cache_directory()) + "/hold"; }

/// A small file of the directory; empty: it is not there. Opened anew each time, which is what
/// makes NFS ask its server.
std::string content(const std::string& path) {
  const auto fd = open_regular(path);
  return fd ? read_all(fd->get(), path, 1U << 20).value_or("") : "";
}

Result<void> write_state(const std::string& directory, const std::string& state) {
  const auto path = directory + "/state";
  const Fd file = TRY(open_file(path, O_RDWR | O_NOFOLLOW));
  if (::flock(file.get(), LOCK_EX) != 0) return fail_errno(path, "cannot be locked");
  const auto before = TRY(read_all(file.get(), path, 64));
  if (!before.starts_with("hold"))
    return fail(
        Error::with_code(EALREADY, fs::path(directory).filename().string(),
                         before.starts_with("kill") ? "is ended already" : "is released already"));
  if (::pwrite(file.get(), (state + "\n").c_str(), state.size() + 1, 0) < 0)
    return fail_errno(path, "cannot be written");
  return {};
}

/// What one waiting process makes of the directory. Result: whether the ranks may go on, once that
/// is said, or the tool is gone.
class Watch {
 public:
  explicit Watch(const HoldSettings& hold) : hold_(hold) {}

  std::optional<bool> look() {
    looked_ = Clock::now();
    const auto state = content(hold_.directory + "/state");
    if (state.starts_with("release")) return true;
    if (state.starts_with("kill")) return false;
    std::error_code error;
    bool is_gone = state.empty() && !fs::exists(hold_.directory, error) && !error;
    if (looked_ >= next_beat_) {
      next_beat_ = looked_ + kBeat;
      const auto now = content(hold_.directory + "/alive");
      if (now != beat_) changed_ = looked_;
      beat_ = now;
    }
    if (!is_gone && looked_ - changed_ > kToolIsGone) {
      is_gone = true;
      (void)write_state(hold_.directory, hold_.on_exit);  // so that all decide alike, and at once
    }
    return is_gone ? std::optional(hold_.on_exit != "kill") : std::nullopt;
  }
  /// When the process that looks for all of this node may have been stopped.
  bool is_late() const { return Clock::now() - looked_ > kToolIsGone; }

 private:
  const HoldSettings& hold_;
  Clock::time_point looked_{};
  Clock::time_point next_beat_ = Clock::now();
  Clock::time_point changed_ = Clock::now();
  std::string beat_;
};

/// Whether a signal to end waits until the stopped process `pid` goes on. It has no handlers yet.
bool is_to_end(pid_t pid) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/status", 1UL << 16).value_or("");
  const auto mask = [&](const std::string& name) {
    const auto at = text.find("\n" + name + ":");
    return at == text.npos ? 0 : std::strtoull(text.c_str() + at + name.size() + 2, nullptr, 16);
  };
  std::uint64_t ends = 0;
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM})
    ends |= std::uint64_t{1} << (signal - 1);
  return ((mask("SigPnd") | mask("ShdPnd")) & ~mask("SigBlk") & ends) != 0;
}

/// Waits until the ranks are released, or `ended` is readable, which is a pidfd of `stopped`, or
/// that one is to end. Result: whether they may go on. On
/// each node one process looks for all, since the directory is on a file system that all nodes
/// share: the one that has the lock. With its end the next one takes it, and looks too.
bool wait_for_release(const HoldSettings& hold, int ended = -1, pid_t stopped = -1) {
  const auto run = RunDirectory::open();
  Watch watch(hold);
  Fd lock;
  for (auto pause = 20;; pause = std::min(pause * 2, 250)) {
    if (run && !lock)
      if (auto taken = run->lock("hold " + hold.directory, {})) lock = std::move(*taken);
    if (!run || lock || watch.is_late())
      if (const auto said = watch.look()) return *said;
    pollfd entry{ended, POLLIN, 0};
    if (::poll(&entry, 1, pause) > 0 || (stopped > 0 && is_to_end(stopped))) return true;
  }
}

void note_held(const HoldSettings& hold, std::int64_t rank, std::uint64_t size, pid_t pid) {
  const auto path = hold.directory + "/" + host_name();
  const auto fd = open_file(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
  const auto job = job_of(pid);
  if (fd)
    (void)write_all(fd->get(),
                    fmt::format("{} {} {} {}\n", rank, size, pid, job.empty() ? "-" : job), path);
}

/// Waits for the exec of `rank`, which it traces, and leaves it stopped there. false: it ended.
bool stop_at_exec(pid_t rank) {
  for (int status = 0;;) {
    if (::waitpid(rank, &status, __WALL) < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    if (!WIFSTOPPED(status)) return false;
    const int event = status >> 16;
    if (event == PTRACE_EVENT_EXEC) {
      // Delivered as soon as it is let go, before it runs an instruction of ld.so.
      (void)::kill(rank, SIGSTOP);
      return ::ptrace(PTRACE_DETACH, rank, nullptr, nullptr) == 0;
    }
    const bool is_group_stop = event == PTRACE_EVENT_STOP && WSTOPSIG(status) != SIGTRAP;
    const long signal = event == 0 ? WSTOPSIG(status) : 0;
    (void)::ptrace(is_group_stop ? PTRACE_LISTEN : PTRACE_CONT, rank, nullptr, signal);
  }
}

/// Lets a stopped rank go on, or ends it, when that is said or it has ended.
int let_go(int open, pid_t rank, const HoldSettings& hold) {
  const bool may_go_on = wait_for_release(hold, open, rank);
  if (!may_go_on) {
    // A launcher that sees one end sends SIGCONT to the others (Open MPI's), which a traced process
    // does not follow. EPERM: a tool traces it, or Yama lets a user trace only descendants.
    (void)::ptrace(PTRACE_SEIZE, rank, nullptr, 0);
    std::this_thread::sleep_for(kAllSee);
  }
  (void)::syscall(SYS_pidfd_send_signal, open, may_go_on ? SIGCONT : SIGKILL, nullptr, 0);
  return exit_done;
}

int keep(pid_t rank, int ready, const HoldSettings& hold, std::int64_t number, std::uint64_t size) {
  // Launchers signal the process group of a rank, which, being stopped, would outlive its keepers.
  ::setsid();
  const Fd open(static_cast<int>(::syscall(SYS_pidfd_open, rank, 0)));
  const bool traced = open && ::ptrace(PTRACE_SEIZE, rank, nullptr, PTRACE_O_TRACEEXEC) == 0;
  (void)!::write(ready, traced ? "y" : "n", 1);
  ::close(ready);
  if (!traced || !stop_at_exec(rank)) return exit_no;
  note_held(hold, number, size, rank);
  // By two processes: nothing else would let the rank go on when one is killed.
  ForkOptions options;
  options.dies_with_parent = false;
  options.keep = std::vector<int>{open.get()};
  options.name = "heddle-hold";
  auto other = fork_child(options, [&] { return let_go(open.get(), rank, hold); });
  const auto status = other ? other->wait() : Result<int>(exit_failure);
  return status && *status == exit_done ? exit_done : let_go(open.get(), rank, hold);
}

/// Whether this process will be stopped at its next exec.
bool will_stop_at_exec(const HoldSettings& hold, std::int64_t rank, std::uint64_t size) {
  auto pipe = make_pipe();
  if (!pipe) return false;
  const auto own = ::getpid();
  (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  ForkOptions options;
  options.dies_with_parent = false;
  options.null_stdio = true;
  options.keep = std::vector<int>{pipe->write_end.get()};
  options.name = "heddle-hold";
  // By a child that ends at once, so that the program has no child that it does not know.
  auto child = fork_child(options, [&] {
    auto keeper =
        fork_child(options, [&] { return keep(own, pipe->write_end.get(), hold, rank, size); });
    if (keeper) (void)keeper->release();
    return exit_done;
  });
  pipe->write_end.reset();
  char answer = 'n';
  while (::read(pipe->read_end.get(), &answer, 1) < 0 && errno == EINTR) {
  }
  if (child) (void)child->wait();
  (void)::prctl(PR_SET_PTRACER, 0, 0, 0, 0);
  return answer == 'y';
}

/// Of fs-launches that were killed: no process has said for a while that the tool lives. `own` was
/// written just now, by the clock of the file server.
void sweep_old(const std::string& own) {
  std::error_code error, failed;
  const auto now = fs::last_write_time(own, error);
  if (error) return;
  for (fs::directory_iterator at(holds_directory(), error), end; !error && at != end;
       at.increment(error)) {
    auto last = fs::last_write_time(at->path() / "alive", failed);
    // Killed before it made the file. What cannot be asked now may live.
    if (failed == std::errc::no_such_file_or_directory)
      last = fs::last_write_time(at->path(), failed);
    if (!failed && now - last > kOld) (void)remove_tree(at->path().string());
  }
}

/// Shows each second that the tool lives; when it has ended, or after `limit`, says so to the ranks
/// at once.
int beat(const std::string& directory, const std::optional<OtherProcess>& tool,
         const std::string& on_exit, std::chrono::seconds limit) {
  ::setsid();  // ctrl-Z stops fs-launch and the launcher; the tool still lives
  const Fd file = value_or_throw(open_file(directory + "/alive", O_WRONLY | O_NOFOLLOW));
  const auto end = Clock::now() + limit;
  for (std::uint64_t number = 0;; ++number) {
    const auto text = fmt::format("{:020}\n", number);
    (void)!::pwrite(file.get(), text.data(), text.size(), 0);
    (void)::fdatasync(file.get());  // NFS sends it to its server
    pollfd entry{tool ? tool->fd() : -1, POLLIN, 0};
    (void)::poll(&entry, 1, static_cast<int>(std::chrono::milliseconds(kBeat).count()));
    if (tool && tool->has_ended()) break;
    if (limit > limit.zero() && Clock::now() >= end) break;
  }
  (void)write_state(directory, on_exit);
  for (;;) ::pause();  // until fs-launch ends
}

int list_held(const std::string& directory) {
  std::uint64_t held = 0, most = 0;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const auto node = at->path().filename().string();
    if (node == "state" || node == "alive") continue;
    std::istringstream lines(content(at->path()));
    std::int64_t rank = 0;
    std::uint64_t size = 0, pid = 0;
    std::string step;
    for (; lines >> rank >> size >> pid >> step; ++held) {
      most = std::max(most, size);
      fmt::print("{} {} {} {}\n", rank, pid, node, escape_for_terminal(step));
    }
  }
  return held > 0 && held >= most ? exit_done : exit_no;
}

}  // namespace

void hold_rank(const HoldSettings& hold, std::int64_t rank, std::uint64_t size) {
  if (content(hold.directory + "/state").empty()) return;  // not seen on this node
  if (hold.mode == "exec" && will_stop_at_exec(hold, rank, size)) return;
  note_held(hold, rank, size, ::getpid());
  if (!wait_for_release(hold)) (void)::kill(::getpid(), SIGKILL);
}

Result<Hold> Hold::create(const std::string& id, int tool, const std::string& on_exit,
                          std::chrono::seconds limit) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  if (id.find_first_not_of(kPlain) != id.npos || id.starts_with('.') || id.size() > kLongestId)
    return fail(id, "cannot be a hold's ID", "",
                "64 letters, digits, '-', '_' and '.' at most, the first no '.'");
  const auto all = holds_directory();
  std::error_code ignored;
  fs::create_directories(default_cache_dir(), ignored);
  TRY(RunDirectory::open_at(all));
  auto directory = TRY(TempDir::create("hold", all));
  for (const auto* name : {"state", "alive"}) {
    const auto path = directory.path() + "/" + name;
    const Fd file = TRY(open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0600));
    TRY(write_all(file.get(), "hold\n", path));
  }
  sweep_old(directory.path() + "/alive");
  if (!id.empty() && fs::exists(all + "/" + id, ignored))
    return fail(id, "is the ID of another hold", "",
                "one whose fs-launch was killed is removed after ten minutes");
  if (!id.empty()) TRY(directory.move_to(all + "/" + id));
  std::optional<OtherProcess> its;
  if (tool > 0) its = TRY(OtherProcess::open(tool));
  ForkOptions options;
  options.null_stdio = true;
  options.keep = std::vector<int>{its ? its->fd() : -1};
  options.name = "heddle-hold";
  auto heart = TRY(fork_child(
      options, [&, path = directory.path()] { return beat(path, its, on_exit, limit); }));
  return Hold(std::move(directory), std::move(heart));
}

int release_main(int argc, const char* const* argv) {
  CLI::App app("Let the ranks go on that fs-launch --hold holds.", "fs-launch release");
  set_usage(app, "");
  std::string id;
  bool kill = false, list = false;
  app.add_option("ID", id, "What fs-launch printed")->required()->type_name("");
  app.add_flag("--kill", kill, "End them instead");
  app.add_flag("--list", list,
               "Only print rank, pid, node and job of those held; 1: not all of them are yet");
  forbid_empty_values(app);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  const auto directory = holds_directory() + "/" + id;
  if (id.find('/') != id.npos || id.front() == '.' || !RunDirectory::find(directory))
    throw Error(id, "no ranks are held under this name");
  if (list) {
    const int status = list_held(directory);
    value_or_throw(flush_stdout());
    return status;
  }
  const auto done = write_state(directory, kill ? "kill" : "release");
  if (done) return exit_done;
  report(done.error());
  return done.error().code() == EALREADY ? exit_no : exit_failure;
}

}  // namespace heddle::launch
