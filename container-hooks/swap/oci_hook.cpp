// SPDX-License-Identifier: MIT
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
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
#include "container-hooks/swap/swap.hpp"

namespace heddle::hook {
namespace {

/// For the log line after a timeout: the log may lie on the server that did not answer.
constexpr std::chrono::seconds kLogLimit{5};

/// Printable and not long: an image's annotation may have a megabyte.
std::string short_line(const std::string& text) {
  constexpr std::size_t kLongest = 4096;
  return escape_for_terminal(text.substr(0, kLongest)) + (text.size() > kLongest ? "..." : "");
}

/// The hook's messages, on stderr (shown by runc, discarded by crun) and in a file.
class HookLog {
 public:
  HookLog(std::string file, std::string container)
      : file_(std::move(file)), container_(std::move(container)) {}
  /// On one line, the hint in parentheses.
  void error(const Error& error) {
    const auto hint = error.hint().empty() ? "" : " (" + error.hint() + ")";
    const auto line = short_line(error.message()) + escape_for_terminal(hint);
    say(line);
    append("error: " + line);
  }
  void warning(const std::string& text) {
    const auto line = short_line(text);
    warn(line);
    append("warning: " + line);
  }
  /// Only in the file.
  void note(const std::string& text) { append(short_line(text)); }
  /// Opens the file early, before its name may lead elsewhere.
  void open() {
    if (fd_ || file_.empty()) return;
    note_step("opening", file_);
    auto file = open_log(file_);
    if (file) {
      fd_ = std::move(*file);
      return;
    }
    // At createContainer root of a user namespace has no right to root's log.
    if (file.error().code() != EACCES)
      warn(file_ + ": the log cannot be written: " + std::strerror(file.error().code()));
    file_.clear();
  }

 private:
  void append(const std::string& text) {
    open();
    if (!fd_) return;
    note_step("writing to", file_);
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    char stamp[32] = "";
    if (::gmtime_r(&now, &parts))
      (void)std::strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", &parts);
    const auto line = std::string(stamp) + " " + short_line(container_) + " " + text;
    (void)write_all(fd_.get(), line + "\n", file_);
  }
  std::string file_;
  std::string container_;
  Fd fd_;
};

/// One container's start.
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
      ignored_ = asks_by_annotation(state_->annotations, settings.request.host_mpi);
  }

  int run() {
    if (request_ && !request_->host_mpi && !ignored_) return exit_done;
    const auto ended = run_watched(settings_.limit, [this] { return work(); });
    if (ended && ended->done()) return *ended->status;
    const auto error = ended ? error_of(*ended) : ended.error();
    const bool placed = ended && ended->placed;
    const auto said = run_watched(kLogLimit, [&] { return end_with(error, placed); });
    return said && said->done() ? *said->status : status_of_failure(placed);
  }

 private:
  /// The path of the bundle is the runtime's choice, never the image's.
  bool annotations_count() const {
    char bundle[PATH_MAX];
    const auto& allowed = settings_.allow_annotations;
    return std::any_of(allowed.begin(), allowed.end(), [&](const std::string& directory) {
      if (directory == "/") return true;
      return ::realpath(state_->bundle.c_str(), bundle) != nullptr &&
             std::string(bundle).starts_with(directory + "/");
    });
  }

  int work() {
    if (!request_) return end_with(request_.error(), false);
    if (ignored_)
      log_.warning(
          "annotations (heddle.*) are ignored: an image can set them "
          "(podman run --device heddle/mpi=host, or fs-hook install --allow-annotations DIR)");
    if (!request_->host_mpi) return exit_done;
    const auto done = swap();
    return done ? int{exit_done} : end_with(done.error(), is_placed());
  }

  /// On failure the container is unchanged.
  Result<void> swap() {
    note_step("looking at", "the installed programs");
    TRY(trusted_hook());
    if (!settings_.hook_file.empty()) TRY(check_trusted_file(settings_.hook_file));
    TRY(check_trusted_directory(settings_.cache));
    auto config = TRY(read_config(state_->bundle));
    // fs-mount inherits the log: it leaves this file tree (--leave-tree).
    if (settings_.stage == Stage::create_container) log_.open();
    const SwapOrder order{settings_, state_->pid, std::move(config), request_->program};
    auto swapped =
        TRY(swap_container(order, [this](const std::string& line) { log_.warning(line); }));
    const Decision& decision = swapped.decision;
    if (decision.outcome == Outcome::incompatible)
      return fail(Error({}, decision.reason, {}, decision.hint));
    if (decision.outcome == Outcome::nothing) {
      log_.warning("nothing to swap: " + decision.reason);
      return {};
    }
    if (swapped.server) (void)swapped.server->release();
    report_unreachable(decision, order.config);
    const auto users = decision.loads_mpi || decision.programs.empty()
                           ? ""
                           : ", for the programs that " + decision.programs[0] + " starts";
    log_.note("swapped: " + host_mpi(decision) + users +
              (swapped.by_node ? ", by the node's mount" : ""));
    return {};
  }

  /// Without their directory in the image, plugins are found only by environment variables, which a
  /// hook cannot set.
  void report_unreachable(const Decision& decision, const ContainerConfig& config) {
    const auto is_set = [&](const auto& variable) {
      return variable_of(config, variable.first) == variable.second;
    };
    const auto& wanted = decision.environment;
    if (!wanted.empty() && std::all_of(wanted.begin(), wanted.end(), is_set)) return;
    std::string line;
    for (const auto& directory : decision.directories)
      if (!directory.exists)
        line += (line.empty() ? "the image lacks the directory " : ", ") + directory.target;
    if (line.empty()) return;
    line += ": the host's MPI does not find its files there";
    std::string remedy;
    for (const auto& [name, value] : wanted) remedy += " " + name + "=" + value;
    if (!remedy.empty()) line += " (start the container with" + remedy + ")";
    log_.warning(line);
  }

  /// `placed`: mounts are left in the container, which must not start then.
  int status_of_failure(bool placed) const {
    const bool may_start = request_ && request_->on_failure == OnFailure::warn && !placed;
    return may_start ? exit_done : exit_failure;
  }

  int end_with(const Error& error, bool placed) {
    const int status = status_of_failure(placed);
    if (status == exit_done)
      log_.warning("the container runs with its own MPI: " + error.message());
    else
      log_.error(error);
    return status;
  }

  Error error_of(const WatchedEnd& ended) const {
    const auto seconds = std::to_string(settings_.limit.count());
    const auto text = ended.status ? "killed by signal " + std::to_string(*ended.status - 128)
                                   : "not done after " + seconds + " s (--timeout)";
    return Error("", text + ": " + ended.step);
  }

  const HookSettings& settings_;
  HookLog log_;
  Result<ContainerState> state_ = ContainerState();
  Result<SwapRequest> request_ = SwapRequest();
  bool ignored_ = false;  ///< annotations ask for something else and do not count
};

}  // namespace

int oci_hook(const HookSettings& settings) {
  // crun starts hooks with nearly all signals blocked, runc with its own descriptors open (crun 1.8
  // to 1.28, runc 1.1 and 1.3): a daemon with that mask cannot be ended, one with these descriptors
  // makes the runtime wait.
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  close_fds_but({});
  // Core dumps and /proc/PID now take CAP_SYS_PTRACE. Only for root: /proc/self's files become
  // root's, and a user could no longer write to them (proc(5)).
  if (is_systems_root()) (void)::prctl(PR_SET_DUMPABLE, 0);
  return HookedStart(settings).run();
}

}  // namespace heddle::hook
