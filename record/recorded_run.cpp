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

/// The recorder's answer to EndMessage.
template <class Coder, class Message>
requires std::same_as<std::remove_const_t<Message>, RecordedRun>
void fields(Coder& coder, Message& m) {
  coder(m.events, m.left_running, m.trace_failure, m.collisions);
}

namespace {

std::string own_path(const Fd& fd) { return fmt::format("/proc/self/fd/{}", fd.get()); }

/// The file at `path` (absolute) below `root`, opened name by name without following symbolic
/// links, since others may swap them meanwhile. Invalid and errno on failure.
Fd walk(const Fd& root, const std::string& path) {
  Fd at(::openat(root.get(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (std::size_t begin = 1; at && begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    at = Fd(::openat(at.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    begin = end + 1;
  }
  struct statx st {};
  // DONT_SYNC: the lookup has given the type.
  if (!at || ::statx(at.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) != 0)
    return {};
  if (!S_ISLNK(st.stx_mode)) return at;
  errno = ENOENT;
  return {};
}

/// Binds `path` below `from` to the same path below `to`. 0 or an errno.
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

/// Makes the loopback the root of the calling, single-threaded process. In two steps, because the
/// second needs the recorder's answers. mount(2) only, for Linux 4.18.
class PrivateRoot {
 public:
  /// `natives`: real paths that stay native. `mounted_at`: fusermount3's mount, if there is one.
  PrivateRoot(const trace::RunHeader& run, const std::vector<std::string>& natives,
              const std::string& mounted_at)
      : run_(run), natives_(natives), mounted_at_(mounted_at) {}

  /// Enters namespaces and mounts the loopback over `/`, which paths of this process do not show
  /// yet. Result: the device to serve, or a placeholder for a mount of fusermount3.
  Result<Fd> mount(NamespaceKind kind) {
    TRY(enter_private_namespace(kind));
    if (!mounted_at_.empty()) {
      if (::mount(mounted_at_.c_str(), "/", nullptr, MS_BIND, nullptr) != 0)
        return fail_errno(mounted_at_, "cannot use the mount");
      return open_file("/dev/null", O_RDONLY);
    }
    // After unshare(2): the descriptor's user namespace must be the mount's.
    Fd device = TRY(open_fuse_device());
    const auto options =
        fmt::format("fd={},rootmode=40000,user_id={},group_id={},max_read={},allow_other",
                    device.get(), ::geteuid(), ::getegid(), loopback::kMaxData);
    if (::mount("fs-record", "/", "fuse.heddle-record", 0, options.c_str()) != 0)
      return fail_errno("fuse", "cannot mount");
    return device;
  }

  /// Binds the native paths and makes the loopback the root, or binds the scopes.
  Result<void> enter() {
    // A removed working directory has no name in the loopback: it stays the one it is.
    if (char path[PATH_MAX]; !::getcwd(path, sizeof path) && errno == ENOENT)
      removed_cwd_ = TRY(open_file(".", O_PATH | O_DIRECTORY));
    old_root_ = TRY(open_file("/", O_PATH | O_DIRECTORY));
    // `..` of a root is the root, and what is mounted on it (path_resolution(7)).
    loopback_ = TRY(open_file("/..", O_PATH | O_DIRECTORY));
    raise_read_ahead();
    if (run_.scopes.empty()) {
      TRY(bind_natives());
      TRY(make_root());
    } else {
      TRY(bind_scopes());
    }
    if (::fchdir(removed_cwd_.get()) != 0 && ::chdir(run_.cwd.c_str()) != 0)
      return fail_errno(run_.cwd, "cannot enter");
    removed_cwd_.reset();
    return {};
  }

  /// Starts the recording, just before APP is executed.
  void mark_start() const {
    struct stat st {};
    // The recorder always answers ENOENT.
    (void)insist(
        [&] { return ::fstatat(loopback_.get(), loopback::kStartName, &st, AT_SYMLINK_NOFOLLOW); },
        [](int error) { return error != ENOENT; });
  }

 private:
  /// From FUSE's 128 KiB to the longest request. Only root may; others read in shorter requests.
  void raise_read_ahead() const {
    struct statx st {};
    if (::statx(loopback_.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &st) != 0) return;
    const auto path =
        fmt::format("/sys/class/bdi/{}:{}/read_ahead_kb", st.stx_dev_major, st.stx_dev_minor);
    if (const auto file = open_file(path, O_WRONLY))
      (void)write_all(file->get(), std::to_string(loopback::kMaxData / 1024), path);
  }
  Result<void> bind_natives() {
    for (const auto& path : natives_) {
      const int error = bind_same_path(old_root_, loopback_, path, MS_REC);
      // ENOENT: a socket was removed since it was listed.
      if (error != 0 && error != ENOENT)
        return fail_errno(path, "cannot keep the native directory", error);
    }
    return {};
  }
  Result<void> make_root() {
    if (::fchdir(loopback_.get()) != 0) return fail_errno("/", "cannot enter the new root");
    // As runc does: pivot_root(2) stacks the old root on the new one, and it is unmounted there.
    // The initial ramfs cannot be pivoted.
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
    for (const auto& scope : run_.scopes)
      if (const int error = bind_same_path(loopback_, old_root_, scope, 0); error != 0)
        return fail_errno(scope, "cannot record this directory", error);
    if (::fchdir(loopback_.get()) != 0 || ::umount2(".", MNT_DETACH) != 0 ||
        ::fchdir(old_root_.get()) != 0)
      return fail_errno("/", "cannot unmount the loopback from the root");
    return {};
  }

  Fd removed_cwd_;
  const trace::RunHeader& run_;
  const std::vector<std::string>& natives_;
  const std::string& mounted_at_;
  Fd loopback_;  ///< the mount's root
  Fd old_root_;
};

/// Unmounts `path` lazily by fusermount3.
Result<void> detach_user_mount(const std::string& path) {
  auto done = fusermount_unmount(path, true);
  if (done) return done;
  const auto mounted = find_mount(path);
  return mounted && !*mounted ? Result<void>{} : done;
}

/// A mount by fusermount3, for users who may not mount, and its temporary directory.
class UserMount {
 public:
  static Result<UserMount> make() {
    // $TMPDIR may not be writable for this user (a build's, a batch job's).
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
    detach();
    if (!mounted_) return;
    // TempDir must not remove the directory: all files of the machine are below it.
    warn(Error(directory_.release(), "is still mounted", {}, "fusermount3 -uz unmounts it"));
  }

  const std::string& path() const { return directory_.path(); }
  Fd take_device() { return std::move(device_); }
  /// Unmounts it; after a failure the next call or the destructor tries again.
  void detach() {
    if (mounted_) mounted_ = !detach_user_mount(directory_.path());
  }

 private:
  UserMount(TempDir directory, Fd device)
      : directory_(std::move(directory)), device_(std::move(device)) {}
  TempDir directory_;
  Fd device_;
  bool mounted_ = true;
};

/// How long fs-record waits for processes that APP leaves behind.
constexpr std::chrono::milliseconds kGrace{1000};
/// How long the recorder may take to end after a failure: a fusermount3 may hang.
constexpr std::chrono::milliseconds kEndsWithin{15000};
/// The reader of a trace in a pipe may stop for any time.
constexpr std::chrono::milliseconds kForever{INT_MAX};

/// Sent by fs-record when APP has ended.
struct EndMessage {
  int exit_status = 0;
  bool complete = false;
};
template <class Coder, class Message>
requires std::same_as<std::remove_const_t<Message>, EndMessage>
void fields(Coder& coder, Message& m) { coder(m.exit_status, m.complete); }

/// Raises RLIMIT_NOFILE as far as permitted: each open file of APP and each node needs a
/// descriptor. Result: how many nodes may have one; each pins some 1.5 KB in the kernel.
/// Single-threaded: the kernel's table of descriptors gets its size now, because to grow it waits
/// for an RCU grace period when threads share it (fs/file.c, expand_fdtable()).
std::size_t raise_descriptor_limit() {
  constexpr rlim_t kMostNodes = 65536;
  rlimit limit{1U << 20, 1U << 20};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0 && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  const auto nodes = std::min(limit.rlim_cur / 2, kMostNodes);
  const Fd last(::fcntl(0, F_DUPFD_CLOEXEC, static_cast<int>(nodes) - 1));
  return nodes;
}

/// Serves the loopback in threads of its own, which end with the process.
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
  /// Waits until `input` (-1: none) is readable, the mount is gone, or the time is up.
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

/// The recorder: the process that serves the loopback and writes the trace. It runs outside APP's
/// namespace, in a process group of its own, out of reach of the terminal's signals, and ends with
/// the mount. Without fs-record the trace is incomplete. A recorder that dies is not replaced:
/// APP's accesses fail, the trace has no footer, and fs-record reports that.
struct RecordingDaemon {
  Child child;
  Fd socket;
  RecordingDaemon(Child process, Fd to_it) : child(std::move(process)), socket(std::move(to_it)) {}
  RecordingDaemon(RecordingDaemon&&) = default;
  // Waits first, because SIGKILL could leave a line of the trace half written.
  ~RecordingDaemon() {
    socket.reset();
    if (child.pid() > 0) (void)child.wait_for(kEndsWithin);
  }
};

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
  Result<RecordingDaemon> start_daemon();
  int serve(int socket);
  static Result<void> serve_device(const RecordingDaemon& daemon, const Fd& device, const Fd& app);
  static Result<RecordedRun> finish(RecordingDaemon& daemon, int exit_status, bool complete);

  const RecordOptions& options_;
  const std::string& path_;
  NamespaceKind kind_ = NamespaceKind::mount;
  trace::RunHeader header_;
  std::vector<std::string> natives_;
  std::string mounted_at_;  ///< by fusermount3
  std::optional<UserMount> user_mount_;
  std::optional<Error> lack_;   ///< the method's limits, reported once it works
  Fd out_;                      ///< of a trace in a pipe or device
  bool no_namespaces_ = false;  ///< namespaces cannot be made; APP has not run
};

void Run::prepare_user_mount() {
  auto mount = UserMount::make();
  if (mount) {
    user_mount_.emplace(std::move(*mount));
    mounted_at_ = user_mount_->path();
    header_.method = "fusermount3";
  } else {
    header_.method = "namespace";
    // fs/namei.c, HAS_UNMAPPED_ID.
    const std::string lack = "files and directories of other owners cannot be written";
    header_.notes.push_back("mounted in a user namespace: " + lack + " (" +
                            mount.error().message() + ")");
    if (!options_.quiet)
      lack_.emplace("", "recording in a user namespace: " + lack, mount.error().message(),
                    mount.error().hint().empty()
                        ? "install fuse3 (a setuid fusermount3), or run as root"
                        : mount.error().hint());
  }
  header_.notes.emplace_back(
      "user namespace: other groups show as 65534, chgrp to them fails, setuid programs do not "
      "change the user");
}

Result<void> Run::prepare() {
  std::error_code error;
  header_.cwd = std::filesystem::current_path(error).string();
  const bool is_removed = error.value() == ENOENT;
  if (is_removed) header_.cwd = std::filesystem::read_symlink("/proc/self/cwd", error).string();
  if (error) return fail_errno(".", "cannot determine the working directory", error.value());
  std::random_device random;
  header_.run_id = fmt::format("{:08x}{:08x}", random(), random());
  header_.argv = options_.command;
  header_.host = host_name();
  header_.rank = rank_from_environment();
  header_.scopes = options_.scopes;
  header_.start_unix_ns =
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  header_.method = "namespace";
  if (options_.scopes.empty()) {
    auto natives = find_native_paths(header_.cwd, own_environment());
    natives_ = std::move(natives.paths);
    header_.notes = std::move(natives.notes);
  } else {
    header_.notes.emplace_back("native: everything outside the scopes");
  }
  if (is_removed)
    header_.notes.emplace_back(
        "native: what is opened by names relative to the removed working directory");
  header_.notes.emplace_back(
      "inotify and FIFOs connect to processes outside the run in native directories only; shared "
      "mappings do for files opened for writing, as root on Linux 6.9 or newer");
  return {};
}

Result<RecordedRun> Run::run() {
  // In this process, because the recorder inherits no descriptors; before signals are held back,
  // because opening a pipe may wait for its reader.
  out_ = TRY(open_unreplaceable(options_.out));
  TRY(prepare());
  if (options_.via == RecordVia::proot) return run_under_proot();
  const auto notes = header_.notes;
  auto done = run_in_namespaces();
  constexpr int kShortages[] = {ENOMEM, EMFILE, ENFILE, EAGAIN, EINTR, EIO};
  if (done || options_.via != RecordVia::best || !no_namespaces_ ||
      std::ranges::count(kShortages, done.error().code()) != 0)
    return done;
  header_.notes = notes;
  header_.notes.push_back("proot, because no namespaces can be made: " + done.error().message());
  auto second = run_under_proot();
  // The first error is the one the user can do something about.
  return second || !no_namespaces_ ? std::move(second) : std::move(done);
}

Result<RecordedRun> Run::run_in_namespaces() {
  no_namespaces_ = true;
  if (options_.via == RecordVia::user ||
      (options_.via == RecordVia::best && usable_namespace_kind() == NamespaceKind::user_and_mount))
    kind_ = NamespaceKind::user_and_mount;
  if (kind_ == NamespaceKind::user_and_mount) prepare_user_mount();
  PrivateRoot root(header_, natives_, mounted_at_);
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
  std::vector<std::string> argv{"proot", "-w", header_.cwd, "-r",
                                header_.scopes.empty() ? root : "/"};
  for (const auto& path : natives_) argv.insert(argv.end(), {"-b", path});
  for (const auto& scope : header_.scopes)
    argv.insert(argv.end(), {"-b", root + scope + ":" + scope});
  // Not path_: proot searches PATH itself, and argv[0] stays as given.
  argv.insert(argv.end(), options_.command.begin(), options_.command.end());
  AppSetup setup;
  setup.mount = [] { return open_file("/dev/null", O_RDONLY); };
  setup.before_exec = [&] {
    // On SIGQUIT proot kills its tracees (tracee/event.c); after SIGKILL they would run natively.
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
  // proot leaves signals to its tracees, which those of a terminal reach by themselves.
  if (header_.method == "proot") signals.pass_to_child();
  AppSetup own = setup;
  own.mount = [&] {
    // Closes APP's copy: a process that waits for the recorder while it holds the device open would
    // survive the recorder's death, and SIGKILL.
    if (user_mount_) (void)user_mount_->take_device();
    return setup.mount();
  };
  // Before APP: they start side by side, and it ends after APP, which a failure below kills.
  RecordingDaemon daemon = TRY(start_daemon());
  AppProcess app = TRY(AppProcess::start(command, own, signals));
  Fd device = TRY(app.take_fuse_fd());
  no_namespaces_ = false;
  if (lack_ && !user_mount_) warn(*lack_);
  if (user_mount_) device = user_mount_->take_device();
  const Fd app_end = TRY(watch_child_end(app.pid()));
  TRY(serve_device(daemon, device, app_end));
  device.reset();

  RecordedRun out;
  const auto started = app.run();
  const bool proot = header_.method == "proot";
  if (user_mount_ && !proot) user_mount_->detach();
  if (!started && started.error().cause() != Cause::exec) return fail(Error(started.error()));
  if (!started) out.exec_error = started.error().code();
  out.end = TRY(app.wait(signals));
  if (user_mount_) user_mount_->detach();
  auto end = finish(daemon, out.end.status, out.end.signal == 0 && out.exec_error == 0);
  if (!end) {
    out.trace_failure = end.error().message();
    return out;
  }
  end->end = out.end;
  end->exec_error = out.exec_error;
  return end;
}

/// Forks the recorder, which waits for a device.
Result<RecordingDaemon> Run::start_daemon() {
  auto sockets = TRY(make_socket_pair());
  ForkOptions how;
  how.dies_with_parent = false;
  how.keep = {sockets.other.get()};
  if (out_) how.keep->push_back(out_.get());
  how.null_stdio = true;
  how.default_signals = false;  // stay blocked: fs-record relays them to APP
  how.name = "fs-record:serve";
  how.untraced = true;
  return RecordingDaemon(TRY(fork_child(how, [&] { return serve(sockets.other.get()); })),
                         std::move(sockets.one));
}

/// Gives the recorder the device and APP's pidfd, and waits until the device is served.
Result<void> Run::serve_device(const RecordingDaemon& daemon, const Fd& device, const Fd& app) {
  TRY(send_fd(daemon.socket.get(), device.get()));
  TRY(send_fd(daemon.socket.get(), app.get()));
  const auto answer = receive_packet(daemon.socket.get(), kForever);
  if (!answer) return fail("", "the recorder died at its start");
  if (answer->text != "ready") {
    Error failure = TRY(decode_record<Error>(answer->text));
    return fail(std::move(failure));
  }
  return {};
}

int Run::serve(int socket) {
  // No session of its own: the kernel schedules each session as one (sched(7), autogroup), so that
  // each request would wait for the processes of others.
  ::setpgid(0, 0);
  ::signal(SIGPIPE, SIG_IGN);  // a closed trace must not end APP's file system
  ::signal(SIGIO, SIG_IGN);    // sent when a lease is broken while IoModes tests for one
  const std::size_t most_nodes = raise_descriptor_limit();
  const auto device = receive_fd(socket);
  const auto app = device ? receive_fd(socket) : Result<Fd>();
  if (!device || !app) return 3;
  std::optional<Recorder> recorder;
  std::optional<Serving> serving;
  try {
    recorder.emplace(
        value_or_throw(trace::TraceWriter::create(
            options_.out, header_, options_.json ? trace::Form::json_lines : trace::Form::text,
            std::move(out_))),
        options_.recorder);
    if (::chdir("/") != 0) throw Error::from_errno("/", "cannot enter");
    loopback::drop_unneeded_capabilities();
    serving.emplace(
        *recorder,
        loopback::Loopback::Setup{device->get(), most_nodes, {natives_.begin(), natives_.end()}},
        device->get());
  } catch (const Error& error) {
    return send_failure(socket, error), 3;
  }
  if (!send_packet(socket, "ready")) ::_exit(3);

  (void)serving->run(socket, std::nullopt);
  const auto end = receive_record<EndMessage>(socket, kForever);
  if (!end && user_mount_) {  // fs-record was killed
    (void)detach_user_mount(user_mount_->path());
    ::rmdir(user_mount_->path().c_str());
  }
  // Without fs-record nothing else ends this process when the reader of a trace in a pipe stops.
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
  done.collisions = recorder->collisions();
  if (!finished) done.trace_failure = finished.error().message();
  if (end) (void)send_record(socket, done);
  ::close(socket);
  while (done.left_running) {
    // One that was being forked when fs-record died is not among the processes that proot killed on
    // SIGQUIT, and stays stopped.
    if (!end && header_.method == "proot")
      ::syscall(SYS_pidfd_send_signal, app->get(), SIGQUIT, nullptr, 0U);
    done.left_running = serving->run(-1, kGrace) == Serving::Until::time;
  }
  ::_exit(0);
}

/// Has the trace finished when the mount is gone, at the latest after kGrace.
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
    (void)daemon.child.release();  // serves on until the mount is gone
  else
    TRY(daemon.child.wait());
  return std::move(got->message);
}

}  // namespace

Result<RecordedRun> run_recorded(const RecordOptions& options, const std::string& path) {
  return Run(options, path).run();
}

}  // namespace heddle
