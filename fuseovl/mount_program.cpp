// SPDX-License-Identifier: MIT
#include "fuseovl/mount_program.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/exit_code.hpp"
#include "base/fuse_device.hpp"
#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/leave_tree.hpp"
#include "fuseovl/mount/background.hpp"
#include "fuseovl/mount/fusermount.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/mount_exchange.hpp"
#include "fuseovl/mount/warm_up.hpp"
#include "fuseovl/supervise/serve.hpp"

namespace heddle {
namespace {

/// A signal that arrives between mounting and the end of the set-up must not leave a mount behind:
/// it is held back and looked for when the set-up is done.
class HeldSignals {
 public:
  HeldSignals() {
    ::sigemptyset(&set_);
    for (const int n : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&set_, n);
    ::sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  bool one_waits() const {
    sigset_t pending;
    ::sigpending(&pending);
    for (const int n : {SIGTERM, SIGINT, SIGHUP})
      if (::sigismember(&pending, n)) return true;
    return false;
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

std::string describe(const Drift& drift) { return Error(drift.path, drift.what).message(); }

Result<OverlayContent> load(const LoadOptions& options) {
  std::vector<Drift> drifts;
  auto content = load_overlay(options, drifts);
  for (const auto& drift : drifts) content ? warn(describe(drift)) : say(describe(drift));
  return content;
}

Result<std::string> check_mount_point(const std::string& directory, bool exchange) {
  auto path = resolve_mount_point(directory);
  if (!path || exchange) return path;
  const auto mounted = find_mount(*path);
  if (!mounted) return fail(mounted.error());
  if (*mounted && (*mounted)->type == kMountType)
    return fail(directory, "cannot mount here",
                is_dead(*path) ? "a heddle mount whose daemon has died is still here"
                               : "it is already a heddle mount",
                "unmount it with fs-mount -u");
  struct stat status {};
  if (::stat(path->c_str(), &status) != 0)
    return fail_errno(directory, "cannot use as mount point");
  if (!S_ISDIR(status.st_mode)) return fail_errno(directory, "cannot use as mount point", ENOTDIR);
  return path;
}

/// A mount, in its place or, until exchange_mount(), nowhere.
struct NewMount {
  Fd device;
  Fd tree;  ///< of one that is nowhere; it goes with the last process that has this
  dev_t st_dev = 0;
};

Result<NewMount> make_mount(const std::string& mount_point, bool exchange) {
  NewMount out;
  if (exchange) {
    auto device = open_fuse_device();
    if (!device) return fail(std::move(device.error()));
    auto tree = new_fuse_tree(device->get());
    if (tree) {
      out.device = std::move(*device);
      out.tree = std::move(*tree);
      out.st_dev = mount_device(out.tree.get());
      return out;
    }
    if (tree.error().code() != ENOSYS) return fail(std::move(tree.error()));
  }
  // All that can fail has been tried: before Linux 5.2 it goes over the old one at once.
  auto device = mount_fuse(mount_point);
  if (!device) return fail(std::move(device.error()));
  out.device = std::move(*device);
  if (const auto mounted = find_mount(mount_point); mounted && *mounted)
    out.st_dev = (*mounted)->device;
  return out;
}

/// In the process that does not serve: waits until the daemon answers, then warms the mount.
Result<void> wait_and_warm(Pipe ready, const std::string& mount_point, std::uint64_t prefetch) {
  ready.write_end.reset();
  if (auto answers = await_ready(ready.read_end.get()); !answers) return answers;
  return warm_up(mount_point, {prefetch, true});
}

/// Likewise, of a mount that then takes another's place.
Result<void> warm_and_exchange(Pipe ready, const Fd& tree, const std::string& mount_point,
                               std::uint64_t prefetch) {
  const auto at = "/proc/self/fd/" + std::to_string(tree.get());
  if (auto warm = wait_and_warm(std::move(ready), at, 0); !warm) return warm;
  if (auto exchanged = exchange_mount(tree.get(), mount_point); !exchanged) return exchanged;
  (void)start_prefetch(mount_point, {prefetch, std::nullopt});
  return {};
}

int fail_with(const Error& error) {
  report(error);
  return exit_failure;
}

}  // namespace

int serve_program(Overlay& overlay, Fd device, ServeOptions options) {
  const auto mount_point = options.mount_point;
  const auto st_dev = options.mount_device;
  Result<Fd> unmounter = Fd();
  if (mount_point && ::geteuid() != 0) unmounter = delegate_unmounting(*mount_point);
  if (!unmounter) return fail_with(unmounter.error());
  auto served = serve(overlay, std::move(device), std::move(options));
  if (served) return exit_done;
  // Ours, and no other that has taken its place.
  if (const auto mounted = mount_point ? find_mount(*mount_point) : std::nullopt;
      mounted && *mounted && (*mounted)->device == st_dev)
    (void)unmount_fuse(*mount_point, Unmount::detach);
  return fail_with(served.error());
}

SessionOptions session_options(const MountSettings& settings) {
  SessionOptions options;
  options.max_read = kMaxRead;
  options.threads = settings.threads;
  return options;
}

int mount_program(const MountSettings& settings) {
  auto mount_point = check_mount_point(settings.mount_point, settings.exchange);
  if (!mount_point) return fail_with(mount_point.error());
  LoadOptions load_options = settings.load;
  load_options.mount_point = *mount_point;
  std::error_code none;  // shown in the statistics: the daemon's folder is `/`
  if (const auto map = std::filesystem::absolute(load_options.map_path, none); !none)
    load_options.map_path = map.string();
  auto content = load(load_options);
  if (!content) return fail_with(content.error());
  auto ready = make_pipe();
  if (!ready) return fail_with(ready.error());

  HeldSignals signals;
  Overlay overlay(std::move(*content));
  auto mount = make_mount(*mount_point, settings.exchange);
  if (!mount) return fail_with(mount.error());
  // A tree that is nowhere goes by itself.
  const auto undo = [&] {
    mount->tree ? mount->tree.reset() : (void)unmount_fuse(*mount_point, Unmount::detach);
  };
  ServeOptions serving;
  serving.mount_point = *mount_point;
  serving.mount_device = mount->st_dev;
  serving.session = session_options(settings);

  const pid_t child = ::fork();
  if (child < 0) {
    const Error error = Error::from_errno("fs-mount", "cannot start the daemon");
    undo();
    return fail_with(error);
  }
  const bool serves = (child == 0) != settings.foreground;
  if (serves) {
    ready->read_end.reset();
    serving.ready = std::move(ready->write_end);
    if (settings.foreground) {
      return serve_program(overlay, std::move(mount->device), std::move(serving));
    }
    std::vector<int> keep = overlay.descriptors();
    mount->tree.reset();
    keep.insert(keep.end(), {mount->device.get(), serving.ready.get()});
    close_fds_but(keep);
    if (auto left = leave_terminal(settings.log_path); !left) {
      (void)write_all(serving.ready.get(), left.error().message(), "ready");
      ::_exit(exit_failure);
    }
    ::_exit(serve_program(overlay, std::move(mount->device), std::move(serving)));
  }

  // Not ours any more: were it open here, a daemon that dies could not end our own requests.
  mount->device.reset();
  const auto warm = mount->tree ? warm_and_exchange(std::move(*ready), mount->tree, *mount_point,
                                                    settings.prefetch)
                                : wait_and_warm(std::move(*ready), *mount_point, settings.prefetch);
  // Only a helper: the serving process says what is wrong, and a cold mount is just slower.
  if (settings.foreground) ::_exit(exit_done);
  if (!warm || (signals.one_waits() && !settings.exchange)) {
    undo();
    (void)::waitpid(child, nullptr, 0);
    return warm ? exit_failure : fail_with(warm.error());
  }
  return exit_done;
}

int serve_fd_program(const MountSettings& settings) {
  // It may live in a container's pid namespace, with the host's tree: a process of the same uid
  // that has all the (few) rights of ours would reach that by /proc/PID/root and /proc/PID/fd
  // (ptrace(2), "Ptrace access mode checking"). Its worker inherits this.
  (void)::prctl(PR_SET_DUMPABLE, 0);
  ServeOptions serving;
  serving.cleanup = settings.cleanup;
  serving.ready = Fd(settings.ready_fd);
  serving.report_at_end = true;
  serving.session = session_options(settings);
  const auto give_up = [&](const Error& error, const std::vector<Drift>& drifts) {
    std::string text;
    for (const auto& drift : drifts) text += describe(drift) + "\n";
    text += error.message();
    if (!error.hint().empty()) text += "\nhint: " + error.hint();
    if (serving.ready) (void)write_all(serving.ready.get(), text, "ready");
    if (!serving.cleanup.empty()) (void)remove_tree(serving.cleanup);
    return fail_with(error);
  };
  struct stat status {};
  if (::fstat(settings.fuse_fd, &status) != 0 || !S_ISCHR(status.st_mode) ||
      status.st_rdev != ::makedev(10, 229))
    return give_up(Error("--fuse-fd " + std::to_string(settings.fuse_fd), "cannot serve",
                         "it is no open /dev/fuse"),
                   {});
  Fd device(settings.fuse_fd);
  ::fcntl(device.get(), F_SETFD, FD_CLOEXEC);
  std::vector<Drift> drifts;
  auto content = load_overlay(settings.load, drifts);
  if (!content) return give_up(content.error(), drifts);
  for (const auto& drift : drifts) warn(describe(drift));
  const bool all_pinned = content->files.pinned() == content->files.size();
  Overlay overlay(std::move(*content));
  std::vector<int> keep = overlay.descriptors();
  keep.insert(keep.end(), {device.get(), serving.ready.get()});
  close_fds_but(keep);
  if (auto left = leave_terminal(settings.log_path); !left) return give_up(left.error(), {});
  // A file that is not pinned is opened by its path. What fails is a mount held for longer.
  if (settings.leave_tree && all_pinned)
    if (auto left = leave_tree(); !left) warn(left.error());
  return serve_program(overlay, std::move(device), std::move(serving));
}

}  // namespace heddle
