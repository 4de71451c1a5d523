// SPDX-License-Identifier: MIT
#include "ship/node_step.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>

#include "base/escape.hpp"
#include "base/find_program.hpp"
#include "base/log.hpp"
#include "base/run_main.hpp"
#include "base/try.hpp"

namespace heddle::ship {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kEndWithin{2};
constexpr std::size_t kLongestLine = 1 << 16;

}  // namespace

Result<NodeStep> NodeStep::start(const Words& words) {
  const auto program = TRY(find_program(words[0]));
  Pipe in = TRY(make_pipe());
  Pipe out = TRY(make_pipe());
  SpawnOptions options;
  options.fds = {{in.read_end.get(), STDIN_FILENO}, {out.write_end.get(), STDOUT_FILENO}};
  auto child = TRY(spawn(program, words, options));
  (void)::fcntl(out.read_end.get(), F_SETFL, O_NONBLOCK);
  return NodeStep(std::move(child), std::move(in.write_end), std::move(out.read_end));
}

void NodeStep::gather(const Clock::time_point& end,
                      const std::function<bool(const Answer&)>& until) {
  for (;;) {
    for (std::size_t at = 0; (at = rest_.find('\n')) != rest_.npos;) {
      const auto line = rest_.substr(0, at);
      rest_.erase(0, at + 1);
      const auto answer = parse_answer(line);
      if (!answer)
        say(escape_for_terminal(line));
      else if (until(*answer))
        return;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd entry{out_.get(), POLLIN, 0};
    if (left <= 0 || rest_.size() > kLongestLine) return;
    if (::poll(&entry, 1, static_cast<int>(left)) < 0 && errno != EINTR) return;
    if (entry.revents == 0) continue;
    char buffer[4096];
    const auto got = ::read(out_.get(), buffer, sizeof(buffer));
    if (got > 0)
      rest_.append(buffer, static_cast<std::size_t>(got));
    else if (got == 0 || (errno != EAGAIN && errno != EINTR))
      return;  // all receivers have ended
  }
}

void NodeStep::go() {
  const SigpipeHeld held;  // the launcher may have ended
  (void)write_all(in_.get(), "go\n", "launcher");
}

void NodeStep::stop() {
  if (!child_) return;
  in_.reset();
  if (const auto ended = child_->wait_for(kEndWithin); !ended || !*ended) {
    // srun forwards SIGTERM to its tasks.
    (void)::kill(child_->pid(), SIGTERM);
    (void)child_->wait_for(kEndWithin);
  }
  child_.reset();  // kills it
}

}  // namespace heddle::ship
