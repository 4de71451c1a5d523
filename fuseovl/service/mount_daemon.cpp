// SPDX-License-Identifier: MIT
#include "fuseovl/service/mount_daemon.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/child.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/mount_service.hpp"
#include "base/mounts.hpp"
#include "base/open_regular.hpp"
#include "base/sandbox/privileges.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/warm_up.hpp"

namespace heddle {
namespace {

bool ending_signal_is_pending() {
  sigset_t pending;
  ::sigpending(&pending);
  return std::ranges::any_of(kEndingSignals, [&](int n) { return ::sigismember(&pending, n); });
}

/// A failure's message has a line for each file that differs.
Result<OverlayContent> load(const MountSettings& settings, const std::string& mount_point) {
  LoadOptions options = settings.load;
  options.mount_point = mount_point;
  // A user mounts a device in its own user namespace.
  if (settings.fuse_fd >= 0 && ::geteuid() != 0) options.unmapped_groups = supplementary_groups();
  std::error_code none;  // shown in the statistics: the daemon's directory is `/`
  if (const auto map = std::filesystem::absolute(options.map_path, none); !none)
    options.map_path = map.string();
  std::vector<Drift> drifts;
  auto content = load_overlay(options, drifts);
  std::string text;
  for (const auto& drift : drifts) text += Error(drift.path, drift.what).message() + "\n";
  if (!content) {
    const Error& error = content.error();
    if (error.code() == EFBIG)
      return fail("", text + error.message(), "", "raise the limit of files' sizes (ulimit -f)");
    return fail(Error({}, text + error.message(), {}, error.hint())
                    .because(error.cause() == Cause::silent ? Cause::silent : Cause::unfit));
  }
  for (const auto& drift : drifts) warn(Error(drift.path, drift.what));
  if (!settings.map_id.empty() && content->facts.map_id != settings.map_id)
    return fail("fs-mount", "cannot use the map", "it is not the requested map");
  return content;
}

Writes writes_to(const OverlayContent& content) {
  return content.trees->trees().empty() ? Writes::refused_by_kernel : Writes::refused_by_daemon;
}

Result<std::string> check_mount_point(const MountSettings& settings) {
  const std::string& directory = settings.mount_point;
  const std::string path = TRY(resolve_mount_point(directory));
  if (path == "/")
    return fail(directory, "cannot mount here", "it would hide the root directory",
                "make an empty directory for it");
  if (settings.exchange) return path;
  if (is_heddle_mount(path))
    return fail(directory, "cannot mount here",
                is_dead(path) ? "a heddle mount whose daemon has died is still here"
                              : "it is already a heddle mount",
                "unmount it with fs-mount -u");
  return path;
}

/// A mount and its device; with `exchange` it is detached until exchange_mount().
struct NewMount {
  std::string path;
  Fd device;
  Fd tree;  ///< of a detached mount, which ends with the last copy of this descriptor
  dev_t st_dev = 0;

  static Result<NewMount> make(const MountSettings& settings, std::string path, Writes writes) {
    NewMount out;
    out.path = std::move(path);
    if (settings.exchange) {
      out.device = TRY(open_fuse_device());
      auto tree =
          new_fuse_mount(out.device.get(), writes == Writes::refused_by_kernel, ::getuid() == 0);
      if (tree) {
        out.tree = std::move(*tree);
        out.st_dev = mount_device(out.tree.get());
        return out;
      }
      if (tree.error().code() != ENOSYS) return fail(std::move(tree.error()));
    }
    // Before Linux 5.2 it is mounted over the old one.
    out.device = TRY(mount_fuse(out.path, settings.keep == KeepKind::fusermount, writes));
    if (const auto mounted = find_mount(out.path); mounted && *mounted)
      out.st_dev = (*mounted)->device;
    return out;
  }
  void undo() { tree ? tree.reset() : (void)unmount_fuse(path, Unmount::detach); }
};

/// In the process that does not serve: waits until the daemon answers, then warms the mount and
/// attaches it if it is detached.
Result<void> wait_and_warm(const Fd& ready, const NewMount& mount, std::uint64_t prefetch,
                           const std::optional<BundlePlaces>& bundle) {
  TRY(await_ready(ready.get()));
  const auto tree = "/proc/self/fd/" + std::to_string(mount.tree.get());
  TRY(warm_up(mount.tree ? tree : mount.path));
  if (mount.tree) TRY(exchange_mount(mount.tree.get(), mount.path));
  (void)start_prefetch(mount.path, prefetch, bundle);
  return {};
}

/// Empties this process's own mount namespace, which would keep all its mounts busy. Open files
/// stay open. On failure nothing has changed.
Result<void> leave_tree() {
  // Covered in this namespace only. Every system has it, and it is no process's working directory.
  constexpr const char* kCovered = "/proc";
  if (::mount("heddle", kCovered, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,mode=555") !=
      0)
    return fail_errno(kCovered, "cannot mount an empty directory");
  // pivot_root(2), "pivot_root(".", ".")": the old root is stacked on the new one.
  if (::chdir(kCovered) != 0 || ::syscall(SYS_pivot_root, ".", ".") != 0) {
    const auto error = Error::from_errno("/", "cannot change the root");
    (void)::chdir("/");
    (void)::umount2(kCovered, MNT_DETACH);
    return fail(error);
  }
  (void)::umount2(".", MNT_DETACH);
  (void)::chdir("/");
  return {};
}

/// serve(), and the mount detached when that fails.
Result<void> serve_mount(Overlay& overlay, Fd device, ServeOptions options) {
  const auto mount_point = options.mount_point;
  const auto st_dev = options.mount_device;
  // A WorkDirectory: sweep_leftovers() must not remove the mount point of another namespace.
  const Fd lock(options.cleanup.empty()
                    ? -1
                    : ::open(options.cleanup.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  (void)::flock(lock.get(), LOCK_SH | LOCK_NB);
  Fd unmounter;
  if (mount_point && ::geteuid() != 0 && !has_capability(CAP_SYS_ADMIN)) {
    auto guard = delegate_unmounting(*mount_point);
    if (!guard) {
      (void)unmount_fuse(*mount_point, Unmount::detach);
      return fail(std::move(guard.error()));
    }
    unmounter = std::move(*guard);
  }
  auto served = serve(overlay, std::move(device), std::move(options));
  // Not another mount that has replaced this one.
  if (const auto mounted = mount_point ? find_mount(*mount_point) : std::nullopt;
      !served && mounted && *mounted && (*mounted)->device == st_dev)
    (void)unmount_fuse(*mount_point, Unmount::detach);
  return served;
}

ServeOptions serve_options(const MountSettings& settings, const NewMount& mount) {
  ServeOptions out;
  out.mount_point = mount.path;
  out.mount_device = mount.st_dev;
  out.cleanup = settings.cleanup;
  out.session.threads = settings.threads;
  return out;
}

}  // namespace

Result<void> leave_terminal(const std::string& log_path) {
  const Fd null = TRY(open_file("/dev/null", O_RDWR));
  Fd log;
  if (!log_path.empty()) log = TRY(open_log(log_path));
  (void)::setsid();  // fails for a session leader, which needs none
  (void)::chdir("/");
  ::dup2(null.get(), STDIN_FILENO);
  ::dup2(null.get(), STDOUT_FILENO);
  ::dup2(log ? log.get() : null.get(), STDERR_FILENO);
  const sigset_t ending = ending_signals();
  ::sigprocmask(SIG_SETMASK, &ending, nullptr);
  return {};
}

Result<void> start_daemon(const MountSettings& settings) {
  const std::string mount_point = TRY(check_mount_point(settings));
  auto content = TRY(load(settings, mount_point));
  if (!settings.load.fallback.empty() && !content.bundle)
    warn(Error(settings.load.fallback, "is not used", "the map is no bundle"));
  const auto writes = writes_to(content);
  std::optional<Overlay> overlay(std::move(content));
  auto ready = TRY(make_socket_pair());
  // A signal during the set-up must not leave a mount behind.
  const sigset_t ending = ending_signals();
  ::sigprocmask(SIG_BLOCK, &ending, nullptr);
  auto mount = TRY(NewMount::make(settings, mount_point, writes));
  const auto serve_here = [&] {
    auto serving = serve_options(settings, mount);
    serving.ready = std::move(ready.other);
    serving.service = Fd(settings.service_fd);
    return serve_mount(*overlay, std::move(mount.device), std::move(serving));
  };
  // In the process that does not serve.
  const auto warm = [&] {
    // With the device open here, requests of this process would outlive a daemon that dies.
    mount.device.reset();
    ready.other.reset();
    const auto bundle =
        settings.prefetch > 0 ? overlay->places_in_bundle() : std::optional<BundlePlaces>();
    overlay.reset();
    return wait_and_warm(ready.one, mount, settings.prefetch, bundle);
  };
  const auto run_daemon = [&]() -> Result<void> {  // {}: or the other process reports
    std::vector<int> keep = overlay->descriptors();
    keep.insert(keep.end(), {mount.device.get(), ready.other.get(), settings.service_fd});
    mount.tree.reset();
    close_fds_but(keep);
    if (auto left = leave_terminal(settings.log_path); !left) {
      refuse_mount(ready.other.get(), left.error());
      return {};
    }
    return serve_here();
  };
  auto child = fork_child({.dies_with_parent = false, .default_signals = false}, [&]() -> int {
    // A foreground mount may stay cold.
    if (settings.foreground) return (void)warm(), exit_done;
    const auto served = run_daemon();
    if (!served) report(served.error());
    return served ? exit_done : exit_failure;
  });
  if (!child) {
    mount.undo();
    return fail(std::move(child.error()));
  }
  if (settings.foreground) {
    (void)child->release();
    ready.one.reset();
    return serve_here();
  }
  auto warmed = warm();
  if (warmed && ending_signal_is_pending() && !settings.exchange)
    warmed = fail_errno(settings.mount_point, "cannot mount", EINTR);
  if (!warmed) {
    mount.undo();
    (void)child->wait_for(std::chrono::seconds(10));
  }
  (void)child->release();
  return warmed;
}

Result<void> serve_device(const MountSettings& settings) {
  // In a container's pid namespace, a process of the same uid with the daemon's few capabilities
  // could else reach the host's tree by /proc/PID/root and /proc/PID/fd (ptrace(2), "Ptrace access
  // mode checking"). Workers inherit this.
  if (::prctl(PR_SET_DUMPABLE, 0) != 0) return fail_errno("", "cannot protect its own process");
  ServeOptions serving;
  serving.cleanup = settings.cleanup;
  serving.ready = Fd(settings.ready_fd);
  serving.report_at_end = true;
  serving.session.threads = settings.threads;
  Fd device(settings.fuse_fd);
  const auto prepare = [&]() -> Result<OverlayContent> {
    struct stat status {};
    if (::fstat(device.get(), &status) != 0 || !S_ISCHR(status.st_mode) ||
        status.st_rdev != ::makedev(10, 229))
      return fail("--fuse-fd " + std::to_string(device.get()), "cannot serve",
                  "it is no open /dev/fuse");
    ::fcntl(device.get(), F_SETFD, FD_CLOEXEC);
    return load(settings, settings.load.mount_point);
  };
  auto content = prepare();
  if (content) {
    const bool all_pinned =
        content->files.pinned() == content->files.size() && content->trees->trees().empty();
    Overlay overlay(std::move(*content));
    std::vector<int> keep = overlay.descriptors();
    keep.insert(keep.end(), {device.get(), serving.ready.get()});
    close_fds_but(keep);
    const auto left = leave_terminal(settings.log_path);
    // Files that are not pinned are reopened by path, those of trees by /proc. A failure only keeps
    // mounts busy for longer.
    if (left && settings.leave_tree && all_pinned)
      if (auto empty = leave_tree(); !empty) warn(empty.error());
    if (left) return serve_mount(overlay, std::move(device), std::move(serving));
    content = fail(left.error());
  }
  if (serving.ready) refuse_mount(serving.ready.get(), content.error());
  if (!serving.cleanup.empty()) (void)remove_tree(serving.cleanup);
  return fail(std::move(content.error()));
}

}  // namespace heddle
