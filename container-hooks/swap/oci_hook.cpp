// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <ctime>

#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "container-hooks/host/programs.hpp"
#include "container-hooks/host/watched_work.hpp"
#include "container-hooks/oci/hook_settings.hpp"
#include "container-hooks/swap/inside_container.hpp"
#include "container-hooks/swap/node_mount.hpp"
#include "container-hooks/swap/overlay_server.hpp"

namespace heddle::hook {
namespace {

/// For the line of a hook that ran out of time: the log may lie on the server that it waited for.
constexpr std::chrono::seconds kLogLimit{5};

/// The second may find what another hook has decided meanwhile, and the host changed again.
constexpr int kAttempts = 3;

/// The lines of a hook, on stderr, which runc shows and crun throws away, and in a file.
class HookLog {
 public:
  HookLog(std::string file, std::string container)
      : file_(std::move(file)), container_(std::move(container)) {}
  /// On one line, the hint in parentheses.
  void error(const Error& error) const {
    const auto hint = error.hint().empty() ? "" : " (" + error.hint() + ")";
    const auto line = escape_for_terminal(error.message() + hint);
    say(line);
    append("error: " + line);
  }
  void warning(const std::string& text) const {
    const auto line = escape_for_terminal(text);
    warn(line);
    append("warning: " + line);
  }
  /// In the file alone.
  void note(const std::string& text) const { append(escape_for_terminal(text)); }
  /// The file stays open from here on: its name will lead elsewhere.
  void keep_open() {
    if (auto file = open()) kept_ = std::move(*file);
  }

 private:
  Result<Fd> open() const {
    if (file_.empty()) return Fd();
    note_step("opening", file_);
    return open_log(file_);
  }
  void append(const std::string& text) const {
    const auto file = kept_ ? Result<Fd>(Fd()) : open();
    const int fd = kept_ ? kept_.get() : file ? file->get() : -1;
    if (fd < 0) return;
    note_step("writing to", file_);
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    char stamp[32] = "";
    if (::gmtime_r(&now, &parts))
      (void)std::strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", &parts);
    const auto line = std::string(stamp) + " " + escape_for_terminal(container_) + " " + text;
    (void)write_all(fd, line + "\n", file_);
  }
  std::string file_;
  std::string container_;
  Fd kept_;
};

/// The hook is about to mount in this very namespace: the daemon is to keep the host's tree as it
/// is now, and must not hold the container's mounts.
Result<void> keep_host_tree() {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return fail_errno("", "cannot make a mount namespace for fs-mount");
  return {};
}

/// Puts the host's MPI into one container, or says in the log that there is nothing to swap. On
/// failure the container is as it was.
class Swap {
 public:
  Swap(const HookSettings& settings, const ContainerState& state, HookLog& log)
      : settings_(settings), state_(state), log_(log) {}

  Result<void> run(const SwapRequest& request) {
    note_step("looking at", "the installed programs");
    TRY(trusted_hook());
    if (!settings_.hook_file.empty()) TRY(check_trusted_file(settings_.hook_file));
    TRY(check_trusted_directory(settings_.cache));
    note_step("reading", state_.bundle + "/config.json");
    auto config = TRY(read_config(state_.bundle));
    note_step("looking for", config.rootfs);
    char real[PATH_MAX];
    if (!::realpath(config.rootfs.c_str(), real))
      return fail_errno(config.rootfs, "cannot use as the container's root");
    config.rootfs = real;
    InsideOrder order{settings_.stage, state_.pid,       std::move(config),     request.program,
                      settings_.cache, settings_.limits, settings_.mount_point, settings_.mpi};
    for (int left = kAttempts;; --left) {
      auto done = attempt(order);
      if (done || !from_cache_ || done.error().cause() != Cause::unfit || left == 1) return done;
      // The host's files have changed since this image was decided on.
      log_.warning(done.error().message());
      order.stale_map = map_id_;
    }
  }

 private:
  Result<void> attempt(const InsideOrder& order) {
    auto inside = TRY(InsideContainer::start(order));
    const auto decided = TRY(inside.decide());
    const Decision& decision = decided.decision;
    from_cache_ = decided.from_cache;
    map_id_ = decision.map_id;
    for (const auto& line : decision.warnings) log_.warning(line);
    if (decision.outcome == Outcome::incompatible)
      return fail(Error({}, decision.reason, {}, decision.hint));
    if (decision.outcome == Outcome::nothing) {
      log_.warning("nothing to swap: " + decision.reason);
      return {};
    }
    report_unreachable(decision, order.config);
    return swap(inside, decided);
  }

  /// Plugins that the image has no directory for are found by environment alone, which a hook
  /// cannot set.
  void report_unreachable(const Decision& decision, const ContainerConfig& config) const {
    const auto is_set = [&](const auto& variable) {
      const auto& given = config.environment;
      return std::find(given.begin(), given.end(), variable.first + "=" + variable.second) !=
             given.end();
    };
    const auto& wanted = decision.environment;
    if (decision.unreachable.empty()) return;
    if (!wanted.empty() && std::all_of(wanted.begin(), wanted.end(), is_set)) return;
    std::string line = "the image lacks the directory ";
    for (const auto& directory : decision.unreachable)
      line += (&directory == &decision.unreachable.front() ? "" : ", ") + directory;
    line += ": what the host's MPI has there is not found";
    std::string remedy;
    for (const auto& [name, value] : wanted) remedy += " " + name + "=" + value;
    if (!remedy.empty()) line += " (start the container with" + remedy + ")";
    log_.warning(line);
  }

  Result<void> swap(InsideContainer& inside, const Decided& decided) {
    const Decision& decision = decided.decision;
    const bool shared = TRY(share(inside, decided));
    if (shared) return {};
    const bool is_inside = settings_.stage == Stage::create_container;
    if (is_inside) {
      log_.keep_open();  // fs-mount will leave this tree (--leave-tree), and take it from us
      TRY(keep_host_tree());
    }
    Fd device = TRY(inside.mount());
    auto server =
        OverlayServer::start(device, {decided.map, decision.mount_point, is_inside, settings_.log});
    device.reset();
    if (!server) {
      inside.give_up();
      return fail(std::move(server.error()));
    }
    TRY(inside.bind());
    server->leave_running();
    log_.note("swapped: " + decision.host_mpi);
    return {};
  }

  /// By the mount that the node has of this map. False: there is none, and the container gets one
  /// of its own; where a service should have made it, the log says why it did not.
  Result<bool> share(InsideContainer& inside, const Decided& decided) const {
    if (settings_.node.empty()) return false;
    const auto tree = node_mount(settings_.node, decided.decision.map_id, decided.map);
    if (!tree) {
      const auto& error = tree.error();
      if (error.cause() == Cause::unfit) return fail(error);
      if (error.code() != ENOENT && error.code() != EPERM)
        log_.warning("a mount of its own for this container: " + error.message());
      return false;
    }
    TRY(inside.share(*tree));
    log_.note("swapped: " + decided.decision.host_mpi + ", by the node's mount");
    return true;
  }

  const HookSettings& settings_;
  const ContainerState& state_;
  HookLog& log_;
  bool from_cache_ = false;
  std::string map_id_;
};

/// One container's start, as its state asks for it.
class HookedStart {
 public:
  explicit HookedStart(const HookSettings& settings)
      : settings_(settings), log_(settings.log, "?") {
    const auto text = read_all(STDIN_FILENO, "the container's state", kStateLimit);
    state_ = text ? parse_state(*text) : Result<ContainerState>(fail(text.error()));
    if (!state_) {
      request_ = fail(state_.error());
      return;
    }
    log_ = HookLog(settings.log, state_->id);
    request_ = settings.request;
    if (annotations_count())
      request_ = annotated(settings.request, state_->annotations);
    else
      ignored_ = asks_by_annotation(state_->annotations);
  }

  int run() {
    if (request_ && !request_->host_mpi && !ignored_) return exit_done;
    const auto ended = run_watched(settings_.limit, [this] { return swap(); });
    if (ended && ended->done()) return *ended->status;
    const auto error = ended ? error_of(*ended) : ended.error();
    const bool placed = ended && ended->placed;
    const auto said = run_watched(kLogLimit, [&] { return end_with(error, placed); });
    return said && said->done() ? *said->status : status_of_failure(placed);
  }

 private:
  /// The runtime chooses where the bundle lies: no image does.
  bool annotations_count() const {
    char bundle[PATH_MAX];
    const auto& allowed = settings_.allow_annotations;
    return std::any_of(allowed.begin(), allowed.end(), [&](const std::string& directory) {
      if (directory == "/") return true;
      return ::realpath(state_->bundle.c_str(), bundle) != nullptr &&
             std::string(bundle).starts_with(directory + "/");
    });
  }

  int swap() {
    if (!request_) return end_with(request_.error(), false);
    if (ignored_)
      log_.warning(
          "annotations (heddle.*) do not count here, an image can set them "
          "(podman run --device heddle/mpi=host, or fs-hook install --allow-annotations DIR)");
    if (!request_->host_mpi) return exit_done;
    const auto done = Swap(settings_, *state_, log_).run(*request_);
    return done ? int{exit_done} : end_with(done.error(), is_placed());
  }

  /// `placed`: the container is neither as it was nor as it should be.
  int status_of_failure(bool placed) const {
    const bool may_start = request_ && request_->on_failure == OnFailure::warn && !placed;
    return may_start ? exit_done : exit_failure;
  }

  int end_with(const Error& error, bool placed) const {
    const int status = status_of_failure(placed);
    if (status == exit_done)
      log_.warning("the container runs with its own MPI: " + error.message());
    else
      log_.error(error);
    return status;
  }

  Error error_of(const WatchedEnd& ended) const {
    const auto seconds = std::to_string(settings_.limit.count());
    std::string text = ended.status ? "killed by signal " + std::to_string(*ended.status - 128)
                                    : "not done after " + seconds + " s (--timeout)";
    text += ": " + ended.step;
    for (const auto& name : ended.unending)
      text += (&name == &ended.unending.front() ? "; not to be ended: " : ", ") + name;
    return Error("", text);
  }

  const HookSettings& settings_;
  HookLog log_;
  Result<ContainerState> state_ = ContainerState();
  Result<SwapRequest> request_ = SwapRequest();
  bool ignored_ = false;  ///< annotations ask for something, and do not count
};

}  // namespace

int oci_hook(const HookSettings& settings) {
  // crun starts hooks with nearly every signal blocked, runc with descriptors of its own open
  // (measured: crun 1.8 to 1.28, runc 1.1 and 1.3): a daemon that kept the mask could not be
  // ended, one that kept the descriptors would hold the runtime up.
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  close_fds_but({});
  // A core dump, or a look by /proc/PID, takes CAP_SYS_PTRACE now. A user could then not set what
  // is in /proc/self any more, where the kernel gives the files to root (proc(5)).
  if (is_systems_root()) (void)::prctl(PR_SET_DUMPABLE, 0);
  return HookedStart(settings).run();
}

}  // namespace heddle::hook
