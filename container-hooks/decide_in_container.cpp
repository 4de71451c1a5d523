// SPDX-License-Identifier: MIT
#include "container-hooks/decide_in_container.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <chrono>
#include <vector>

#include "base/process.hpp"
#include "container-hooks/container_program.hpp"
#include "container-hooks/enter_namespace.hpp"

namespace heddle {
namespace {

constexpr std::size_t kAnswerLimit = 20U << 20;

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

Result<Decided> decide(const DecideOrder& order, int asker) {
  const auto program =
      order.program.empty() ? container_program(order.config) : std::optional(order.program);
  if (!program) {
    Decided none;
    none.decision.reason = "the container's program is not there";
    return none;
  }
  const Descendants reaped;
  auto cache = DecisionCache::open(order.cache);
  if (!cache) return fail(std::move(cache.error()));
  ImageQuestion question{order.config.rootfs, *program, order.mount_point, order.mpi, {}, asker};
  for (const auto& entry : order.config.environment)
    if (entry.starts_with("LD_LIBRARY_PATH=")) question.library_path = entry.substr(16);
  return cache->decide(question, order.fresh);
}

/// What a pipe carries: fields that end in NUL, which none of them holds.
std::string pack(const std::vector<std::string>& fields) {
  std::string out;
  for (const auto& field : fields) out += field + '\0';
  return out;
}

std::string answer_of(const Result<Decided>& decided) {
  if (!decided) {
    const Error& error = decided.error();
    return pack({"-", std::to_string(error.code()), error.message(), error.hint()});
  }
  return pack({"+", decided->from_cache ? "1" : "0", decided->map, decided->decision.reason,
               decided->text});
}

Result<Decided> read_answer(const std::string& answer) {
  std::vector<std::string> fields;
  for (std::size_t at = 0; at < answer.size();) {
    const auto end = std::min(answer.find('\0', at), answer.size());
    fields.push_back(answer.substr(at, end - at));
    at = end + 1;
  }
  if (fields.size() == 4 && fields[0] == "-")
    return fail(Error::with_code(std::stoi(fields[1]), {}, fields[2], {}, fields[3]));
  if (fields.size() != 5 || fields[0] != "+")
    return fail("fs-hook", "cannot decide", "its process in the container ended without a word");
  Decided out;
  out.from_cache = fields[1] == "1";
  out.map = fields[2];
  out.decision.reason = fields[3];
  if (fields[4].empty()) return out;
  auto decision = parse_decision(fields[4], "container.json");
  if (!decision) return fail(std::move(decision.error()));
  out.decision = std::move(*decision);
  out.text = fields[4];
  return out;
}

}  // namespace

Result<Decided> decide_in_container(const DecideOrder& order) {
  if (order.stage == Stage::create_container) return decide(order, -1);
  auto pipe = make_pipe();
  if (!pipe) return fail(std::move(pipe.error()));
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("fs-hook", "cannot start a process");
  if (pid == 0) {
    const auto entered = enter_mount_namespace(order.pid);
    pipe->read_end.reset();
    const auto decided =
        entered ? decide(order, pipe->write_end.get()) : Result<Decided>(fail(entered.error()));
    ::_exit(write_all(pipe->write_end.get(), answer_of(decided), "pipe") ? 0 : 1);
  }
  Child child(pid);
  pipe->write_end.reset();
  const auto answer = read_all(pipe->read_end.get(), "fs-hook", kAnswerLimit);
  (void)child.wait();
  if (!answer) return fail(answer.error());
  return read_answer(*answer);
}

}  // namespace heddle
