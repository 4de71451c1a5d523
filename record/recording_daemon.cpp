// SPDX-License-Identifier: MIT
#include "record/recording_daemon.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <thread>
#include <vector>

#include "base/child.hpp"
#include "base/insist.hpp"
#include "base/socket_pair.hpp"
#include "record/loopback/server.hpp"
#include "record/recorder.hpp"
#include "record/run_end.hpp"

namespace heddle {
namespace {

/// How long processes that APP leaves behind are waited for.
constexpr std::chrono::milliseconds kGrace{1000};
/// How long the daemon has to end the run by itself, once nobody finishes it: it may have to wait
/// for a fusermount3 that hangs.
constexpr std::chrono::milliseconds kEndsWithin{15000};

struct EndMessage {
  int exit_status;
  bool complete;
};

struct ReportMessage {
  std::uint64_t events;
  bool left_running;
  char failure[1024];
};

/// Closes every descriptor but these: others' pipes and terminals must see their end without us.
void keep_only(std::initializer_list<Fd*> kept) {
  std::vector<int> numbers;
  for (Fd* fd : kept) {
    if (!*fd) continue;
    // Not one of the standard numbers, which are replaced below.
    if (const int high = ::fcntl(fd->get(), F_DUPFD_CLOEXEC, 3); high >= 0) fd->reset(high);
    numbers.push_back(fd->get());
  }
  close_fds_but(numbers);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  if (null > 2) ::close(null);
}

/// One descriptor an open file of APP's, and one a file that the kernel knows: as many as we may
/// have, and more where we may say so. How many nodes may have one: what they pin in the kernel
/// costs some 1.5 KB each.
std::size_t raise_descriptor_limit() {
  constexpr rlim_t kMostNodes = 65536;
  rlimit limit{1U << 20, 1U << 20};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0 && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  return std::min(limit.rlim_cur / 2, kMostNodes);
}

/// One message, to whom would wait for it; as send(2).
ssize_t send_on(int socket, const void* message, std::size_t size) {
  return insist([&] { return ::send(socket, message, size, MSG_NOSIGNAL); },
                [](int error) { return error != EPIPE && error != ECONNRESET; });
}

/// One message; as recv(2).
ssize_t receive(int socket, void* message, std::size_t size) {
  for (;;) {
    const ssize_t n = insist([&] { return ::recv(socket, message, size, 0); },
                             [](int error) { return error != EINTR; });
    if (n >= 0 || errno != EINTR) return n;
  }
}

void report_end(int socket, const trace::RunFooter& counts, const Result<void>& finished,
                bool left_running) {
  ReportMessage message{};
  message.events = counts.events;
  message.left_running = left_running;
  if (!finished)
    std::strncpy(message.failure, finished.error().message().c_str(), sizeof(message.failure) - 1);
  (void)send_on(socket, &message, sizeof(message));
}

/// What fs-record has to say at the end; nullopt: it was killed.
std::optional<EndMessage> receive_end(int socket) {
  EndMessage end{};
  if (receive(socket, &end, sizeof(end)) != static_cast<ssize_t>(sizeof(end))) return std::nullopt;
  return end;
}

/// Whatever it waits for then: a trace that nobody reads on is never whole.
void ends_soon() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGALRM);
  ::signal(SIGALRM, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::alarm(20);
}

[[noreturn]] void give_up(int socket, const Error& error) {
  send_failure(socket, error);
  ::_exit(3);
}

/// What is served, by threads of its own, until the mount has gone.
class Serving {
 public:
  Serving(Recorder& recorder, loopback::Loopback::Setup setup, int device)
      : recorder_(recorder),
        loopback_(recorder, std::move(setup)),
        server_(loopback_, device),
        ended_(::eventfd(0, EFD_CLOEXEC)) {}

  Result<void> start() {
    if (!ended_) return fail_errno("", "cannot start the recorder");
    std::thread([this] {
      server_.run();
      loopback_.close_all();
      is_over_ = true;
      ::eventfd_write(ended_.get(), 1);  // or it is noticed with the next tick
    }).detach();
    // A thread of its own: it waits where nobody reads the trace, and who looks for the end of
    // fs-record must not.
    std::thread([this] {
      for (;; std::this_thread::sleep_for(kTick)) recorder_.flush();
    }).detach();
    return {};
  }

  enum class Until : std::uint8_t { input, unmounted, time };
  /// Until there is something to read from `input` (-1: nothing to wait for), the mount has gone,
  /// or the time is up.
  Until run(int input, std::optional<std::chrono::milliseconds> limit) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + limit.value_or(std::chrono::milliseconds(0));
    for (;;) {
      pollfd entries[2] = {{ended_.get(), POLLIN, 0}, {input, POLLIN, 0}};
      ::poll(entries, 2, static_cast<int>(kTick.count()));
      loopback_.tick();
      if (is_over_) return Until::unmounted;
      if (entries[1].revents != 0) return Until::input;
      if (limit && Clock::now() >= end) return Until::time;
    }
  }

 private:
  static constexpr std::chrono::milliseconds kTick{100};
  Recorder& recorder_;
  loopback::Loopback loopback_;
  loopback::Server server_;
  Fd ended_;
  std::atomic<bool> is_over_ = false;
};

/// Never returns: what serves is not taken down, but ends with the process.
[[noreturn]] void daemon_main(Fd device, Fd socket, const RecordOptions& options,
                              const trace::RunHeader& header,
                              const std::vector<std::string>& natives, const RecordedProcesses& run,
                              int out_number) {
  ::setsid();
  ::prctl(PR_SET_NAME, "fs-record:serve");
  Fd out(out_number < 0 ? -1 : ::fcntl(out_number, F_DUPFD_CLOEXEC, 3));
  keep_only({&device, &socket, &out});
  ::signal(SIGPIPE, SIG_IGN);  // a trace that nobody reads on must not end APP's files
  ::signal(SIGIO, SIG_IGN);    // a lease is broken while we look whether we can have it
  const std::size_t most_nodes = raise_descriptor_limit();
  auto writer = trace::TraceWriter::create(
      options.out, header, options.json ? trace::Form::json_lines : trace::Form::text,
      std::move(out));
  if (!writer) give_up(socket.get(), writer.error());
  if (::chdir("/") != 0) ::_exit(3);
  loopback::keep_callers_capabilities();
  Recorder recorder(std::move(*writer), options.recorder);
  std::optional<Serving> serving;
  try {
    serving.emplace(
        recorder,
        loopback::Loopback::Setup{device.get(), most_nodes, {natives.begin(), natives.end()}},
        device.get());
  } catch (const Error& error) {
    give_up(socket.get(), error);
  }
  if (auto started = serving->start(); !started) give_up(socket.get(), started.error());
  // fs-record waits for this, or for our end.
  if (send_on(socket.get(), "ready", 5) < 0) ::_exit(3);

  (void)serving->run(socket.get(), std::nullopt);
  const auto end = receive_end(socket.get());
  if (!end) {
    ends_soon();
    end_run(run);
  }
  const bool left_running = serving->run(-1, kGrace) == Serving::Until::time;
  const auto finished =
      recorder.finish(end && end->complete, end ? std::optional(end->exit_status) : std::nullopt);
  if (!end) ::_exit(3);
  report_end(socket.get(), recorder.counts(), finished, left_running);
  socket.reset();
  if (left_running) (void)serving->run(-1, std::nullopt);
  ::_exit(0);
}

}  // namespace

Result<RecordingDaemon> RecordingDaemon::start(Fd device, const RecordOptions& options,
                                               const trace::RunHeader& header,
                                               const std::vector<std::string>& natives, pid_t app,
                                               const std::string& user_mount, const Fd& out) {
  auto sockets = make_socket_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  const auto run = recorded_processes(app, user_mount);
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("", "cannot start the recorder");
  if (pid == 0) {
    sockets->one.reset();
    daemon_main(std::move(device), std::move(sockets->other), options, header, natives, run,
                out.get());
  }
  RecordingDaemon daemon(Child(pid), std::move(sockets->one));
  sockets->other.reset();
  char text[4096];
  const ssize_t n = receive(daemon.socket_.get(), text, sizeof(text));
  const std::string_view said(text, n > 0 ? static_cast<std::size_t>(n) : 0);
  if (said == "ready") return daemon;
  if (said.empty()) return fail("", "the recorder ended before it began");
  return fail(received_failure(said));
}

// Killed at once, it would leave a line of the trace half written.
RecordingDaemon::~RecordingDaemon() {
  socket_.reset();
  if (child_.pid() > 0) (void)child_.wait_for(kEndsWithin);
}

Result<RecordingDaemon::End> RecordingDaemon::finish(int exit_status, bool complete) {
  EndMessage message{};
  message.exit_status = exit_status;
  message.complete = complete;
  ReportMessage got{};
  if (send_on(socket_.get(), &message, sizeof(message)) < 0 ||
      receive(socket_.get(), &got, sizeof(got)) != static_cast<ssize_t>(sizeof(got))) {
    socket_.reset();
    const auto status = child_.wait_for(kEndsWithin);
    const int ended = status && *status ? **status : 0;
    return fail("", "the recorder has gone",
                ended > 128 ? "killed by signal " + std::to_string(ended - 128)
                            : "it ended with status " + std::to_string(ended));
  }
  End end{got.events, got.failure, got.left_running};
  if (end.left_running) {
    (void)child_.release();  // it goes on without us
    return end;
  }
  if (auto waited = child_.wait(); !waited) return fail(std::move(waited.error()));
  return end;
}

}  // namespace heddle
