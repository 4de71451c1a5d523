// SPDX-License-Identifier: MIT
#include "record/recorded_run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/backoff.hpp"
#include "base/find_program.hpp"
#include "base/launch/app_process.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/mounts.hpp"
#include "base/output_file.hpp"
#include "base/try.hpp"
#include "record/native_paths.hpp"
#include "record/private_root.hpp"
#include "record/recording_daemon.hpp"

namespace heddle {
namespace {

std::vector<std::string> own_environment() {
  std::vector<std::string> out;
  for (char** variable = ::environ; *variable; ++variable) out.emplace_back(*variable);
  return out;
}

std::uint64_t unix_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

/// Sixteen hexadecimal digits, different for each run.
std::string new_run_id() {
  std::uint64_t bits = 0;
  if (::getrandom(&bits, sizeof(bits), 0) != static_cast<ssize_t>(sizeof(bits)))
    bits =
        static_cast<std::uint64_t>(::time(nullptr)) << 20U ^ static_cast<std::uint64_t>(::getpid());
  return fmt::format("{:016x}", bits);
}

/// Nothing that is forbidden: the same may work a moment later.
bool is_shortage(const Error& error) {
  constexpr int kShortages[] = {ENOMEM, EMFILE, ENFILE, EAGAIN, EINTR, EIO};
  return std::find(std::begin(kShortages), std::end(kShortages), error.code()) !=
         std::end(kShortages);
}

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
  header_.run_id = new_run_id();
  header_.argv = options_.command;
  header_.host = host_name();
  header_.rank = rank_from_environment();
  header_.scopes = options_.scopes;
  header_.start_unix_ns = unix_ns();
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
    // When we die, the recorder kills what proot traces, and needs it alive to know that.
    ::prctl(PR_SET_PDEATHSIG, 0);
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
  AppProcess app = TRY(AppProcess::start(command, own, signals));
  Fd device = TRY(app.take_fuse_fd());
  no_namespaces_ = false;
  if (lack_ && !user_mount_) warn(*lack_);
  if (user_mount_) device = user_mount_->take_device();
  RecordingDaemon daemon =
      TRY(RecordingDaemon::start(std::move(device), options_, header_, plan_.natives, app.pid(),
                                 user_mount_ ? user_mount_->path() : std::string(), out_));

  RecordedRun out;
  const auto started = app.run();
  const bool proot = header_.method == "proot";
  if (user_mount_ && !proot) user_mount_->take_off();
  if (!started && started.error().cause() != Cause::exec) return fail(Error(started.error()));
  if (!started) out.exec_error = started.error().code();
  out.end = TRY(app.wait(signals));
  if (user_mount_) user_mount_->take_off();
  const auto end = daemon.finish(out.end.status, out.end.signal == 0 && out.exec_error == 0);
  if (!end) {
    out.trace_failure = end.error().message();
    return out;
  }
  out.events = end->events;
  out.trace_failure = end->failure;
  out.left_running = end->left_running;
  return out;
}

}  // namespace

Result<RecordedRun> run_recorded(const RecordOptions& options, const std::string& path) {
  return Run(options, path).run();
}

}  // namespace heddle
