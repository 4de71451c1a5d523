// SPDX-License-Identifier: MIT
#include "container-hooks/swap/swap.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/vfs.h>

#include <chrono>

#include "base/channel.hpp"
#include "base/mount_calls.hpp"
#include "base/mount_service.hpp"
#include "base/mounts.hpp"
#include "base/open_regular.hpp"
#include "base/run_directory.hpp"
#include "base/temp_dir.hpp"
#include "base/try.hpp"
#include "container-hooks/host/programs.hpp"
#include "container-hooks/host/watched_work.hpp"
#include "container-hooks/oci/container_program.hpp"
#include "container-hooks/swap/container_mounts.hpp"

namespace heddle::hook {
namespace {

constexpr std::size_t kAnswerLimit = 20U << 20;
/// The host may change again after the decision of another hook.
constexpr int kAttempts = 3;

constexpr long kFuseMagic = 0x65735546;  // <linux/magic.h>
/// A mount takes 0.1 s; the host's files may lie on a file system that is slow to answer.
constexpr std::chrono::seconds kNodePatience{5};

// fs-mount's descriptors.
constexpr int kDeviceFd = 3;
constexpr int kReadyFd = 4;

/// To the process in the container, after its decision.
enum class Step : std::uint8_t {
  mount,  ///< a FUSE file system; the device is sent back
  bind,   ///< from that one, or from the detached mount that is sent along
};

/// The decision, through a pipe: it may be longer than a packet.
struct Answer {
  std::string failure;  ///< empty: none
  std::string hint;
  Decision decision;
  std::string map;
  bool from_cache = false;
  std::string scratch;
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Answer>
void fields(Coder& coder, R& r) {
  coder(r.failure, r.hint, r.decision, r.map, r.from_cache, r.scratch);
}

Result<Fd> open_namespace(pid_t pid, const char* kind) {
  const std::string path = "/proc/" + std::to_string(pid) + "/ns/" + kind;
  auto fd = open_file(path, O_RDONLY);
  if (fd) return fd;
  return fail_errno(path, "cannot enter the container", fd.error().code(),
                    fd.error().code() == EACCES
                        ? "the runtime hides its process: use the stage createContainer"
                        : "");
}

/// Moves this process, single-threaded, into the mount namespace of process `pid`, and without
/// rights into its user namespace first, from which it cannot return. Until the container's root is
/// changed, the host's file tree is visible too.
Result<void> enter_mount_namespace(pid_t pid) {
  if (pid <= 1)
    return fail("the container's state", "cannot use",
                "its pid is " + std::to_string(pid) + ", which belongs to another PID namespace",
                "install the hook for this stage: --stage createContainer");
  const Fd mounts = TRY(open_namespace(pid, "mnt"));
  const Fd users = TRY(open_namespace(pid, "user"));
  // First without its user namespace: root and rootless podman's root keep their rights, and FUSE
  // passthrough needs those of the initial one.
  if (::setns(mounts.get(), CLONE_NEWNS) == 0) return {};
  const int error = errno;
  if (error != EPERM || ::setns(users.get(), CLONE_NEWUSER) != 0 ||
      ::setns(mounts.get(), CLONE_NEWNS) != 0)
    return fail_errno("", "cannot enter the container's mount namespace", error);
  return {};
}

Result<Decided> decide_inside(const SwapOrder& order, const std::string& stale_map, int reader) {
  const auto& settings = order.settings;
  if (settings.stage == Stage::create_runtime) TRY(enter_mount_namespace(order.pid));
  note_step("looking for the program of", order.config.rootfs);
  const auto program = order.program.empty() ? container_program(order.config) : order.program;
  if (program.empty()) {
    Decided none;
    none.decision.reason = "the container has no program that can be executed";
    if (!order.config.args.empty()) none.decision.reason += ": " + order.config.args[0];
    return none;
  }
  note_step("opening", settings.cache);
  return decide_image(
      settings.cache, settings.limits,
      {order.config.rootfs, program, settings.mount_point, settings.mpi,
       variable_of(order.config, "PATH"), variable_of(order.config, "LD_LIBRARY_PATH"),
       variable_of(order.config, "LD_PRELOAD"), reader, stale_map});
}

/// Mounts a FUSE file system and sends its device. Here the device is closed on return: open, it
/// would keep requests waiting after the daemon's death.
Result<void> mount_own(ContainerMounts& mounts, const Decision& decision, int socket) {
  const Fd device =
      TRY(open_fuse_device("a device cgroup forbids it: use the stage createRuntime, or allow c "
                           "10:229"));
  Fd tree = TRY(new_fuse_mount(device.get(), true, true));
  TRY(mounts.attach(std::move(tree), decision.mount_point));
  auto sent = send_fd(socket, device.get());
  if (!sent) mounts.undo();
  return sent;
}

/// The answer to each step is a descriptor.
Result<void> mount_inside(const SwapOrder& order, const Decision& decision, int socket) {
  auto step = receive_record<Step>(socket, kNoLimit);
  if (!step) return {};
  auto mounts = TRY(ContainerMounts::open(order.config.rootfs));
  TRY(mounts.check(decision));
  if (step->message == Step::mount) {
    TRY(mount_own(mounts, decision, socket));
    step = receive_record<Step>(socket, kNoLimit);
    if (!step) {
      mounts.undo();
      return {};
    }
  } else {
    if (step->fds.size() != 1) return fail_errno("fs-hook", "cannot share a mount", EPROTO);
    TRY(mounts.attach(std::move(step->fds[0]), decision.mount_point));
  }
  auto bound = mounts.bind(decision);
  if (bound) bound = send_fd(socket, socket);  // fails when the hook has ended
  if (!bound) mounts.undo();
  return bound;
}

/// The process in the container, from its start to its exit status.
int work_inside(const SwapOrder& order, const std::string& stale_map, int socket, Fd answer) {
  const auto decided = decide_inside(order, stale_map, answer.get());
  Encoder coder;
  coder(decided
            ? Answer{{}, {}, decided->decision, decided->map, decided->from_cache, decided->scratch}
            : Answer{decided.error().message(), decided.error().hint(), {}, {}, false, {}});
  if (!write_all(answer.get(), coder.take(), "pipe") || !decided) return 1;
  answer.reset();
  const auto mounted = mount_inside(order, decided->decision, socket);
  if (mounted) return 0;
  const Error& error = mounted.error();
  const auto hint = error.hint().empty() ? "" : " (" + error.hint() + ")";
  send_failure(socket, Error({}, error.message() + hint));
  return 1;
}

/// The process in the container's mount namespace. It decides with the container's mounts in place,
/// then mounts in two steps, since the bind mounts' files come from the FUSE mount. It undoes its
/// mounts when its socket is closed; the destructor kills it.
class InsideContainer {
 public:
  static Result<InsideContainer> start(const SwapOrder& order, const std::string& stale_map) {
    SocketPair sockets = TRY(make_socket_pair());
    Pipe answer = TRY(make_pipe());
    ForkOptions options;
    options.dies_with_parent = false;  // it undoes its mounts
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
    return Decided{std::move(answer.decision),
                   std::move(answer.map),
                   answer.from_cache,
                   {},
                   std::move(answer.scratch)};
  }
  /// Mounts at the mount point. Result: the device, for the daemon. Fails, and nothing is mounted,
  /// when the image lacks a place for the mount or a target.
  Result<Fd> mount() {
    TRY(send_record(socket_.get(), Step::mount));
    return receive_fd(socket_.get());
  }
  /// Makes the bind mounts, once the daemon answers. `tree`: the node's mount, instead of mount().
  /// On failure all mounts are undone.
  Result<void> bind(std::span<const int> tree = {}) {
    TRY(send_record(socket_.get(), Step::bind, tree));
    const auto done = receive_fd(socket_.get());
    (void)child_.wait();
    if (!done) return fail(done.error());
    return {};
  }
  /// Undoes the mount, when the daemon does not answer.
  void give_up() {
    socket_.reset();
    (void)child_.wait();
  }

 private:
  InsideContainer(Child child, Fd socket, Fd answer)
      : child_(std::move(child)), socket_(std::move(socket)), answer_(std::move(answer)) {}
  Child child_;
  Fd socket_;  ///< a Step a packet to it; descriptors and failures from it
  Fd answer_;  ///< this end of the Answer's pipe, closed when this process ends
};

/// Starts fs-mount for one container's mount and waits until it answers. Cause::unfit: the host's
/// files differ from the map.
Result<Child> serve(Fd device, const HookSettings& settings, const Decided& decided) {
  auto ready = TRY(make_socket_pair());
  const auto null = TRY(open_file("/dev/null", O_RDWR));
  HelperRequest helper;
  helper.name = "fs-mount";
  helper.arguments = {"--fuse-fd",     std::to_string(kDeviceFd),
                      "--ready-fd",    std::to_string(kReadyFd),
                      "--mount-point", decided.decision.mount_point};
  if (settings.stage == Stage::create_container) helper.arguments.emplace_back("--leave-tree");
  if (!settings.log.empty() && open_log(settings.log))
    helper.arguments.insert(helper.arguments.end(), {"--log", settings.log});
  helper.arguments.push_back(decided.map);
  // Messages come through the socket: runc waits until the hook's stderr is closed.
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

/// A detached copy of the mount that `fs-mount --node` in `directory` has, or makes, of a map; as a
/// descriptor, so that no path of this mount namespace matters. The service also compares the
/// host's files with the map at each start (Cause::unfit). ENOENT: no service was started here.
/// EPERM: it is another user's. Others must not be able to write to the directory: they could have
/// another file mounted.
Result<Fd> node_mount(const std::string& directory, const Decided& decided) {
  // In a user namespace root's directory belongs to nobody: EPERM.
  const auto run = TRY(RunDirectory::find(directory));
  note_step("waiting for fs-mount --node at", directory);
  Fd socket = TRY(run.connect_to(kNodeSocket, kNodePatience));
  if (!is_own_server(socket.get()))
    return fail(directory, "no service of the host's root listens there", "",
                "does a container have this directory?");
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

/// A mount namespace for the daemon with the host's file tree and, since the hook mounts in this
/// one, without the container's mounts.
Result<void> copy_host_tree() {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return fail_errno("", "cannot make a mount namespace for fs-mount");
  return {};
}

/// By the node's mount of this map, else by a mount for this container; `warn` gets the reason when
/// a node's service fails.
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
    if (error.code() != ENOENT && error.code() != EPERM && error.code() != EACCES)
      warn("a mount of its own for this container: " + error.message());
  }
  Fd container_tree;
  if (settings.stage == Stage::create_container) {
    container_tree = TRY(open_file("/proc/self/ns/mnt", O_RDONLY));
    TRY(copy_host_tree());
  }
  Fd device = TRY(inside.mount());
  auto server = serve(std::move(device), settings, decided);
  // A second attempt must mount in the container's namespace.
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
    const auto placed = out.decision.outcome == Outcome::swap
                            ? place(inside, order, decided, out, warn)
                            : Result<void>();
    if (!decided.scratch.empty()) (void)remove_tree(decided.scratch);
    if (placed) return out;
    if (!decided.from_cache || placed.error().cause() != Cause::unfit || left == 1)
      return fail(placed.error());
    // The host's files have changed since the cached decision.
    warn(placed.error().message());
    stale_map = decided.decision.map_id;
  }
}

}  // namespace heddle::hook
