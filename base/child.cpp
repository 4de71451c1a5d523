// SPDX-License-Identifier: MIT
#include "base/child.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/backoff.hpp"
#include "base/channel.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/run_main.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

/// Starts a thread that signals `end` when the child has ended. The thread takes no signals.
Result<void> start_waiting(pid_t pid, Fd end) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  Result<void> started;
  try {
    std::thread([pid, end = std::move(end)]() {
      siginfo_t info;
      while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 &&
             errno == EINTR) {
      }
      (void)::eventfd_write(end.get(), 1);
    }).detach();
  } catch (const std::system_error& error) {
    started = fail_errno("", "cannot start a thread", error.code().value());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

/// The limit may be 10^9, so only open descriptors are closed if /proc lists them.
void close_one_by_one(unsigned from, unsigned last) {
  std::vector<unsigned> open;
  DIR* directory = ::opendir("/proc/self/fd");
  if (!directory) {
    const auto most = static_cast<unsigned>(std::max(::sysconf(_SC_OPEN_MAX), 1024L));
    for (unsigned fd = from; fd < most && fd <= last; ++fd) ::close(static_cast<int>(fd));
    return;
  }
  while (const dirent* entry = ::readdir(directory))
    if (*entry->d_name != '.')
      open.push_back(static_cast<unsigned>(std::strtoul(entry->d_name, nullptr, 10)));
  ::closedir(directory);
  for (const unsigned fd : open)
    if (fd >= from && fd <= last) ::close(static_cast<int>(fd));
}

void close_range(unsigned from, unsigned last) {
  if (from > last || ::syscall(SYS_close_range, from, last, 0U) == 0) return;
  close_one_by_one(from, last);
}

/// Runs between fork and exec: async-signal-safe calls only. Descriptors are first moved above all
/// target numbers, so that dup2 overwrites none that is still needed.
bool place_fds(const std::pair<int, int>* fds, int* moved, std::size_t count, int floor) {
  for (std::size_t i = 0; i < count; ++i) {
    moved[i] = ::fcntl(fds[i].first, F_DUPFD_CLOEXEC, floor);
    if (moved[i] < 0) return false;
  }
  for (std::size_t i = 0; i < count; ++i)
    if (::dup2(moved[i], fds[i].second) < 0) return false;
  return true;
}

enum class Traced : std::uint8_t { no, plainly, by_filter };
Traced traced() {
  const auto status = read_file("/proc/self/status", 1U << 16);
  if (!status || status->find("\nTracerPid:\t0\n") != std::string::npos) return Traced::no;
  return status->find("\nSeccomp:\t0\n") != std::string::npos ? Traced::plainly : Traced::by_filter;
}

pid_t start_process(bool untraced) {
  if (!untraced || traced() != Traced::plainly) return ::fork();
  return static_cast<pid_t>(
      ::syscall(SYS_clone, CLONE_UNTRACED | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
}

void reset_signals() {
  struct sigaction defaults {};
  defaults.sa_handler = SIG_DFL;
  for (int n = 1; n < NSIG; ++n)
    if (n != SIGXFSZ) ::sigaction(n, &defaults, nullptr);
  // A handler stays (ignore_file_size_signal()); exec resets it.
  struct sigaction size {};
  if (::sigaction(SIGXFSZ, nullptr, &size) == 0 && size.sa_handler == SIG_IGN)
    ::sigaction(SIGXFSZ, &defaults, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// Abandoned children that are not reaped yet. Further ones stay zombies.
std::array<std::atomic<pid_t>, 64> abandoned{};

void reap_abandoned() {
  for (auto& slot : abandoned)
    if (pid_t pid = slot; pid != 0 && ::waitpid(pid, nullptr, WNOHANG) != 0)
      slot.compare_exchange_strong(pid, 0);
}

void redirect_stdio(int log) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) return;
  ::dup2(null, 0);
  ::dup2(log >= 0 ? log : null, 1);
  ::dup2(log >= 0 ? log : null, 2);
  if (null > 2) ::close(null);
}

}  // namespace

bool is_traced_by_filter() { return traced() == Traced::by_filter; }

Result<Fd> watch_child_end(pid_t pid) {
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd) return pidfd;
  // EPERM: seccomp filters of older container runtimes.
  if (errno != ENOSYS && errno != EPERM) return fail_errno("", "cannot wait for a child process");
  // An eventfd, since a pipe's write end may be inherited by other forked children.
  Fd event(::eventfd(0, EFD_CLOEXEC));
  Fd other(event ? ::fcntl(event.get(), F_DUPFD_CLOEXEC, 3) : -1);
  if (!other) return fail_errno("", "cannot wait for a child process");
  TRY(start_waiting(pid, std::move(other)));
  return event;
}

void close_fds_but(std::span<const int> keep) {
  std::vector<int> sorted(keep.begin(), keep.end());
  std::sort(sorted.begin(), sorted.end());
  unsigned from = 3;
  for (const int fd : sorted) {
    if (fd < static_cast<int>(from)) continue;
    close_range(from, static_cast<unsigned>(fd) - 1);
    from = static_cast<unsigned>(fd) + 1;
  }
  close_range(from, UINT_MAX);
}

int exit_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  return *this;
}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Child::abandon() noexcept {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  for (auto& slot : abandoned)
    if (pid_t none = 0; slot.compare_exchange_strong(none, pid_)) break;
  pid_ = -1;
}

Result<int> Child::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0)
    if (errno != EINTR) return fail_errno("", "cannot wait for a child process");
  pid_ = -1;
  return exit_status(status);
}

Result<std::optional<int>> Child::wait_for(std::chrono::milliseconds limit) {
  const Fd ended = TRY(watch_child_end(pid_));
  const bool has_ended = TRY(wait_for_input(ended.get(), limit));
  if (!has_ended) return std::optional<int>();
  return std::optional<int>(TRY(wait()));
}

std::vector<char*> to_c_array(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const auto& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

Result<Child> spawn(const std::string& path, const std::vector<std::string>& argv,
                    const SpawnOptions& options) {
  const auto c_argv = to_c_array(argv);
  std::vector<char*> c_environment;
  if (options.environment) c_environment = to_c_array(*options.environment);
  std::vector<int> moved(options.fds.size());
  int floor = 3;
  for (const auto& [from, to] : options.fds) floor = std::max({floor, from + 1, to + 1});

  auto error_pipe = TRY(make_pipe());
  floor = std::max(floor, error_pipe.write_end.get() + 1);
  const pid_t pid = start_process(options.untraced);
  if (pid < 0) return fail_errno(path, "cannot start");
  if (pid == 0) {
    reset_signals();
    const int report_fd = ::fcntl(error_pipe.write_end.get(), F_DUPFD_CLOEXEC, floor);
    if (place_fds(options.fds.data(), moved.data(), moved.size(), floor))
      ::execve(path.c_str(), c_argv.data(), options.environment ? c_environment.data() : ::environ);
    const int error = errno;
    [[maybe_unused]] const ssize_t n = ::write(report_fd, &error, sizeof(error));
    ::_exit(127);
  }
  Child child(pid);
  error_pipe.write_end.reset();
  int error = 0;
  ssize_t n;
  do {
    n = ::read(error_pipe.read_end.get(), &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof(error))) return fail_errno(path, "cannot start", error);
  return child;
}

Result<std::string> own_program_dir() {
  std::error_code error;
  const auto exe = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return fail_errno("/proc/self/exe", "cannot read", error.value());
  return exe.parent_path().string();
}

Result<Child> fork_child(const ForkOptions& options, const std::function<int()>& body) {
  reap_abandoned();
  const pid_t parent = ::getpid();
  const pid_t pid = start_process(options.untraced);
  if (pid < 0) return fail_errno("", "cannot start a process");
  if (pid > 0) return Child(pid);
  if (options.dies_with_parent) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) ::_exit(exit_failure);
  }
  if (options.name) ::prctl(PR_SET_NAME, options.name);
  if (options.default_signals) reset_signals();
  // An exception must not unwind the parent's frames.
  ::_exit(run_guarded([&] {
    if (options.null_stdio) redirect_stdio(options.log);
    if (options.keep) close_fds_but(*options.keep);
    return body();
  }));
}

Result<Task> Task::start(ForkOptions options, std::chrono::milliseconds limit,
                         const std::function<Result<void>()>& work) {
  auto sockets = TRY(make_socket_pair());
  if (options.keep) options.keep->push_back(sockets.other.get());
  auto child = TRY(fork_child(options, [&] {
    sockets.one.reset();
    Result<void> done;
    try {
      done = work();
    } catch (const Error& error) {
      done = fail(Error(error));
    } catch (const std::exception& error) {
      done = fail("", error.what());
    }
    if (!done) send_failure(sockets.other.get(), done.error());
    return done ? exit_done : exit_failure;
  }));
  auto ended = TRY(watch_child_end(child.pid()));
  return Task(std::move(child), std::move(ended), std::move(sockets.one),
              limit.count() > 0 ? monotonic_ms() + limit.count() : 0);
}

bool has_input(const std::vector<pollfd>& polled, const Fd& fd) {
  return fd && std::any_of(polled.begin(), polled.end(), [&](const pollfd& entry) {
           return entry.fd == fd.get() && entry.revents != 0;
         });
}

bool Task::has_ended(const std::vector<pollfd>& polled) const { return has_input(polled, ended_); }

Result<void> Task::result() {
  pollfd entry{ended(), POLLIN, 0};
  if (::poll(&entry, 1, 0) == 0) {
    child_.abandon();
    return fail(Error::from_errno("", "timed out", ETIMEDOUT).because(Cause::silent));
  }
  if (TRY(child_.wait()) == exit_done) return {};
  auto failure = receive_record<Error>(socket_.get(), std::chrono::milliseconds(0));
  if (!failure) return fail_errno("", "the process ended without an answer", ECHILD);
  return fail(std::move(failure->message));
}

Result<void> run_in_child(std::chrono::milliseconds limit, const ForkOptions& options,
                          const std::function<Result<void>()>& body) {
  auto task = TRY(Task::start(options, limit, body));
  pollfd entry{task.ended(), POLLIN, 0};
  for (;;) {
    const auto left =
        task.late_at() == 0 ? -1 : std::max<std::int64_t>(0, task.late_at() - monotonic_ms());
    if (::poll(&entry, 1, static_cast<int>(left)) >= 0 || errno != EINTR) return task.result();
  }
}

Result<std::string> text_from_child(std::chrono::milliseconds limit,
                                    const std::function<Result<std::string>()>& body) {
  const Fd memory(::memfd_create("text", MFD_CLOEXEC));
  if (!memory) return fail_errno("memfd", "cannot be made");
  const auto write_text = [&]() -> Result<void> {
    const std::string text = TRY(body());
    return write_all(memory.get(), text, "memfd");
  };
  TRY(run_in_child(limit, {}, write_text));
  if (::lseek(memory.get(), 0, SEEK_SET) != 0) return fail_errno("memfd", "cannot be rewound");
  return read_all(memory.get(), "memfd");
}

std::vector<std::string> own_environment() {
  std::vector<std::string> out;
  for (char** entry = ::environ; entry && *entry; ++entry) out.emplace_back(*entry);
  return out;
}

}  // namespace heddle
