// SPDX-License-Identifier: MIT
#include "container-hooks/swap/swap.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/vfs.h>

#include <chrono>

#include "base/channel.hpp"
#include "base/mount_service.hpp"
#include "base/mounts.hpp"
#include "base/run_directory.hpp"
#include "base/try.hpp"
#include "container-hooks/host/mount_calls.hpp"
#include "container-hooks/host/programs.hpp"
#include "container-hooks/host/watched_work.hpp"
#include "container-hooks/swap/container_mounts.hpp"

namespace heddle::hook {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kAnswerLimit = 20U << 20;
/// The hook has the limit; its end closes the socket.
constexpr std::chrono::milliseconds kForever = 24h * 20;
/// The second may find what another hook has decided meanwhile, and the host changed again.
constexpr int kAttempts = 3;

constexpr long kFuseMagic = 0x65735546;  // <linux/magic.h>
/// A mount takes 0.1 s; the host's files may lie on a file system that is slow to answer.
constexpr std::chrono::seconds kNodePatience{5};

// fs-mount's descriptors.
constexpr int kDeviceFd = 3;
constexpr int kReadyFd = 4;

/// To the process in the container, when it has decided.
enum class Step : std::uint8_t {
  mount,  ///< a file system of the container's own, whose device comes back
  bind,   ///< over that one, or over the detached mount that comes along
};

/// What it decided, through a pipe: that may be longer than a packet.
struct Answer {
  std::string failure;  ///< empty: none
  std::string hint;
  Decision decision;
  std::string map;
  bool from_cache = false;
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Answer>
void fields(Coder& coder, R& r) { coder(r.failure, r.hint, r.decision, r.map, r.from_cache); }

Result<Fd> open_namespace(pid_t pid, const char* kind) {
  const std::string path = "/proc/" + std::to_string(pid) + "/ns/" + kind;
  auto fd = open_file(path, O_RDONLY);
  if (fd) return fd;
  return fail_errno(path, "cannot enter the container", fd.error().code(),
                    fd.error().code() == EACCES
                        ? "the runtime hides its process: use the stage createContainer"
                        : "");
}

/// Moves this process, single-threaded, into the mount namespace of process `pid`, and into its
/// user namespace when it has no rights otherwise: there is no way back from that one. As long as
/// the container's root is not changed, the host's tree is there as well.
Result<void> enter_mount_namespace(pid_t pid) {
  if (pid <= 1)
    return fail("the container's state", "cannot use",
                "its pid is " + std::to_string(pid) + ", which belongs to another PID namespace",
                "install the hook for this stage: --stage createContainer");
  const Fd mounts = TRY(open_namespace(pid, "mnt"));
  const Fd users = TRY(open_namespace(pid, "user"));
  // First as we are: root, and rootless podman's root, keep the rights of their own namespace, and
  // FUSE's passthrough is only for those of the first one.
  if (::setns(mounts.get(), CLONE_NEWNS) == 0) return {};
  const int error = errno;
  if (error != EPERM || ::setns(users.get(), CLONE_NEWUSER) != 0 ||
      ::setns(mounts.get(), CLONE_NEWNS) != 0)
    return fail_errno("", "cannot enter the container's mount namespace", error);
  return {};
}

Result<Decided> decide_inside(const SwapOrder& order, const std::string& stale_map, int asker) {
  const auto& settings = order.settings;
  if (settings.stage == Stage::create_runtime) TRY(enter_mount_namespace(order.pid));
  note_step("looking for the program of", order.config.rootfs);
  const auto program =
      order.program.empty() ? container_program(order.config) : std::optional(order.program);
  if (!program) {
    Decided none;
    none.decision.reason = "the container's program is not there";
    return none;
  }
  note_step("opening", settings.cache);
  const auto cache = TRY(DecisionCache::open(settings.cache, settings.limits));
  return cache.decide({order.config.rootfs, *program, settings.mount_point, settings.mpi,
                       variable_of(order.config, "LD_LIBRARY_PATH"), asker, stale_map});
}

/// A file system of the container's own; its device is the other end's. Closed on return: were it
/// open here, a daemon that dies could not end our requests.
Result<void> mount_own(ContainerMounts& mounts, const Decision& decision, int socket) {
  const Fd device =
      TRY(open_fuse_device("a device cgroup forbids it: use the stage createRuntime, or allow c "
                           "10:229"));
  TRY(mounts.mount(device.get(), decision.mount_point));
  auto sent = send_fd(socket, device.get());
  if (!sent) mounts.undo();
  return sent;
}

/// Each step's end is a descriptor sent through `socket`.
Result<void> mount_inside(const SwapOrder& order, const Decision& decision, int socket) {
  auto step = receive_record<Step>(socket, kForever);
  if (!step) return {};
  auto mounts = TRY(ContainerMounts::open(order.config.rootfs));
  TRY(mounts.check(decision));
  if (step->message == Step::mount) {
    TRY(mount_own(mounts, decision, socket));
    step = receive_record<Step>(socket, kForever);
    if (!step) {
      mounts.undo();
      return {};
    }
  } else {
    if (step->fds.size() != 1) return fail_errno("fs-hook", "cannot share a mount", EPROTO);
    TRY(mounts.attach(std::move(step->fds[0]), decision.mount_point));
  }
  auto bound = mounts.bind(decision);
  // Where that cannot be sent, this process leads itself no more.
  if (bound) bound = send_fd(socket, socket);
  if (!bound) mounts.undo();
  return bound;
}

/// The process in the container, from its start to its exit status.
int work_inside(const SwapOrder& order, const std::string& stale_map, int socket, Fd answer) {
  const auto decided = decide_inside(order, stale_map, answer.get());
  Encoder coder;
  coder(decided ? Answer{{}, {}, decided->decision, decided->map, decided->from_cache}
                : Answer{decided.error().message(), decided.error().hint(), {}, {}, false});
  if (!write_all(answer.get(), coder.take(), "pipe") || !decided) return 1;
  answer.reset();
  const auto mounted = mount_inside(order, decided->decision, socket);
  if (mounted) return 0;
  // With its hint, which the other end shows as part of the line.
  const Error& error = mounted.error();
  const auto hint = error.hint().empty() ? "" : " (" + error.hint() + ")";
  send_failure(socket, Error({}, error.message() + hint));
  return 1;
}

/// A process of ours in the container's mount namespace. It decides with the container's mounts in
/// place; then it mounts, in two steps, since the files that are bound come from the mount. When it
/// is killed, or nobody leads it any more, it takes away what it has mounted; destroyed, it is
/// killed.
class InsideContainer {
 public:
  static Result<InsideContainer> start(const SwapOrder& order, const std::string& stale_map) {
    SocketPair sockets = TRY(make_socket_pair());
    Pipe answer = TRY(make_pipe());
    ForkOptions options;
    options.dies_with_parent = false;  // it takes away what it has mounted
    Child child = TRY(fork_child(options, [&] {
      sockets.one.reset();
      answer.read_end.reset();
      return work_inside(order, stale_map, sockets.other.get(), std::move(answer.write_end));
    }));
    return InsideContainer(std::move(child), std::move(sockets.one), std::move(answer.read_end));
  }

  Result<Decided> decision() {
    const auto bytes = TRY(read_all(answer_.get(), "fs-hook", kAnswerLimit));
    answer_.reset();
    Answer answer;
    Decoder coder(bytes);
    coder(answer);
    if (!coder.complete())
      return fail("fs-hook", "cannot decide", "its process in the container died");
    if (!answer.failure.empty()) return fail(Error({}, answer.failure, {}, answer.hint));
    return Decided{std::move(answer.decision), std::move(answer.map), answer.from_cache, {}};
  }
  /// Makes the mount point and mounts on it. Result: the device, for the daemon. When the image has
  /// no place for the mount, or lacks a file to bind over, it fails and nothing is mounted.
  Result<Fd> mount() {
    TRY(send_record(socket_.get(), Step::mount));
    return receive_fd(socket_.get());
  }
  /// The daemon answers: binds what was decided. `tree`: in place of mount(), the node's mount. On
  /// failure all that was mounted is taken away again.
  Result<void> bind(std::span<const int> tree = {}) {
    TRY(send_record(socket_.get(), Step::bind, tree));
    const auto done = receive_fd(socket_.get());
    (void)child_.wait();
    if (!done) return fail(done.error());
    return {};
  }
  /// The daemon does not answer: takes the mount away.
  void give_up() {
    socket_.reset();
    (void)child_.wait();
  }

 private:
  InsideContainer(Child child, Fd socket, Fd answer)
      : child_(std::move(child)), socket_(std::move(socket)), answer_(std::move(answer)) {}
  Child child_;
  Fd socket_;  ///< a Step a packet to it; descriptors and failures from it
  Fd answer_;  ///< it also sees by this pipe that this process has ended
};

/// fs-mount behind one container's mount, when it answers. Cause::unfit: files of the host are not
/// as the map says.
Result<Child> serve(Fd device, const HookSettings& settings, const Decided& decided) {
  auto ready = TRY(make_socket_pair());
  const auto null = TRY(open_file("/dev/null", O_RDWR));
  HelperRequest helper;
  helper.name = "fs-mount";
  helper.arguments = {"--fuse-fd",     std::to_string(kDeviceFd),
                      "--ready-fd",    std::to_string(kReadyFd),
                      "--mount-point", decided.decision.mount_point};
  if (settings.stage == Stage::create_container) helper.arguments.emplace_back("--leave-tree");
  if (!settings.log.empty())
    helper.arguments.insert(helper.arguments.end(), {"--log", settings.log});
  helper.arguments.push_back(decided.map);
  // Its messages come through the socket; a daemon with the hook's stderr would hold the runtime
  // up.
  helper.fds = {{null.get(), STDIN_FILENO},
                {null.get(), STDOUT_FILENO},
                {null.get(), STDERR_FILENO},
                {device.get(), kDeviceFd},
                {ready.other.get(), kReadyFd}};
  Child child = TRY(start_helper(helper));
  ready.other.reset();
  note_step("waiting for fs-mount, which is to serve", decided.map);
  TRY(await_ready(ready.one.get()));
  return child;
}

/// A detached copy of the mount that this node's `fs-mount --node` in `directory` has of a map,
/// made by it if need be; as a descriptor, so that no path of this mount namespace matters. Asked
/// for at each start: the service also tells whether the host's files are still as the map says
/// (Cause::unfit). ENOENT: no service was started here. EPERM: it is another user's. A user who may
/// write to the directory could have another file mounted: it must be ours alone.
Result<Fd> node_mount(const std::string& directory, const Decided& decided) {
  // In a user namespace root's directory is nobody's, and so another user's.
  const auto run = TRY(RunDirectory::find(directory));
  note_step("waiting for fs-mount --node at", directory);
  Fd socket = TRY(run.connect_to(kNodeSocket, kNodePatience));
  const Fd file = TRY(open_file(decided.map, O_RDONLY | O_NONBLOCK | O_NOCTTY));
  auto mount =
      TRY(MountClient(std::move(socket)).want(decided.decision.map_id, file.get(), kNodePatience));
  note_step("waiting for the node's mount of", decided.map);
  struct statfs system {};
  if (::fstatfs(mount.tree.get(), &system) != 0)
    return fail_errno(directory, "its mount does not answer");
  if (system.f_type != kFuseMagic) return fail(directory, "gives no heddle mount");
  make_private(mount.tree.get());
  return std::move(mount.tree);
}

/// The hook is about to mount in this very namespace: the daemon is to keep the host's tree as it
/// is now, and must not hold the container's mounts.
Result<void> keep_host_tree() {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return fail_errno("", "cannot make a mount namespace for fs-mount");
  return {};
}

/// By the mount that the node has of this map, else by one of the container's own; where a service
/// should have made one, `warn` is told why it did not.
Result<void> place(InsideContainer& inside, const SwapOrder& order, const Decided& decided,
                   Swapped& out, const std::function<void(const std::string&)>& warn) {
  const auto& settings = order.settings;
  if (!settings.node.empty()) {
    const auto tree = node_mount(settings.node, decided);
    if (tree) {
      out.by_node = true;
      const int fds[] = {tree->get()};
      return inside.bind(fds);
    }
    const auto& error = tree.error();
    if (error.cause() == Cause::unfit) return fail(error);
    if (error.code() != ENOENT && error.code() != EPERM)
      warn("a mount of its own for this container: " + error.message());
  }
  Fd container_tree;
  if (settings.stage == Stage::create_container) {
    container_tree = TRY(open_file("/proc/self/ns/mnt", O_RDONLY));
    TRY(keep_host_tree());
  }
  Fd device = TRY(inside.mount());
  auto server = serve(std::move(device), settings, decided);
  // Another attempt is to mount for the container, and not in the daemon's tree.
  if (container_tree && ::setns(container_tree.get(), CLONE_NEWNS) != 0) {
    inside.give_up();
    return fail_errno("fs-hook", "cannot enter the container's mount namespace");
  }
  if (!server) {
    inside.give_up();
    return fail(std::move(server.error()));
  }
  out.server.emplace(std::move(*server));
  return inside.bind();
}

}  // namespace

Result<Swapped> swap_container(const SwapOrder& order,
                               const std::function<void(const std::string&)>& warn) {
  std::string stale_map;
  for (int left = kAttempts;; --left) {
    auto inside = TRY(InsideContainer::start(order, stale_map));
    const Decided decided = TRY(inside.decision());
    Swapped out{decided.decision};
    for (const auto& line : out.decision.warnings) warn(line);
    if (out.decision.outcome != Outcome::swap) return out;
    const auto placed = place(inside, order, decided, out, warn);
    if (placed) return out;
    if (!decided.from_cache || placed.error().cause() != Cause::unfit || left == 1)
      return fail(placed.error());
    // The host's files have changed since this image was decided on.
    warn(placed.error().message());
    stale_map = decided.decision.map_id;
  }
}

}  // namespace heddle::hook
