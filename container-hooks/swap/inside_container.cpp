// SPDX-License-Identifier: MIT
#include "container-hooks/swap/inside_container.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <chrono>
#include <optional>

#include "base/backoff.hpp"
#include "base/channel.hpp"
#include "base/mounts.hpp"
#include "base/try.hpp"
#include "container-hooks/host/watched_work.hpp"
#include "container-hooks/swap/container_mounts.hpp"

namespace heddle::hook {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kAnswerLimit = 20U << 20;
/// The hook has the limit; its end closes the socket.
constexpr std::chrono::milliseconds kForever = 24h * 20;

enum class Step : std::uint8_t {
  decide,
  mount,
  bind,
  share,  ///< with a detached mount: mounts that, and binds
};

/// The answer to `decide`, through a pipe: a decision may be longer than a packet.
struct Answer {
  std::string failure;  ///< empty: none
  std::string hint;
  std::string document;  ///< Decided::text
  std::string map;
  bool from_cache = false;
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Answer>
void fields(Coder& coder, R& answer) {
  coder(answer.failure, answer.hint, answer.document, answer.map, answer.from_cache);
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

/// Moves this process, single-threaded, into the mount namespace of process `pid`, and into its
/// user namespace when it has no rights otherwise: there is no way back from that one. As long as
/// the container's root is not changed, the host's tree is there as well.
Result<void> enter_mount_namespace(pid_t pid) {
  if (pid <= 1)
    return fail("the container's state", "cannot use",
                "its pid is " + std::to_string(pid) + ", which is of another namespace",
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

/// An fs-resolve that was killed may leave workers, which must not outlive a hook: crun 1.8 takes
/// their ends for the hook's, and then waits for it until its time is over (measured).
class Descendants {
 public:
  Descendants() { (void)::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  Descendants(const Descendants&) = delete;
  Descendants& operator=(const Descendants&) = delete;
  ~Descendants() {
    const auto end = std::chrono::steady_clock::now() + 1s;
    Backoff pauses(1ms, 16ms);
    pid_t gone;
    do {
      gone = ::waitpid(-1, nullptr, WNOHANG);
    } while (gone > 0 || (gone < 0 && errno == EINTR) || (gone == 0 && pauses.sleep_before(end)));
  }
};

Result<Decided> decide_inside(const InsideOrder& order, int asker) {
  if (order.stage == Stage::create_runtime) TRY(enter_mount_namespace(order.pid));
  note_step("looking for the program of", order.config.rootfs);
  const auto program =
      order.program.empty() ? container_program(order.config) : std::optional(order.program);
  if (!program) {
    Decided none;
    none.text = R"({"format":"heddle-container","version":1,"outcome":"nothing",)"
                R"("reason":"the container's program is not there"})";
    return none;
  }
  const Descendants reaped;
  note_step("opening", order.cache);
  const auto cache = TRY(DecisionCache::open(order.cache, order.limits));
  ImageQuestion question{order.config.rootfs, *program, order.mount_point, order.mpi, {}, asker,
                         order.stale_map};
  for (const auto& entry : order.config.environment)
    if (entry.starts_with("LD_LIBRARY_PATH=")) question.library_path = entry.substr(16);
  return cache.decide(question);
}

Answer answer_of(const Result<Decided>& decided) {
  if (!decided) return {decided.error().message(), decided.error().hint(), {}, {}, false};
  return {{}, {}, decided->text, decided->map, decided->from_cache};
}

/// A file system of the container's own; its device is the other end's. Closed on return: were it
/// open here, a daemon that dies could not end our requests.
Result<void> mount_own(ContainerMounts& mounts, const Decision& decision, int socket) {
  const Fd device =
      TRY(open_fuse_device("a device cgroup forbids it: use the stage createRuntime, or allow c "
                           "10:229"));
  TRY(mounts.check(decision));
  TRY(mounts.mount(device.get(), decision.mount_point));
  auto sent = send_fd(socket, device.get());
  if (!sent) mounts.undo();
  return sent;
}

/// The steps after `decide`. Each mounting one's end is a descriptor sent through `socket`.
Result<void> mount_inside(const InsideOrder& order, const Decision& decision, int socket) {
  auto step = receive_record<Step>(socket, kForever);
  if (!step || (step->message != Step::mount && step->message != Step::share)) return {};
  auto mounts = TRY(ContainerMounts::open(order.config.rootfs));
  if (step->message == Step::mount) {
    TRY(mount_own(mounts, decision, socket));
    step = receive_record<Step>(socket, kForever);
    if (!step || step->message != Step::bind) {
      mounts.undo();
      return {};
    }
  } else {
    if (step->fds.size() != 1) return fail_errno("fs-hook", "cannot share a mount", EPROTO);
    TRY(mounts.check(decision));
    TRY(mounts.attach(std::move(step->fds[0]), decision.mount_point));
  }
  auto bound = mounts.bind(decision);
  // Where that cannot be sent, this process leads itself no more.
  if (bound) bound = send_fd(socket, socket);
  if (!bound) mounts.undo();
  return bound;
}

/// The process in the container, from its start to its exit status.
int work_inside(const InsideOrder& order, int socket, Fd answer) {
  const auto step = receive_record<Step>(socket, kForever);
  if (!step || step->message != Step::decide) return 0;
  const auto decided = decide_inside(order, answer.get());
  Encoder coder;
  coder(answer_of(decided));
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

}  // namespace

Result<InsideContainer> InsideContainer::start(const InsideOrder& order) {
  SocketPair sockets = TRY(make_socket_pair());
  Pipe answer = TRY(make_pipe());
  ForkOptions options;
  options.dies_with_parent = false;  // it takes away what it has mounted
  Child child = TRY(fork_child(options, [&] {
    sockets.one.reset();
    answer.read_end.reset();
    return work_inside(order, sockets.other.get(), std::move(answer.write_end));
  }));
  return InsideContainer(std::move(child), std::move(sockets.one), std::move(answer.read_end));
}

Result<Decided> InsideContainer::decide() {
  TRY(send_record(socket_.get(), Step::decide));
  const auto bytes = TRY(read_all(answer_.get(), "fs-hook", kAnswerLimit));
  answer_.reset();
  Answer answer;
  Decoder coder(bytes);
  coder(answer);
  if (!coder.complete())
    return fail("fs-hook", "cannot decide", "its process in the container died");
  if (!answer.failure.empty()) return fail(Error({}, answer.failure, {}, answer.hint));
  Decided out;
  out.decision = TRY(parse_decision(answer.document, "the decision"));
  out.map = std::move(answer.map);
  out.from_cache = answer.from_cache;
  return out;
}

Result<Fd> InsideContainer::mount() {
  TRY(send_record(socket_.get(), Step::mount));
  return receive_fd(socket_.get());
}

Result<void> InsideContainer::bind() {
  TRY(send_record(socket_.get(), Step::bind));
  return done();
}

Result<void> InsideContainer::share(const Fd& tree) {
  const int fds[] = {tree.get()};
  TRY(send_record(socket_.get(), Step::share, fds));
  return done();
}

Result<void> InsideContainer::done() {
  auto done = receive_fd(socket_.get());
  (void)child_.wait();
  if (!done) return fail(std::move(done.error()));
  return {};
}

void InsideContainer::give_up() {
  socket_.reset();
  (void)child_.wait();
}

}  // namespace heddle::hook
