// SPDX-License-Identifier: MIT
#include "record/recording_daemon.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "base/socket_pair.hpp"
#include "fuseovl/fusermount.hpp"
#include "record/loopback/server.hpp"

namespace heddle {
namespace {

/// How long processes that APP leaves behind are waited for.
constexpr int kGraceMs = 1000;

struct EndMessage {
  int exit_status;
  bool complete;
};

struct ReportMessage {
  std::uint64_t events;
  bool left_running;
  char failure[1024];
};

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

/// Kills every process that `is_one` names, until a look finds none: they may fork meanwhile.
template <class Test>
void kill_all(Test is_one) {
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
    ::usleep(2000);
  }
}

/// Everything that runs on the loopback. Under proot there is no namespace to know it by; `app`,
/// proot itself, is killed last, or its tracees would no longer be known for what they are.
void kill_run(pid_t app, ino_t space) {
  if (space != 0 && space != mount_namespace_of(::getpid())) {
    kill_all([&](pid_t pid) { return mount_namespace_of(pid) == space; });
  } else {
    kill_all([&](pid_t pid) { return is_traced_by(pid, app); });
    ::kill(app, SIGKILL);
  }
}

/// Closes every descriptor but these: others' pipes and terminals must see their end without us.
void keep_only(std::initializer_list<Fd*> kept) {
  std::vector<int> numbers;
  for (Fd* fd : kept) {
    if (!*fd) continue;
    // Not one of the standard numbers, which are replaced below.
    if (const int high = ::fcntl(fd->get(), F_DUPFD_CLOEXEC, 3); high >= 0) fd->reset(high);
    numbers.push_back(fd->get());
  }
  std::sort(numbers.begin(), numbers.end());
  unsigned from = 3;
  for (const int number : numbers) {
    const auto next = static_cast<unsigned>(number);
    if (next > from) ::close_range(from, next - 1, 0);
    from = next + 1;
  }
  ::close_range(from, ~0U, 0);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  if (null > 2) ::close(null);
}

/// One descriptor an open file of APP's: as many as we may have, and more where we may say so.
void raise_descriptor_limit() {
  rlimit limit{1U << 20, 1U << 20};
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void report_end(int socket, const Recorder& recorder, const Result<void>& finished,
                bool left_running) {
  ReportMessage message{};
  message.events = recorder.events();
  message.left_running = left_running;
  if (!finished)
    std::strncpy(message.failure, finished.error().message().c_str(), sizeof(message.failure) - 1);
  (void)::send(socket, &message, sizeof(message), MSG_NOSIGNAL);
}

[[noreturn]] void daemon_main(Fd device, Fd socket, const RecordOptions& options,
                              const trace::RunHeader& header, pid_t app, ino_t space,
                              const std::string& user_mount, int out_number) {
  ::setsid();
  Fd out(out_number < 0 ? -1 : ::fcntl(out_number, F_DUPFD_CLOEXEC, 3));
  keep_only({&device, &socket, &out});
  ::signal(SIGPIPE, SIG_IGN);  // a trace that nobody reads on must not end APP's files
  raise_descriptor_limit();
  auto writer = trace::TraceWriter::create(
      options.out, header, options.json ? trace::Form::json_lines : trace::Form::text,
      std::move(out));
  if (!writer) {
    send_failure(socket.get(), writer.error());
    ::_exit(3);
  }
  if (::chdir("/") != 0) ::_exit(3);
  Recorder recorder(std::move(*writer), options.recorder);
  loopback::Loopback loopback(recorder);
  loopback::Server server(loopback, std::move(device));
  const Fd served(::eventfd(0, EFD_CLOEXEC));
  std::thread serving([&] {
    server.run();
    ::eventfd_write(served.get(), 1);
  });
  (void)::send(socket.get(), "ready", 5, MSG_NOSIGNAL);

  EndMessage end{};
  ssize_t n;
  do {
    n = ::recv(socket.get(), &end, sizeof(end), 0);
  } while (n < 0 && errno == EINTR);
  if (n != static_cast<ssize_t>(sizeof(end))) {
    kill_run(app, space);
    if (!user_mount.empty()) {
      (void)fusermount_unmount(user_mount, true);
      ::rmdir(user_mount.c_str());
    }
    pollfd entry{served.get(), POLLIN, 0};
    ::poll(&entry, 1, kGraceMs);
    loopback.close_all();
    (void)recorder.finish(false, std::nullopt);
    ::_exit(3);
  }
  pollfd entry{served.get(), POLLIN, 0};
  const bool left_running = ::poll(&entry, 1, kGraceMs) == 0;
  if (!left_running) loopback.close_all();
  report_end(socket.get(), recorder, recorder.finish(end.complete, end.exit_status), left_running);
  socket.reset();
  serving.join();
  ::_exit(0);
}

}  // namespace

Result<RecordingDaemon> RecordingDaemon::start(Fd device, const RecordOptions& options,
                                               const trace::RunHeader& header, pid_t app,
                                               const std::string& user_mount, const Fd& out) {
  auto sockets = make_socket_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  const ino_t space = mount_namespace_of(app);
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("", "cannot start the recorder");
  if (pid == 0) {
    sockets->one.reset();
    daemon_main(std::move(device), std::move(sockets->other), options, header, app, space,
                user_mount, out.get());
  }
  RecordingDaemon daemon(Child(pid), std::move(sockets->one));
  sockets->other.reset();
  char text[4096];
  ssize_t n;
  do {
    n = ::recv(daemon.socket_.get(), text, sizeof(text), 0);
  } while (n < 0 && errno == EINTR);
  const std::string_view said(text, n > 0 ? static_cast<std::size_t>(n) : 0);
  if (said == "ready") return daemon;
  if (said.empty()) return fail("", "the recorder ended before it began");
  return fail(received_failure(said));
}

Result<RecordingDaemon::End> RecordingDaemon::finish(int exit_status, bool complete) {
  EndMessage message{};
  message.exit_status = exit_status;
  message.complete = complete;
  if (::send(socket_.get(), &message, sizeof(message), MSG_NOSIGNAL) < 0)
    return fail_errno("", "the recorder has gone");
  ReportMessage got{};
  ssize_t n;
  do {
    n = ::recv(socket_.get(), &got, sizeof(got), 0);
  } while (n < 0 && errno == EINTR);
  if (n != static_cast<ssize_t>(sizeof(got)))
    return fail_errno("", "the recorder has gone", ECONNRESET);
  End end{got.events, got.failure, got.left_running};
  if (end.left_running) {
    (void)child_.release();  // it goes on without us
    return end;
  }
  if (auto waited = child_.wait(); !waited) return fail(std::move(waited.error()));
  return end;
}

}  // namespace heddle
