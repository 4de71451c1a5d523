// SPDX-License-Identifier: MIT
#include "record/recording_daemon.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/backoff.hpp"
#include "base/channel.hpp"
#include "base/child.hpp"
#include "record/private_root.hpp"

namespace heddle {

template <class Coder, class Message>
requires std::same_as<std::remove_const_t<Message>, RecordingDaemon::End>
void fields(Coder& coder, Message& m) { coder(m.events, m.left_running, m.failure); }

namespace {

/// How long processes that APP leaves behind are waited for.
constexpr std::chrono::milliseconds kGrace{1000};
/// How long the daemon has to end the run by itself when fs-record does not finish it: it may have
/// to wait for a fusermount3 that hangs.
constexpr std::chrono::milliseconds kEndsWithin{15000};
/// A trace that nobody reads on holds up APP and us for as long as the reader likes.
constexpr std::chrono::milliseconds kForever{INT_MAX};

/// From fs-record, when APP has ended.
struct EndMessage {
  int exit_status = 0;
  bool complete = false;
};
template <class Coder, class Message>
requires std::same_as<std::remove_const_t<Message>, EndMessage>
void fields(Coder& coder, Message& m) { coder(m.exit_status, m.complete); }

ino_t mount_namespace_of(pid_t pid) {
  struct stat st {};
  return ::stat(("/proc/" + std::to_string(pid) + "/ns/mnt").c_str(), &st) == 0 ? st.st_ino : 0;
}

/// Whether `pid` runs under the tracer `tracer` (proot).
bool is_traced_by(pid_t pid, pid_t tracer) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/status");
  const auto at = text ? text->find("\nTracerPid:") : std::string::npos;
  return at != std::string::npos && std::atoi(text->c_str() + at + 11) == tracer;
}

/// Kills every process for which `is_one` holds, until there is none: they may fork meanwhile.
template <class Test>
void kill_all(Test is_one) {
  Backoff pauses(std::chrono::milliseconds(1), std::chrono::milliseconds(8));
  for (int round = 0; round < 100; ++round) {
    bool found = false;
    DIR* proc = ::opendir("/proc");
    if (!proc) return;
    while (const dirent* entry = ::readdir(proc)) {
      const pid_t pid = std::atoi(entry->d_name);
      if (pid > 0 && is_one(pid)) found = ::kill(pid, SIGKILL) == 0 || found;
    }
    ::closedir(proc);
    if (!found) return;
    pauses.sleep();
  }
}

/// What runs on the loopback, to be ended when fs-record itself was killed.
struct RecordedProcesses {
  pid_t app = 0;
  ino_t space = 0;         ///< mount namespace; ours under proot
  std::string user_mount;  ///< what fusermount3 must unmount; empty: nothing
};

/// Kills them all and unmounts. Under proot there is no namespace to identify them by; `app`, proot
/// itself, is killed last, or its tracees could no longer be identified.
void end_run(const RecordedProcesses& run) {
  if (run.space != 0 && run.space != mount_namespace_of(::getpid())) {
    kill_all([&](pid_t pid) { return mount_namespace_of(pid) == run.space; });
  } else {
    kill_all([&](pid_t pid) { return is_traced_by(pid, run.app); });
    ::kill(run.app, SIGKILL);
  }
  if (run.user_mount.empty()) return;
  (void)take_user_mount_off(run.user_mount);
  ::rmdir(run.user_mount.c_str());
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

/// Whatever it waits for then: a trace that nobody reads on is never whole.
void ends_soon() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGALRM);
  ::signal(SIGALRM, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::alarm(20);
}

/// What is served, by threads of its own, until the mount has gone.
class Serving {
 public:
  Serving(Recorder& recorder, loopback::Loopback::Setup setup, int device)
      : recorder_(recorder),
        loopback_(recorder, std::move(setup)),
        device_(device),
        ended_(::eventfd(0, EFD_CLOEXEC)) {}

  Result<void> start() {
    if (!ended_) return fail_errno("", "cannot start the recorder");
    std::thread([this] {
      loopback::serve(loopback_, device_);
      loopback_.close_all();
      is_over_ = true;
      ::eventfd_write(ended_.get(), 1);  // if this fails, the next tick notices
    }).detach();
    // In a thread of its own, since it may wait for a reader of the trace.
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
  const int device_;
  Fd ended_;
  std::atomic<bool> is_over_ = false;
};

struct DaemonParts {
  Fd device, socket, out;
  const RecordOptions& options;
  const trace::RunHeader& header;
  const std::vector<std::string>& natives;
  RecordedProcesses run;
};

/// Does not take the serving threads down: they end with the process.
int serve(DaemonParts& parts) {
  ::setsid();
  ::signal(SIGPIPE, SIG_IGN);  // a trace that nobody reads on must not end APP's files
  ::signal(SIGIO, SIG_IGN);    // a lease is broken while we look whether we can have it
  const std::size_t most_nodes = raise_descriptor_limit();
  const int socket = parts.socket.get();
  auto writer = trace::TraceWriter::create(
      parts.options.out, parts.header,
      parts.options.json ? trace::Form::json_lines : trace::Form::text, std::move(parts.out));
  if (!writer) return send_failure(socket, writer.error()), 3;
  if (::chdir("/") != 0) return 3;
  loopback::keep_callers_capabilities();
  Recorder recorder(std::move(*writer), parts.options.recorder);
  std::optional<Serving> serving;
  try {
    const int device = parts.device.get();
    serving.emplace(
        recorder,
        loopback::Loopback::Setup{device, most_nodes, {parts.natives.begin(), parts.natives.end()}},
        device);
    value_or_throw(serving->start());
  } catch (const Error& error) {
    return send_failure(socket, error), 3;
  }
  // fs-record waits for this, or for our end.
  if (!send_packet(socket, "ready")) return 3;

  (void)serving->run(socket, std::nullopt);
  const auto end = receive_record<EndMessage>(socket, kForever);
  if (!end) {  // fs-record was killed
    ends_soon();
    end_run(parts.run);
  }
  const bool left_running = serving->run(-1, kGrace) == Serving::Until::time;
  const auto finished = recorder.finish(
      end && end->message.complete, end ? std::optional(end->message.exit_status) : std::nullopt);
  if (!end) return 3;
  (void)send_record(socket, RecordingDaemon::End{recorder.counts().events, left_running,
                                                 finished ? "" : finished.error().message()});
  parts.socket.reset();
  if (left_running) (void)serving->run(-1, std::nullopt);
  ::_exit(0);
}

}  // namespace

Result<RecordingDaemon> RecordingDaemon::start(Fd device, const RecordOptions& options,
                                               const trace::RunHeader& header,
                                               const std::vector<std::string>& natives, pid_t app,
                                               const std::string& user_mount, const Fd& out) {
  auto sockets = TRY(make_socket_pair());
  DaemonParts parts{std::move(device),
                    std::move(sockets.other),
                    Fd(out ? ::fcntl(out.get(), F_DUPFD_CLOEXEC, 3) : -1),
                    options,
                    header,
                    natives,
                    {app, mount_namespace_of(app), user_mount}};
  ForkOptions how;
  how.dies_with_parent = false;
  how.keep = {parts.device.get(), parts.socket.get()};
  if (parts.out) how.keep->push_back(parts.out.get());
  how.null_stdio = true;
  how.default_signals = false;  // ours are blocked: they are APP's
  how.name = "fs-record:serve";
  RecordingDaemon daemon(TRY(fork_child(how, [&] { return serve(parts); })),
                         std::move(sockets.one));
  parts.socket.reset();
  parts.device.reset();
  const auto answer = receive_packet(daemon.socket_.get(), kForever);
  if (!answer) return fail("", "the recorder ended before it began");
  if (answer->text != "ready") {
    Error failure = TRY(decode_record<Error>(answer->text));
    return fail(std::move(failure));
  }
  return daemon;
}

// Killed at once, it would leave a line of the trace half written.
RecordingDaemon::~RecordingDaemon() {
  socket_.reset();
  if (child_.pid() > 0) (void)child_.wait_for(kEndsWithin);
}

Result<RecordingDaemon::End> RecordingDaemon::finish(int exit_status, bool complete) {
  auto sent = send_record(socket_.get(), EndMessage{exit_status, complete});
  auto got = sent ? receive_record<End>(socket_.get(), kForever)
                  : Result<Received<End>>(fail(std::move(sent.error())));
  if (!got) {
    socket_.reset();
    const auto status = child_.wait_for(kEndsWithin);
    const int ended = status && *status ? **status : 0;
    return fail("", "the recorder has gone",
                ended > 128 ? "killed by signal " + std::to_string(ended - 128)
                            : "it ended with status " + std::to_string(ended));
  }
  if (got->message.left_running)
    (void)child_.release();  // it goes on without us
  else
    TRY(child_.wait());
  return std::move(got->message);
}

}  // namespace heddle
