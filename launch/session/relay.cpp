// SPDX-License-Identifier: MIT
#include "launch/session/relay.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <set>

#include "base/channel.hpp"
#include "base/child.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/run_directory.hpp"
#include "base/temp_dir.hpp"
#include "base/try.hpp"
#include "launch/session/node_agent.hpp"
#include "launch/session/processes.hpp"

namespace heddle::launch {
namespace {

using Clock = std::chrono::steady_clock;
using Nodes = std::set<std::string>;
constexpr std::chrono::milliseconds kHeartbeat{5000};
constexpr std::chrono::seconds kEndWithin{3};
constexpr std::chrono::seconds kSweepWithin{10};

/// Up to the first dot: hosts may be known by other domains.
std::string short_name(const std::string& name) { return name.substr(0, name.find('.')); }

std::chrono::seconds limit_of(Op op) {
  if (op == Op::stage) return std::chrono::seconds(600);
  return std::chrono::seconds(op == Op::destroy ? 30 : 20);
}

class Relay {
 public:
  explicit Relay(const RelayOptions& options) : o_(options) {
    for (const auto& node : o_.settings.nodes) nodes_.insert(short_name(node));
  }

  Result<void> start() {
    const Fd errors = TRY(open_file(log_, O_WRONLY | O_CREAT | O_APPEND, 0600));
    Pipe out = TRY(make_pipe());
    for (const auto& words : o_.commands) {
      const auto program = TRY(find_program(words[0]));
      Pipe in = TRY(make_pipe());
      SpawnOptions options;
      options.fds = {{in.read_end.get(), 0}, {out.write_end.get(), 1}, {errors.get(), 2}};
      children_.push_back(TRY(spawn(program, words, options)));
      inputs_.push_back(std::move(in.write_end));
    }
    out_ = std::move(out.read_end);
    Nodes silent = nodes_;
    std::string wrong;
    gather(Clock::now() + std::chrono::seconds(o_.seconds), [&](const Answer& answer) {
      if (answer.op != Op::hello || silent.erase(short_name(answer.node)) == 0) return false;
      used_.push_back(answer.node);
      if (answer.error)
        wrong += fmt::format("{}{}: {}", wrong.empty() ? "" : "; ", answer.node,
                             answer.error->message());
      else
        hello_ = answer;
      return silent.empty();
    });
    if (!wrong.empty()) return fail("", wrong);
    if (silent.empty()) return {};
    return fail(fmt::format("{}", fmt::join(silent, ",")), "no agent answers", errors_said());
  }

  const Answer& hello() const { return hello_; }

  /// Until the session ends.
  void serve(int listener) {
    std::optional<OtherProcess> tool;
    if (o_.tool > 0) {
      auto open = OtherProcess::open(o_.tool);
      if (!open) return;
      tool = std::move(*open);
    }
    const auto pause = tool && tool->fd() < 0 ? OtherProcess::kPause : kHeartbeat;
    while (!over_) {
      pollfd entries[] = {
          {listener, POLLIN, 0}, {out_.get(), POLLIN, 0}, {tool ? tool->fd() : -1, POLLIN, 0}};
      const int ready = ::poll(entries, 3, static_cast<int>(pause.count()));
      send_to_all(to_frame(""));
      if (tool && tool->has_ended()) return;
      if (ready <= 0) continue;
      if (entries[1].revents != 0) (void)read_answers();
      if (entries[0].revents == 0 || over_) continue;
      const Fd client(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
      // A request names what the agents run: no confined process of the user gets out by it.
      if (client && is_own_peer(client.get())) answer(client.get());
    }
  }

  /// Ends the agents by the end of their input; they clean up for at most twelve seconds.
  void end() {
    inputs_.clear();
    gather(Clock::now() + std::chrono::seconds(15), [](const Answer&) { return false; });
    for (auto& child : children_)
      if (const auto ended = child.wait_for(kEndWithin); !ended || !*ended)
        (void)::kill(child.pid(), SIGTERM);
    for (auto& child : children_) (void)child.wait_for(kEndWithin);
    children_.clear();
    // srun kills all its tasks when one node fails it; agents on others have no time then.
    if (is_clean_ || used_.empty()) return;
    for (const auto& words : o_.sweep(used_)) {
      const auto program = find_program(words[0]);
      const auto null = open_file("/dev/null", O_RDWR);
      if (!program || !null) continue;
      SpawnOptions options;
      options.fds = {{null->get(), 0}, {null->get(), 1}, {null->get(), 2}};
      if (auto child = spawn(*program, words, options)) children_.push_back(std::move(*child));
    }
    for (auto& child : children_) (void)child.wait_for(kSweepWithin);
  }

 private:
  /// One write each, since a client waits at most for its own time.
  void send_to_all(const std::string& frame) {
    for (const auto& input : inputs_)
      if (!write_all(input.get(), frame, "agents")) over_ = inputs_.size() == 1;
  }

  std::vector<Answer> read_answers() {
    char bytes[65'536];
    const auto got = ::read(out_.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) return {};
    if (got <= 0) over_ = true;  // all agents have ended
    return reader_.take({bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0))});
  }

  void gather(Clock::time_point end, const std::function<bool(const Answer&)>& until) {
    while (!over_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
      if (left <= 0) return;
      const auto pause = std::min<long>(left, kHeartbeat.count());
      pollfd entry{out_.get(), POLLIN, 0};
      const int ready = ::poll(&entry, 1, static_cast<int>(pause));
      if (ready == 0) send_to_all(to_frame(""));
      if (ready <= 0) continue;
      for (const auto& answer : read_answers())
        if (until(answer)) return;
    }
  }

  void answer(int client) {
    const auto packet = receive_packet(client, std::chrono::seconds(5));
    if (!packet) return;
    const auto request = decode_record<Request>(packet->text);
    if (!request) return send_failure(client, request.error());
    send_to_all(to_frame(packet->text));
    Nodes silent = nodes_;
    gather(Clock::now() + limit_of(request->op), [&](const Answer& answer) {
      if (answer.op != request->op || silent.erase(short_name(answer.node)) == 0) return false;
      (void)send_record(client, answer);
      return silent.empty();
    });
    for (const auto& node : silent) {
      Answer none;
      none.op = request->op;
      none.node = node;
      // srun, which ends all agents when it has lost a node, says so.
      none.error = over_ ? Error("", "the agent has ended", errors_said())
                         : Error("", "the agent does not answer");
      (void)send_record(client, none);
    }
    if (request->op == Op::destroy) {
      over_ = true;
      is_clean_ = silent.empty();
      (void)remove_tree(o_.directory);
    }
    Answer last;
    (void)send_record(client, last);
  }

  std::string errors_said() const {
    auto out = read_file(log_).value_or("");
    out.resize(std::min<std::size_t>(out.size(), 4096));
    std::ranges::replace(out, '\n', ' ');
    return out;
  }

  const RelayOptions& o_;
  const std::string log_ = o_.directory + "/log";
  Nodes nodes_;
  std::vector<Child> children_;
  std::vector<Fd> inputs_;
  Fd out_;
  AnswerReader reader_;
  Answer hello_;
  std::vector<std::string> used_;  ///< nodes whose agents have answered
  bool over_ = false;
  bool is_clean_ = false;
};

}  // namespace

std::string socket_name(const std::string& id) { return "session." + id; }

int run_relay(const RelayOptions& o, int ready) {
  ::signal(SIGPIPE, SIG_IGN);
  Relay relay(o);
  auto run = RunDirectory::open();
  auto listener = run ? run->listen_at(socket_name(o.settings.id)) : Result<Fd>(fail(run.error()));
  auto started = listener ? relay.start() : Result<void>(fail(listener.error()));
  Answer answer = relay.hello();
  if (!started) answer.error = shortened(started.error());
  if (started) {
    (void)send_record(ready, answer);
    ::close(ready);
    relay.serve(listener->get());
  }
  if (run && listener) run->remove(socket_name(o.settings.id));
  relay.end();
  (void)remove_tree(o.directory);
  if (!started) (void)send_record(ready, answer);
  return exit_done;
}

}  // namespace heddle::launch
