// SPDX-License-Identifier: MIT
#include "container-hooks/swap_run.hpp"

#include <sched.h>
#include <sys/mount.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "container-hooks/hook_progress.hpp"
#include "container-hooks/inside_container.hpp"
#include "container-hooks/node_mount.hpp"
#include "container-hooks/overlay_server.hpp"
#include "container-hooks/trusted_files.hpp"

namespace heddle {
namespace {

/// The second may get what another hook decides meanwhile, and the host change again.
constexpr int kAttempts = 3;

/// The hook is about to mount in this very namespace: the daemon is to keep the host's tree as it
/// is now, and must not hold the container's mounts.
Result<void> keep_host_tree() {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return fail_errno("", "cannot make a mount namespace for fs-mount");
  return {};
}

Result<std::string> resolved(const std::string& path) {
  char buffer[PATH_MAX];
  if (!::realpath(path.c_str(), buffer))
    return fail_errno(path, "cannot use as the container's root");
  return std::string(buffer);
}

class HookRun {
 public:
  HookRun(const HookSettings& settings, const ContainerState& state, HookLog& log)
      : settings_(settings), state_(state), log_(log) {}

  Result<void> run(const SwapRequest& request) {
    note_step("looking at", "the installed programs");
    if (auto good = check_trusted_programs(); !good) return good;
    if (auto good = check_trusted_directory(settings_.cache); !good) return good;
    note_step("reading", state_.bundle + "/config.json");
    auto config = read_config(state_.bundle);
    if (!config) return fail(std::move(config.error()));
    note_step("looking for", config->rootfs);
    auto rootfs = resolved(config->rootfs);
    if (!rootfs) return fail(std::move(rootfs.error()));
    config->rootfs = *rootfs;
    InsideOrder order{settings_.stage,       state_.pid,      *config,
                      request.program,       settings_.cache, settings_.limits,
                      settings_.mount_point, settings_.mpi};
    for (int left = kAttempts;; --left) {
      auto done = attempt(order);
      if (done || !from_cache_ || done.error().code() != ESTALE || left == 1) return done;
      // The host's files are others than when this image was decided on: said, and decided anew.
      log_.warning(done.error().message());
      order.stale_map = map_id_;
    }
  }

 private:
  Result<void> attempt(const InsideOrder& order) {
    auto inside = InsideContainer::start(order);
    if (!inside) return fail(std::move(inside.error()));
    const auto decided = inside->decide();
    if (!decided) return fail(decided.error());
    from_cache_ = decided->from_cache;
    map_id_ = decided->map_id;
    const Decision& decision = decided->decision;
    for (const auto& line : decision.warnings) log_.warning(line);
    if (decision.outcome == Outcome::incompatible)
      return fail(Error({}, decision.reason, {}, decision.hint));
    if (decision.outcome == Outcome::nothing) {
      log_.warning("nothing to swap: " + decision.reason);
      return {};
    }
    tell_unreachable(decision, order.config);
    return swap(*inside, *decided);
  }

  /// Plugins that the image has no folder for are found by environment alone, which is not a
  /// hook's to set.
  void tell_unreachable(const Decision& decision, const ContainerConfig& config) const {
    const auto is_set = [&](const auto& variable) {
      const auto& given = config.environment;
      return std::find(given.begin(), given.end(), variable.first + "=" + variable.second) !=
             given.end();
    };
    const auto& wanted = decision.environment;
    if (decision.unreachable.empty()) return;
    if (!wanted.empty() && std::all_of(wanted.begin(), wanted.end(), is_set)) return;
    std::string line = "the image lacks the folder ";
    for (const auto& folder : decision.unreachable)
      line += (&folder == &decision.unreachable.front() ? "" : ", ") + folder;
    line += ": what the host's MPI has there is not found";
    std::string remedy;
    for (const auto& [name, value] : wanted) remedy += " " + name + "=" + value;
    if (!remedy.empty()) line += " (start the container with" + remedy + ")";
    log_.warning(line);
  }

  Result<void> swap(InsideContainer& inside, const Decided& decided) {
    auto shared = share(inside, decided);
    if (!shared) return fail(std::move(shared.error()));
    if (*shared) return {};
    if (settings_.stage == Stage::create_container) {
      log_.keep_open();  // fs-mount will leave this tree (--leave-tree), and take it from us
      if (auto kept = keep_host_tree(); !kept) return kept;
    }
    auto device = inside.mount();
    if (!device) return fail(std::move(device.error()));
    auto server =
        OverlayServer::start(*device, {decided.map, decided.decision.mount_point,
                                       settings_.stage == Stage::create_container, settings_.log});
    device->reset();
    if (!server) {
      inside.give_up();
      return fail(std::move(server.error()));
    }
    if (auto bound = inside.bind(); !bound) return bound;
    server->leave_running();
    log_.note("swapped: " + decided.decision.host_mpi);
    return {};
  }

  /// By the mount that the node has of this map. False: there is none, and the container gets one
  /// of its own; where a service should have made it, the log says why it did not.
  Result<bool> share(InsideContainer& inside, const Decided& decided) const {
    if (settings_.node.empty()) return false;
    auto tree = node_mount(settings_.node, decided.map_id, decided.map);
    if (!tree) {
      const auto& error = tree.error();
      if (error.code() == ESTALE) return fail(error);
      if (error.code() != ENOENT && error.code() != EPERM)
        log_.warning("a mount of its own for this container: " + error.message());
      return false;
    }
    if (auto done = inside.share(*tree); !done) return fail(std::move(done.error()));
    log_.note("swapped: " + decided.decision.host_mpi + ", by the node's mount");
    return true;
  }

  const HookSettings& settings_;
  const ContainerState& state_;
  HookLog& log_;
  bool from_cache_ = false;
  std::string map_id_;
};

}  // namespace

Result<void> run_swap(const HookSettings& settings, const ContainerState& state,
                      const SwapRequest& request, HookLog& log) {
  return HookRun(settings, state, log).run(request);
}

}  // namespace heddle
