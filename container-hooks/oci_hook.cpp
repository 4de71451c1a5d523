// SPDX-License-Identifier: MIT
#include "container-hooks/oci_hook.hpp"

#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "base/child.hpp"
#include "base/exit_code.hpp"
#include "container-hooks/hook_log.hpp"
#include "container-hooks/hook_progress.hpp"
#include "container-hooks/swap_run.hpp"
#include "container-hooks/trusted_files.hpp"
#include "container-hooks/watched_work.hpp"

namespace heddle {
namespace {

/// For the line of a hook that ran out of time: the log may lie where it waited for an answer.
constexpr std::chrono::seconds kLogLimit{5};

/// crun starts hooks with nearly every signal blocked, runc with descriptors of its own open
/// (measured: crun 1.8 to 1.28, runc 1.1 and 1.3): a daemon that kept either could not be ended, or
/// would hold the runtime up.
void leave_runtimes_traces() {
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  close_fds_but({});
}

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
      unheard_ = asks_by_annotation(state_->annotations);
  }

  int run() {
    if (request_ && !request_->host_mpi && !unheard_) return exit_done;
    if (settings_.limit.count() == 0) {
      const auto progress = HookProgress::share();
      return swap();
    }
    const auto ended = run_watched(settings_.limit, [this] { return swap(); });
    if (ended && ended->done()) return *ended->status;
    const auto error = ended ? what_happened(*ended) : ended.error();
    const auto say = [&] { return end_with(error, ended && ended->placed); };
    const auto said = run_watched(kLogLimit, say);
    return said && said->done() ? *said->status : fallback(ended && ended->placed);
  }

 private:
  /// Where the bundle lies is the runtime's to say: no image chooses it.
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
    if (unheard_)
      log_.warning(
          "annotations (heddle.*) do not count here, an image can set them "
          "(podman run --device heddle/mpi=host, or fs-hook install --allow-annotations DIR)");
    if (!request_->host_mpi) return exit_done;
    const auto done = run_swap(settings_, *state_, *request_, log_);
    return done ? int{exit_done} : end_with(done.error(), placed_by() != 0);
  }

  int fallback(bool placed) const {
    const bool may_start = request_ && request_->on_failure == OnFailure::warn && !placed;
    return may_start ? exit_done : exit_failure;
  }

  /// `placed`: the container is neither as it was nor as it should be.
  int end_with(const Error& error, bool placed) const {
    const int status = fallback(placed);
    if (status == exit_done)
      log_.warning("the container runs with its own MPI: " + error.message());
    else
      log_.error(error);
    return status;
  }

  Error what_happened(const WatchedEnd& ended) const {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(settings_.limit).count();
    std::string text = ended.status
                           ? "killed by signal " + std::to_string(*ended.status - 128)
                           : "not done after " + std::to_string(seconds) + " s (--timeout)";
    text += ": " + ended.step;
    for (const auto& name : ended.unending)
      text += (&name == &ended.unending.front() ? "; not to be ended: " : ", ") + name;
    return Error("", text);
  }

  const HookSettings& settings_;
  HookLog log_;
  Result<ContainerState> state_ = ContainerState();
  Result<SwapRequest> request_ = SwapRequest();
  bool unheard_ = false;  ///< annotations ask for something, and do not count
};

}  // namespace

int oci_hook(const HookSettings& settings) {
  leave_runtimes_traces();
  // A core dump, or a look by /proc/PID, takes CAP_SYS_PTRACE now. A user could then not set what
  // is in /proc/self any more, where the kernel gives the files to root (proc(5)).
  if (is_systems_root()) (void)::prctl(PR_SET_DUMPABLE, 0);
  return HookedStart(settings).run();
}

}  // namespace heddle
