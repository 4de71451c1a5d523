// SPDX-License-Identifier: MIT
#include "container-hooks/inside_work.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <optional>

#include "base/fuse_device.hpp"
#include "base/socket_pair.hpp"
#include "container-hooks/container_mounts.hpp"
#include "container-hooks/container_program.hpp"
#include "container-hooks/enter_namespace.hpp"
#include "container-hooks/hook_progress.hpp"
#include "container-hooks/packed_decision.hpp"

namespace heddle {
namespace {

/// An fs-resolve that was killed may leave workers. Nobody must be left when a hook ends: crun 1.8
/// takes their ends for the hook's, and then waits for it until its time is over (measured).
class Descendants {
 public:
  Descendants() { (void)::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  Descendants(const Descendants&) = delete;
  Descendants& operator=(const Descendants&) = delete;
  ~Descendants() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (std::chrono::steady_clock::now() < end) {
      const pid_t gone = ::waitpid(-1, nullptr, WNOHANG);
      if (gone < 0 && errno != EINTR) return;
      if (gone == 0) ::poll(nullptr, 0, 2);
    }
  }
};

std::optional<InsideWord> hear(int socket) {
  char word = 0;
  ssize_t n;
  do {
    n = ::recv(socket, &word, 1, 0);
  } while (n < 0 && errno == EINTR);
  if (n != 1) return std::nullopt;
  return static_cast<InsideWord>(word);
}

/// With its hint, which the other end shows as part of the line.
int tell_failure(int socket, const Error& error) {
  const auto hint = error.hint().empty() ? "" : " (" + error.hint() + ")";
  send_failure(socket, Error({}, error.message() + hint));
  return 1;
}

Result<Decided> decide(const InsideOrder& order, int asker) {
  if (order.stage == Stage::create_runtime)
    if (auto entered = enter_mount_namespace(order.pid); !entered)
      return fail(std::move(entered.error()));
  note_step("looking for the program of", order.config.rootfs);
  const auto program =
      order.program.empty() ? container_program(order.config) : std::optional(order.program);
  if (!program) {
    Decided none;
    none.decision.reason = "the container's program is not there";
    return none;
  }
  const Descendants reaped;
  note_step("opening", order.cache);
  auto cache = DecisionCache::open(order.cache, order.limits);
  if (!cache) return fail(std::move(cache.error()));
  ImageQuestion question{order.config.rootfs, *program, order.mount_point, order.mpi, {}, asker,
                         order.stale_map};
  for (const auto& entry : order.config.environment)
    if (entry.starts_with("LD_LIBRARY_PATH=")) question.library_path = entry.substr(16);
  return cache->decide(question);
}

constexpr char kDone = '+';
constexpr char kFailed = '-';

// Fields end in NUL, which neither a path nor a message holds; the decision is the rest.
std::string answer_of(const Result<Decided>& decided) {
  std::string out;
  if (!decided) {
    const Error& error = decided.error();
    out += kFailed;
    return out + error.message() + '\0' + error.hint();
  }
  out += kDone;
  out += decided->from_cache ? '1' : '0';
  return out + decided->map + '\0' + pack({decided->decision, {}, decided->map_id});
}

/// A file system of the container's own; its device is the other end's.
Result<void> mount_own(ContainerMounts& mounts, const Decision& decision, int socket) {
  auto device = open_fuse_device(
      "a device cgroup forbids it: use the stage createRuntime, or allow c 10:229");
  if (!device) return fail(std::move(device.error()));
  if (auto ready = mounts.check(decision); !ready) return ready;
  if (auto mounted = mounts.mount(device->get(), decision.mount_point); !mounted) return mounted;
  auto sent = send_fd(socket, device->get());
  if (!sent) mounts.undo();
  // Closed on return: were it open here, a daemon that dies could not end our requests.
  return sent;
}

/// The node's, which the other end sends.
Result<void> mount_shared(ContainerMounts& mounts, const Decision& decision, int socket) {
  auto tree = receive_fd(socket);
  if (!tree) return fail(std::move(tree.error()));
  if (auto ready = mounts.check(decision); !ready) return ready;
  return mounts.attach(std::move(*tree), decision.mount_point);
}

}  // namespace

Result<Decided> parse_answer(const std::string& answer) {
  const auto end = answer.find('\0');
  if (end == answer.npos || (answer[0] != kDone && answer[0] != kFailed))
    return fail("fs-hook", "cannot decide", "its process in the container ended without a word");
  if (answer[0] == kFailed)
    return fail(Error({}, answer.substr(1, end - 1), {}, answer.substr(end + 1)));
  auto packed = unpack(std::string_view(answer).substr(end + 1), "the decision");
  if (!packed) return fail(std::move(packed.error()));
  return Decided{std::move(packed->decision),
                 answer.substr(2, end - 2),
                 std::move(packed->map_id),
                 answer[1] == '1',
                 {}};
}

int work_inside(const InsideOrder& order, int socket, Fd answers) {
  auto word = hear(socket);
  if (word != InsideWord::decide) return 0;
  const auto decided = decide(order, answers.get());
  if (auto told = write_all(answers.get(), answer_of(decided), "pipe"); !told || !decided) return 1;
  answers.reset();
  word = hear(socket);
  if (word != InsideWord::mount && word != InsideWord::share) return 0;
  auto mounts = ContainerMounts::open(order.config.rootfs);
  if (!mounts) return tell_failure(socket, mounts.error());
  const Decision& decision = decided->decision;
  const auto mounted = word == InsideWord::mount ? mount_own(*mounts, decision, socket)
                                                 : mount_shared(*mounts, decision, socket);
  if (!mounted) return tell_failure(socket, mounted.error());
  if (word == InsideWord::mount && hear(socket) != InsideWord::bind) {
    mounts->undo();
    return 1;
  }
  if (auto bound = mounts->bind(decision); !bound) {
    mounts->undo();
    return tell_failure(socket, bound.error());
  }
  if (send_fd(socket, socket)) return 0;
  mounts->undo();  // nobody leads us any more
  return 1;
}

}  // namespace heddle
