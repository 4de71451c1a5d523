// SPDX-License-Identifier: MIT
#include "record/recorded_run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <filesystem>
#include <random>
#include <thread>

#include "base/backoff.hpp"
#include "base/channel.hpp"
#include "base/child.hpp"
#include "base/find_program.hpp"
#include "base/launch/app_process.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/mounts.hpp"
#include "base/output_file.hpp"
#include "base/temp_dir.hpp"
#include "base/try.hpp"
#include "fuseovl/mount/fusermount.hpp"
#include "record/native_paths.hpp"

namespace heddle {

/// From the recorder, at the end.
template <class Coder, class Message>
requires std::same_as<std::remove_const_t<Message>, RecordedRun>
void fields(Coder& coder, Message& m) { coder(m.events, m.left_running, m.trace_failure); }

namespace {

std::vector<std::string> own_environment() {
  std::vector<std::string> out;
  for (char** variable = ::environ; *variable; ++variable) out.emplace_back(*variable);
  return out;
}

/// Nothing that is forbidden: the same may work a moment later.
bool is_shortage(const Error& error) {
  constexpr int kShortages[] = {ENOMEM, EMFILE, ENFILE, EAGAIN, EINTR, EIO};
  return std::find(std::begin(kShortages), std::end(kShortages), error.code()) !=
         std::end(kShortages);
}

/// What APP's file tree is to look like.
struct RootPlan {
  std::vector<std::string> scopes;   ///< only these come from the loopback; empty: everything
  std::vector<std::string> natives;  ///< stay the kernel's own; absolute, real paths
  std::string cwd;
  /// Where fusermount3 has mounted the loopback already; empty: it is mounted here.
  std::string mounted_at;
};

std::string own_path(const Fd& fd) { return fmt::format("/proc/self/fd/{}", fd.get()); }

/// The file at `path` (absolute) below `root`, opened name by name: no symbolic link is followed,
/// so what others swap meanwhile leads nowhere else. None and errno where there is no such file.
Fd walk(const Fd& root, const std::string& path) {
  Fd at(::openat(root.get(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (std::size_t begin = 1; at && begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    at = Fd(::openat(at.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    begin = end + 1;
  }
  struct stat st {};
  if (!at || ::fstat(at.get(), &st) != 0) return {};
  if (!S_ISLNK(st.st_mode)) return at;
  errno = ENOENT;
  return {};
}

/// What is at `path` below `from` is bound to that path below `to`. 0 or an errno.
int bind_same_path(const Fd& from, const Fd& to, const std::string& path, unsigned long flags) {
  const Fd source = walk(from, path);
  if (!source) return errno;
  const Fd target = walk(to, path);
  if (!target) return errno;
  return ::mount(own_path(source).c_str(), own_path(target).c_str(), nullptr, MS_BIND | flags,
                 nullptr) == 0
             ? 0
             : errno;
}

/// Gives the calling process, single-threaded, a tree that is the loopback. Two steps, because the
/// second needs a daemon that answers. mount(2) only, so that Linux 4.18 will do.
class PrivateRoot {
 public:
  explicit PrivateRoot(const RootPlan& plan) : plan_(plan) {}

  /// Own namespaces; the loopback mounted over `/`, which absolute paths of this process do not see
  /// yet. Gives the device to serve (an empty one when it was mounted before).
  Result<Fd> mount(NamespaceKind kind) {
    TRY(enter_private_namespace(kind));
    if (!plan_.mounted_at.empty()) {
      if (::mount(plan_.mounted_at.c_str(), "/", nullptr, MS_BIND, nullptr) != 0)
        return fail_errno(plan_.mounted_at, "cannot use the mount");
      return open_file("/dev/null", O_RDONLY);
    }
    // Opened after unshare: FUSE wants the descriptor's user namespace to be the mount's.
    Fd device = TRY(open_fuse_device());
    const auto options =
        fmt::format("fd={},rootmode=40000,user_id={},group_id={},max_read={},allow_other",
                    device.get(), ::geteuid(), ::getegid(), loopback::kMaxData);
    if (::mount("fs-record", "/", "fuse.heddle-record", 0, options.c_str()) != 0)
      return fail_errno("fuse", "cannot mount");
    return device;
  }

  /// Binds what stays native, makes the loopback the root (or binds the scopes), goes back to cwd.
  Result<void> enter() {
    old_root_ = TRY(open_file("/", O_PATH | O_DIRECTORY));
    // `..` of a root is the root, and what is mounted on it (path_resolution(7)).
    loopback_ = TRY(open_file("/..", O_PATH | O_DIRECTORY));
    if (plan_.scopes.empty()) {
      TRY(bind_natives());
      TRY(make_root());
    } else {
      TRY(bind_scopes());
    }
    if (::chdir(plan_.cwd.c_str()) != 0) return fail_errno(plan_.cwd, "cannot go back to");
    return {};
  }

  /// Tells the recorder that APP comes now.
  void mark_start() const {
    struct stat st {};
    // There is no such file: any other outcome has not reached the recorder.
    (void)insist(
        [&] { return ::fstatat(loopback_.get(), loopback::kStartName, &st, AT_SYMLINK_NOFOLLOW); },
        [](int error) { return error != ENOENT; });
  }

 private:
  Result<void> bind_natives() {
    for (const auto& path : plan_.natives) {
      const int error = bind_same_path(old_root_, loopback_, path, MS_REC);
      // ENOENT: a socket that has gone since it was listed.
      if (error != 0 && error != ENOENT)
        return fail_errno(path, "cannot keep the native directory", error);
    }
    return {};
  }
  Result<void> make_root() {
    if (::fchdir(loopback_.get()) != 0) return fail_errno("/", "cannot enter the new root");
    // As runc does it: the old root needs no directory, it is put over the new one and taken off. A
    // root that cannot be pivoted (the initial ramfs) is covered instead.
    if (::syscall(SYS_pivot_root, ".", ".") == 0) {
      if (::fchdir(old_root_.get()) != 0 || ::umount2(".", MNT_DETACH) != 0)
        return fail_errno("/", "cannot leave the old root");
    } else if (::chroot(".") != 0) {
      return fail_errno("/", "cannot make the loopback the root");
    }
    if (::chdir("/") != 0) return fail_errno("/", "cannot enter the new root");
    return {};
  }
  Result<void> bind_scopes() {
    for (const auto& scope : plan_.scopes)
      if (const int error = bind_same_path(loopback_, old_root_, scope, 0); error != 0)
        return fail_errno(scope, "cannot record this directory", error);
    // The whole of the loopback is not wanted any more.
    if (::fchdir(loopback_.get()) != 0 || ::umount2(".", MNT_DETACH) != 0 ||
        ::fchdir(old_root_.get()) != 0)
      return fail_errno("/", "cannot take the loopback off the root");
    return {};
  }

  const RootPlan& plan_;
  Fd loopback_;  ///< the mount's root
  Fd old_root_;
};

/// Unmounts `path` lazily by fusermount3.
Result<void> take_user_mount_off(const std::string& path) {
  auto done = fusermount_unmount(path, true);
  if (done) return done;
  const auto mounted = find_mount(path);
  return mounted && !*mounted ? Result<void>{} : done;
}

/// A mount by fusermount3, where the user may not mount. It is unmounted when the program has its
/// own copy of it; the directory is removed too.
class UserMount {
 public:
  static Result<UserMount> make() {
    // $TMPDIR may be one that only its owner writes to (a build's, a batch job's).
    auto directory = TempDir::create("fs-record");
    for (const char* parent : {"/tmp", "/var/tmp", "/dev/shm"})
      if (!directory) directory = TempDir::create("fs-record", parent);
    if (!directory) return fail(std::move(directory.error()));
    Fd device = TRY(fusermount_mount(
        directory->path(), "rw,nosuid,nodev,fsname=fs-record,subtype=heddle-record,max_read=" +
                               std::to_string(loopback::kMaxData)));
    return UserMount(std::move(*directory), std::move(device));
  }
  UserMount(UserMount&&) = default;
  UserMount& operator=(UserMount&&) = delete;
  ~UserMount() {
    if (directory_.path().empty()) return;  // moved from
    take_off();
    if (!mounted_) return;
    // All files of the machine are below it: nobody is to remove what is in there.
    warn(Error(directory_.release(), "is still mounted", {}, "fusermount3 -uz unmounts it"));
  }

  const std::string& path() const { return directory_.path(); }
  Fd take_device() { return std::move(device_); }
  /// Unmounts it; what fails is tried again with the next call, at the end at the latest.
  void take_off() {
    if (mounted_) mounted_ = !take_user_mount_off(directory_.path());
  }

 private:
  UserMount(TempDir directory, Fd device)
      : directory_(std::move(directory)), device_(std::move(device)) {}
  TempDir directory_;
  Fd device_;
  bool mounted_ = true;
};

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

/// What is served, by threads of its own, until the mount has gone. They end with the process.
class Serving {
 public:
  Serving(Recorder& recorder, loopback::Loopback::Setup setup, int device)
      : recorder_(recorder),
        loopback_(recorder, std::move(setup)),
        ended_(value_or_throw(make_pipe())) {
    std::thread([this, device] {
      loopback::serve(loopback_, device);
      loopback_.close_all();
      ended_.write_end.reset();
    }).detach();
    // In a thread of its own, since it may wait for a reader of the trace.
    std::thread([this] {
      for (;; std::this_thread::sleep_for(kTick)) recorder_.flush();
    }).detach();
  }

  enum class Until : std::uint8_t { input, unmounted, time };
  /// Until there is something to read from `input` (-1: nothing to wait for), the mount has gone,
  /// or the time is up.
  Until run(int input, std::optional<std::chrono::milliseconds> limit) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + limit.value_or(std::chrono::milliseconds(0));
    for (;;) {
      pollfd entries[2] = {{ended_.read_end.get(), 0, 0}, {input, POLLIN, 0}};
      ::poll(entries, 2, static_cast<int>(kTick.count()));
      loopback_.tick();
      if (entries[0].revents != 0) return Until::unmounted;
      if (entries[1].revents != 0) return Until::input;
      if (limit && Clock::now() >= end) return Until::time;
    }
  }

 private:
  static constexpr std::chrono::milliseconds kTick{100};
  Recorder& recorder_;
  loopback::Loopback loopback_;
  Pipe ended_;
};

/// The recorder: the process that serves the loopback and writes the trace, with threads that
/// answer the kernel, and one that waits for the end. It stays outside APP's namespace, in a
/// session of its own, so that no signal of the terminal reaches it. When fs-record dies the trace
/// is incomplete; it ends with the mount. When it is killed it is not replaced: what APP asks for
/// fails then, the trace has no end, and fs-record reports that.
struct RecordingDaemon {
  Child child;
  Fd socket;
  RecordingDaemon(Child process, Fd to_it) : child(std::move(process)), socket(std::move(to_it)) {}
  RecordingDaemon(RecordingDaemon&&) = default;
  // Killed at once, it would leave a line of the trace half written.
  ~RecordingDaemon() {
    socket.reset();
    if (child.pid() > 0) (void)child.wait_for(kEndsWithin);
  }
};

/// One run; its members end in the reverse of the order in which they began.
class Run {
 public:
  Run(const RecordOptions& options, const std::string& path) : options_(options), path_(path) {}
  Result<RecordedRun> run();

 private:
  Result<void> prepare();
  void prepare_user_mount();
  Result<RecordedRun> run_in_namespaces();
  Result<RecordedRun> run_under_proot();
  Result<RecordedRun> run_with(const AppCommand& command, const AppSetup& setup);
  Result<RecordingDaemon> start_daemon(const Fd& device);
  int serve(int device, int socket);
  static Result<RecordedRun> finish(RecordingDaemon& daemon, int exit_status, bool complete);

  const RecordOptions& options_;
  const std::string& path_;
  NamespaceKind kind_ = NamespaceKind::mount;
  trace::RunHeader header_;
  RootPlan plan_;
  std::optional<UserMount> user_mount_;
  std::optional<Error> lack_;   ///< of the method taken, reported once it is known to work
  Fd out_;                      ///< a trace that goes into a pipe, a device
  bool no_namespaces_ = false;  ///< they could not be made; APP has not run
};

void Run::prepare_user_mount() {
  auto mount = UserMount::make();
  if (mount) {
    user_mount_.emplace(std::move(*mount));
    plan_.mounted_at = user_mount_->path();
    header_.method = "fusermount3";
  } else {
    header_.method = "namespace";
    // fs/namei.c: no writing where an owner has no number in the user namespace (HAS_UNMAPPED_ID).
    const std::string lack = "files and directories of other owners cannot be written";
    header_.notes.push_back("mounted in a user namespace: " + lack + " (" +
                            mount.error().message() + ")");
    if (!options_.quiet)
      lack_.emplace("", "recording in a user namespace: " + lack, mount.error().message(),
                    "install fuse3 (a setuid fusermount3), or run as root");
  }
  header_.notes.emplace_back(
      "user namespace: other groups show as 65534, chgrp to them fails, setuid programs do not "
      "change the user");
}

Result<void> Run::prepare() {
  std::error_code error;
  header_.cwd = std::filesystem::current_path(error).string();
  if (error) return fail_errno(".", "cannot tell the working directory", error.value());
  std::random_device random;
  header_.run_id = fmt::format("{:08x}{:08x}", random(), random());
  header_.argv = options_.command;
  header_.host = host_name();
  header_.rank = rank_from_environment();
  header_.scopes = options_.scopes;
  header_.start_unix_ns =
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  header_.method = "namespace";
  plan_.cwd = header_.cwd;
  plan_.scopes = options_.scopes;
  if (plan_.scopes.empty()) {
    auto natives = find_native_paths(plan_.cwd, own_environment());
    plan_.natives = std::move(natives.paths);
    header_.notes = std::move(natives.notes);
  } else {
    header_.notes.emplace_back("native: everything outside the scopes");
  }
  header_.notes.emplace_back(
      "inotify and FIFOs do not reach processes outside the run, but in native directories; shared "
      "mappings do of files opened to be read and written, by root on Linux 6.9 or newer");
  return {};
}

Result<RecordedRun> Run::run() {
  // Here, since the recorder has none of our descriptors, and a pipe's reader may have to be waited
  // for: later signals are held back.
  out_ = TRY(open_unreplaceable(options_.out));
  TRY(prepare());
  if (options_.via == RecordVia::proot) return run_under_proot();
  const auto notes = header_.notes;
  auto done = run_in_namespaces();
  if (done || options_.via != RecordVia::best || !no_namespaces_ || is_shortage(done.error()))
    return done;
  header_.notes = notes;
  header_.notes.push_back("proot, because no namespaces can be made: " + done.error().message());
  auto second = run_under_proot();
  // Why the first way failed is what the user can mend.
  return second || !no_namespaces_ ? std::move(second) : std::move(done);
}

Result<RecordedRun> Run::run_in_namespaces() {
  no_namespaces_ = true;
  if (options_.via == RecordVia::user ||
      (options_.via == RecordVia::best && usable_namespace_kind() == NamespaceKind::user_and_mount))
    kind_ = NamespaceKind::user_and_mount;
  if (kind_ == NamespaceKind::user_and_mount) prepare_user_mount();
  PrivateRoot root(plan_);
  AppSetup setup;
  setup.mount = [&] { return root.mount(kind_); };
  setup.enter = [&] { return root.enter(); };
  setup.before_exec = [&] { root.mark_start(); };
  return run_with({path_, options_.command, own_environment()}, setup);
}

Result<RecordedRun> Run::run_under_proot() {
  no_namespaces_ = true;
  auto proot = find_program("proot");
  if (!proot)
    return fail(Error("proot", "cannot run the program on the recorded tree", "it is not installed",
                      "install it (package proot), or allow user namespaces"));
  if (!user_mount_) user_mount_.emplace(TRY(UserMount::make()));
  header_.method = "proot";
  const std::string root = user_mount_->path();
  std::vector<std::string> argv{"proot", "-w", plan_.cwd, "-r", plan_.scopes.empty() ? root : "/"};
  for (const auto& path : plan_.natives) argv.insert(argv.end(), {"-b", path});
  for (const auto& scope : plan_.scopes)
    argv.insert(argv.end(), {"-b", root + scope + ":" + scope});
  // As the user named it: proot looks in PATH itself, and argv[0] arrives untouched.
  argv.insert(argv.end(), options_.command.begin(), options_.command.end());
  AppSetup setup;
  setup.mount = [] { return open_file("/dev/null", O_RDONLY); };
  setup.before_exec = [&] {
    // On SIGQUIT proot kills all that it traces (tracee/event.c); killed, it would let them run on
    // natively.
    ::prctl(PR_SET_PDEATHSIG, SIGQUIT);
    struct stat st {};
    const auto mark = root + "/" + loopback::kStartName;
    (void)insist([&] { return ::lstat(mark.c_str(), &st); },
                 [](int error) { return error != ENOENT; });
  };
  return run_with({*proot, argv, own_environment()}, setup);
}

Result<RecordedRun> Run::run_with(const AppCommand& command, const AppSetup& setup) {
  SignalRelay signals = TRY(SignalRelay::start());
  AppSetup own = setup;
  own.mount = [&] {
    // APP's copy. When the recorder ends while exec(2) waits for it, its descriptor must be the
    // last one: a process that waits and holds the device open itself would hang beyond SIGKILL.
    if (user_mount_) (void)user_mount_->take_device();
    return setup.mount();
  };
  // Ends after APP, which a failure below kills.
  std::optional<RecordingDaemon> daemon;
  AppProcess app = TRY(AppProcess::start(command, own, signals));
  Fd device = TRY(app.take_fuse_fd());
  no_namespaces_ = false;
  if (lack_ && !user_mount_) warn(*lack_);
  if (user_mount_) device = user_mount_->take_device();
  daemon.emplace(TRY(start_daemon(device)));
  device.reset();

  RecordedRun out;
  const auto started = app.run();
  const bool proot = header_.method == "proot";
  if (user_mount_ && !proot) user_mount_->take_off();
  if (!started && started.error().cause() != Cause::exec) return fail(Error(started.error()));
  if (!started) out.exec_error = started.error().code();
  out.end = TRY(app.wait(signals));
  if (user_mount_) user_mount_->take_off();
  auto end = finish(*daemon, out.end.status, out.end.signal == 0 && out.exec_error == 0);
  if (!end) {
    out.trace_failure = end.error().message();
    return out;
  }
  end->end = out.end;
  end->exec_error = out.exec_error;
  return end;
}

/// Forks and waits until the trace is begun and the device is served.
Result<RecordingDaemon> Run::start_daemon(const Fd& device) {
  auto sockets = TRY(make_socket_pair());
  ForkOptions how;
  how.dies_with_parent = false;
  how.keep = {device.get(), sockets.other.get()};
  if (out_) how.keep->push_back(out_.get());
  how.null_stdio = true;
  how.default_signals = false;  // ours are blocked: they are APP's
  how.name = "fs-record:serve";
  RecordingDaemon daemon(
      TRY(fork_child(how, [&] { return serve(device.get(), sockets.other.get()); })),
      std::move(sockets.one));
  sockets.other.reset();
  const auto answer = receive_packet(daemon.socket.get(), kForever);
  if (!answer) return fail("", "the recorder ended before it began");
  if (answer->text != "ready") {
    Error failure = TRY(decode_record<Error>(answer->text));
    return fail(std::move(failure));
  }
  return daemon;
}

int Run::serve(int device, int socket) {
  ::setsid();
  ::signal(SIGPIPE, SIG_IGN);  // a trace that nobody reads on must not end APP's files
  ::signal(SIGIO, SIG_IGN);    // a lease is broken while we look whether we can have it
  const std::size_t most_nodes = raise_descriptor_limit();
  std::optional<Recorder> recorder;
  std::optional<Serving> serving;
  try {
    recorder.emplace(
        value_or_throw(trace::TraceWriter::create(
            options_.out, header_, options_.json ? trace::Form::json_lines : trace::Form::text,
            std::move(out_))),
        options_.recorder);
    if (::chdir("/") != 0) throw Error::from_errno("/", "cannot enter");
    loopback::keep_callers_capabilities();
    serving.emplace(
        *recorder,
        loopback::Loopback::Setup{device, most_nodes, {plan_.natives.begin(), plan_.natives.end()}},
        device);
  } catch (const Error& error) {
    return send_failure(socket, error), 3;
  }
  // fs-record waits for this, or for our end.
  if (!send_packet(socket, "ready")) ::_exit(3);

  (void)serving->run(socket, std::nullopt);
  const auto end = receive_record<EndMessage>(socket, kForever);
  if (!end && user_mount_) {  // fs-record was killed
    (void)take_user_mount_off(user_mount_->path());
    ::rmdir(user_mount_->path().c_str());
  }
  // No process is left to end this one when the trace is a pipe whose reader has stopped.
  if (!end) {
    sigset_t alarm;
    ::sigemptyset(&alarm);
    ::sigaddset(&alarm, SIGALRM);
    ::signal(SIGALRM, SIG_DFL);
    ::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
    ::alarm(20);
  }
  RecordedRun done;
  done.left_running = serving->run(-1, kGrace) == Serving::Until::time;
  const auto finished = recorder->finish(
      end && end->message.complete, end ? std::optional(end->message.exit_status) : std::nullopt);
  if (!end) ::alarm(0);
  done.events = recorder->counts().events;
  if (!finished) done.trace_failure = finished.error().message();
  if (end) (void)send_record(socket, done);
  ::close(socket);
  if (done.left_running) (void)serving->run(-1, std::nullopt);
  ::_exit(0);
}

/// APP has ended: the trace is finished once the mount has gone, or after a second.
Result<RecordedRun> Run::finish(RecordingDaemon& daemon, int exit_status, bool complete) {
  auto sent = send_record(daemon.socket.get(), EndMessage{exit_status, complete});
  auto got = sent ? receive_record<RecordedRun>(daemon.socket.get(), kForever)
                  : Result<Received<RecordedRun>>(fail(std::move(sent.error())));
  if (!got) {
    daemon.socket.reset();
    const auto status = daemon.child.wait_for(kEndsWithin);
    const int ended = status && *status ? **status : 0;
    return fail("", "the recorder died",
                ended > 128 ? "killed by signal " + std::to_string(ended - 128)
                            : "it ended with status " + std::to_string(ended));
  }
  if (got->message.left_running)
    (void)daemon.child.release();  // it goes on without us
  else
    TRY(daemon.child.wait());
  return std::move(got->message);
}

}  // namespace

Result<RecordedRun> run_recorded(const RecordOptions& options, const std::string& path) {
  return Run(options, path).run();
}

}  // namespace heddle
