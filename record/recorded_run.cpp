// SPDX-License-Identifier: MIT
#include "record/recorded_run.hpp"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>

#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/fusermount.hpp"
#include "launch/app_process.hpp"
#include "record/loopback/protocol.hpp"
#include "record/native_folders.hpp"
#include "record/private_root.hpp"
#include "record/recording_daemon.hpp"
#include "record/run_identity.hpp"

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

/// A mount by fusermount3, where the user may not mount himself. It is taken off when the program
/// has its own copy of it; the folder goes too.
class UserMount {
 public:
  static Result<UserMount> make() {
    auto folder = TempDir::create("fs-record");
    if (!folder) return fail(std::move(folder.error()));
    auto device = fusermount_mount(
        folder->path(), "rw,nosuid,nodev,fsname=fs-record,subtype=heddle-record,max_read=" +
                            std::to_string(loopback::kMaxData));
    if (!device) return fail(std::move(device.error()));
    return UserMount(std::move(*folder), std::move(*device));
  }
  UserMount(UserMount&&) = default;
  UserMount& operator=(UserMount&&) = delete;
  ~UserMount() { take_off(); }
  const std::string& path() const { return folder_.path(); }
  Fd take_device() { return std::move(device_); }
  void take_off() {
    if (!folder_.path().empty() && mounted_) (void)fusermount_unmount(folder_.path(), true);
    mounted_ = false;
  }

 private:
  UserMount(TempDir folder, Fd device) : folder_(std::move(folder)), device_(std::move(device)) {}
  TempDir folder_;
  Fd device_;
  bool mounted_ = true;
};

/// One run; its members end in the reverse of the order in which they began.
class Run {
 public:
  Run(const RecordOptions& options, const std::string& path) : options_(options), path_(path) {}
  Result<RecordedRun> run();

 private:
  Result<void> prepare();
  Result<void> prepare_user_mount();

  const RecordOptions& options_;
  const std::string& path_;
  NamespaceKind kind_ = NamespaceKind::mount;
  trace::RunHeader header_;
  RootPlan plan_;
  std::optional<UserMount> user_mount_;
};

Result<void> Run::prepare_user_mount() {
  auto mount = UserMount::make();
  if (mount) {
    user_mount_.emplace(std::move(*mount));
    plan_.mounted_at = user_mount_->path();
    header_.method = "fusermount3";
  } else {
    header_.method = "namespace";
    header_.notes.push_back(
        "mounted in a user namespace: files of owners other than the user cannot be reached (" +
        mount.error().message() + ")");
  }
  header_.notes.emplace_back(
      "user namespace: other groups show as 65534, chgrp to them fails, setuid programs do not "
      "change the user");
  return {};
}

Result<void> Run::prepare() {
  std::error_code error;
  header_.cwd = std::filesystem::current_path(error).string();
  if (error) return fail_errno(".", "cannot tell the working folder", error.value());
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
    auto natives = find_native_folders(plan_.cwd, own_environment());
    plan_.natives = std::move(natives.paths);
    header_.notes = std::move(natives.notes);
  } else {
    header_.notes.emplace_back("native: everything outside the scopes");
  }
  if (options_.via == RecordVia::user ||
      (options_.via == RecordVia::best && usable_namespace_kind() == NamespaceKind::user_and_mount))
    kind_ = NamespaceKind::user_and_mount;
  if (kind_ == NamespaceKind::user_and_mount) return prepare_user_mount();
  return {};
}

Result<RecordedRun> Run::run() {
  if (auto prepared = prepare(); !prepared) return fail(std::move(prepared.error()));
  auto signals = SignalRelay::start();
  if (!signals) return fail(std::move(signals.error()));
  PrivateRoot root(plan_);
  AppSetup setup;
  setup.mount = [&] { return root.mount(kind_); };
  setup.enter = [&] { return root.enter(); };
  setup.before_exec = [&] { root.mark_start(); };
  const AppCommand command{path_, options_.command, own_environment()};
  auto app = AppProcess::start(command, setup, *signals);
  if (!app) return fail(std::move(app.error()));
  auto device = app->take_fuse_fd();
  if (!device) return fail(std::move(device.error()));
  if (user_mount_) *device = user_mount_->take_device();
  auto daemon = RecordingDaemon::start(std::move(*device), options_, header_, app->pid());
  if (!daemon) return fail(std::move(daemon.error()));

  RecordedRun out;
  out.method = header_.method;
  auto started = app->run();
  if (user_mount_) user_mount_->take_off();
  if (!started && started.error().code() == 0) return fail(std::move(started.error()));
  if (!started) out.exec_error = started.error().code();
  auto status = app->wait(*signals);
  if (!status) return fail(std::move(status.error()));
  out.exit_status = *status;
  auto end = daemon->finish(*status, !signals->ended_by_signal() && out.exec_error == 0);
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
