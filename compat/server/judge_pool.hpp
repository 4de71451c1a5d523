// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/child.hpp"
#include "base/content_hash.hpp"
#include "base/escape.hpp"
#include "base/log.hpp"
#include "compat/server/judge_protocol.hpp"

namespace heddle::compat {

/// The judge processes, one for each CPU but two to four, and a cache of verdicts. No process but
/// judges opens files that a client names. Thread-safe.
///
/// A judge that has not answered at the deadline is killed and replaced. A directory that hangs for
/// half of that time is not opened for a minute.
///
/// A check is slow when its judge uses more CPU time than kQuick (on a busy node a quick one takes
/// long), or it takes longer than kQuickElapsed, or its artifact is large. Slow checks never occupy
/// all judges: one on the last judge is preempted when a quick one waits (its judge is killed, and
/// it joins the queue of slow checks). So no client, with any number of connections, delays others
/// by more than the queue of quick checks before them.
class JudgePool {
  using Clock = std::chrono::steady_clock;
  using milliseconds = std::chrono::milliseconds;
  using Cancelled = std::function<bool()>;
  static constexpr std::size_t kMostJudges = 4;
  static constexpr std::size_t kLarge = 256 << 10;
  /// Most checks take a few milliseconds.
  static constexpr milliseconds kQuick{100};
  static constexpr milliseconds kQuickElapsed{500};
  /// A judge that has not started by then never will; where --timeout is longer, by that.
  static constexpr std::chrono::seconds kStartLimit{30};
  static constexpr std::size_t kMostCached = 4096;
  static constexpr std::size_t kMostCachedBytes = std::size_t{32} << 20;
  /// A change must be noticed within two seconds, also in unwatched directories.
  static constexpr milliseconds kTimedLife{1000};
  /// A watcher that is silent for longer hangs in a directory: verdicts are not cached meanwhile.
  static constexpr std::chrono::seconds kSilence{5};
  /// How long a directory that hung is not opened.
  static constexpr std::chrono::seconds kAvoided{60};
  /// How often a call checks whether its client is gone.
  static constexpr milliseconds kGlance{100};

 public:
  /// Starts the judges, and the watcher, which reads all libraries into the index. A check may take
  /// `timeout`, including the wait for a judge. Fails when a program is missing, or the node's
  /// loader is not supported. ECANCELED: the descriptor `cancelled` is readable.
  static Result<std::unique_ptr<JudgePool>> start(NodeIndexOptions options,
                                                  std::chrono::seconds timeout, int cancelled) {
    std::unique_ptr<JudgePool> pool(new JudgePool(std::move(options), timeout));
    pool->program_ = TRY(own_program_dir()) + "/../libexec/heddle/compat-judge";
    TRY(pool->start_watcher());
    pollfd ready[] = {{pool->fd(), POLLIN, 0}, {cancelled, POLLIN, 0}};
    while (::poll(ready, 2, -1) < 0) {
    }
    if (ready[1].revents != 0) return fail_errno("", "ended while the index was made", ECANCELED);
    const auto indexed = receive_record<Notice>(pool->fd(), milliseconds(0));
    // The watcher has reported why.
    if (!indexed) return fail("", "the index cannot be made");
    pool->libraries_ = indexed->message.libraries;
    pool->heard_ = Clock::now();
    cpu_set_t cpus;
    const auto count = ::sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    pool->judges_.resize(std::clamp<std::size_t>(static_cast<std::size_t>(count), 2, kMostJudges));
    pool->replacer_ = std::thread([raw = pool.get()] { raw->replace_judges(); });
    return pool;
  }
  ~JudgePool() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (replacer_.joinable()) replacer_.join();
    for (const auto& judge : judges_)
      if (judge.pid > 0) ::kill(judge.pid, SIGKILL);
    if (watcher_ > 0) ::kill(watcher_, SIGKILL);
    // Not waited for: one that hangs in a file system may take long to end.
  }
  JudgePool(const JudgePool&) = delete;
  JudgePool& operator=(const JudgePool&) = delete;

  /// The verdict about an artifact's JSON; `where` names it in messages. The same bytes are judged
  /// once for each state of the node. `cancelled`: whether the client is gone.
  std::shared_ptr<const Answer> check(std::string_view artifact, const std::string& where,
                                      const Cancelled& cancelled) {
    const Key key = hash_bytes(artifact).bytes;
    auto answer = find_cached(key);
    if (answer)
      ++counters_.cached;
    else
      cache(key, answer = std::make_shared<const Answer>(ask(artifact, where, cancelled)));
    ++counters_.checks;
    counters_.errors += !answer->error.empty();
    counters_.incompatible +=
        answer->error.empty() && answer->judgement.verdict == Verdict::incompatible;
    return answer;
  }

  /// Readable when the watcher has sent a notice for tend().
  int fd() const { return watch_socket_.get(); }
  /// Reads the watcher's notices, and replaces it when it is gone. Call it every second, too.
  void tend() {
    pollfd ready{fd(), POLLIN, 0};
    while (watch_socket_ && ::poll(&ready, 1, 0) > 0) {
      const auto notice = receive_record<Notice>(fd(), milliseconds(0));
      if (!notice) {
        watch_socket_.reset();
        break;
      }
      heard_ = Clock::now();
      if (notice->message.kind == Notice::Kind::changed) invalidate();
    }
    std::unique_lock lock(mutex_);
    const auto is_over = [](const auto& one) { return Clock::now() > one.second; };
    const bool forgiven = std::erase_if(avoided_, is_over) > 0;
    lock.unlock();
    // A silent watcher hangs or has died: until another reports, changes go unnoticed.
    const bool silent = Clock::now() - heard_ >= kSilence;
    if (forgiven || silent) invalidate();
    if (!silent || watch_socket_) return;
    lock.lock();
    if (watcher_ > 0) killed_.push_back(std::exchange(watcher_, -1));
    lock.unlock();
    if (auto done = start_watcher(); !done) warn(done.error());
  }

  std::uint64_t generation() const { return generation_; }
  std::size_t libraries() const { return libraries_; }
  struct Counters {
    std::atomic<std::uint64_t> checks{0}, cached{0}, incompatible{0}, errors{0}, invalidations{0},
        killed{0};
  };
  const Counters& counters() const { return counters_; }

 private:
  enum class State : std::uint8_t { absent, idle, busy };
  struct Judge {
    State state = State::absent;
    bool slow = false;  ///< busy with a slow check
    pid_t pid = -1;
    Fd socket;
  };
  /// SHA-256 of an artifact: clients cannot make artifacts collide.
  using Key = decltype(ContentHash::bytes);
  struct Cached {
    std::shared_ptr<const Answer> answer;
    Clock::time_point made;
  };

  JudgePool(NodeIndexOptions options, std::chrono::seconds timeout)
      : options_(std::move(options)), timeout_(timeout) {}

  /// By exec, not by fork alone: a judge must not have the token and the TLS key in its memory.
  Result<pid_t> start_process(const char* role, Fd& socket) const {
    auto sockets = TRY(make_socket_pair());
    auto child = TRY(
        spawn(program_, {"compat-judge", role}, {.fds = {{sockets.other.get(), kJudgeSocket}}}));
    TRY(send_large(sockets.one.get(), options_));
    socket = std::move(sockets.one);
    return child.release();
  }

  /// A judge that has answered once: what its start takes does not count as a check's time.
  Result<pid_t> start_judge(Fd& socket) {
    const auto pid = TRY(start_process("judge", socket));
    const auto is_ending = [this] {
      const std::lock_guard lock(mutex_);
      return ending_;
    };
    const auto deadline = Clock::now() + std::max<Clock::duration>(timeout_, kStartLimit);
    auto ready = send_large(socket.get(), question("", ""));
    pollfd answered{socket.get(), POLLIN, 0};
    while (ready && ::poll(&answered, 1, static_cast<int>(kGlance.count())) <= 0)
      if (Clock::now() >= deadline || is_ending())
        ready = fail_errno("judge", "does not start", ETIMEDOUT);
    if (ready) {
      const auto answer = receive_large<Answer>(socket.get(), 2 * kMostAnswerBytes);
      if (answer && answer->hanging.empty() && !answer->leaving) return pid;
      ready = fail("judge", "does not start");
    }
    ::kill(pid, SIGKILL);
    const std::lock_guard lock(mutex_);
    killed_.push_back(pid);
    return fail(ready.error());
  }

  Question question(std::string_view artifact, std::string where) {
    const auto patience = milliseconds(timeout_).count() / 2;
    const std::lock_guard lock(mutex_);
    Question out{generation_, static_cast<std::uint64_t>(patience), std::move(where), {}, artifact};
    for (const auto& [directory, until] : avoided_) out.avoided.push_back(directory);
    return out;
  }

  Result<void> start_watcher() {
    watcher_ = TRY(start_process("watch", watch_socket_));
    heard_ = Clock::now();
    return {};
  }

  void invalidate() {
    const std::lock_guard lock(mutex_);
    cached_.clear();
    cached_bytes_ = 0;
    ++generation_;
    ++counters_.invalidations;
  }

  void avoid(const std::string& directory) {
    warn(fmt::format("{}: does not answer: skipped for a minute", escape_for_terminal(directory)));
    {
      const std::lock_guard lock(mutex_);
      avoided_[directory] = Clock::now() + kAvoided;
    }
    invalidate();
  }

  std::vector<Judge>::iterator find_judge(State state) {
    return std::find_if(judges_.begin(), judges_.end(),
                        [&](const Judge& judge) { return judge.state == state; });
  }

  void replace_judges() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      std::erase_if(killed_, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
      const auto absent = find_judge(State::absent);
      if (absent == judges_.end()) {
        changed_.wait_for(lock, std::chrono::seconds(killed_.empty() ? 60 : 1));
        continue;
      }
      if (absent->pid > 0) killed_.push_back(std::exchange(absent->pid, -1));
      absent->state = State::busy;  // until it has started
      lock.unlock();
      Fd socket;
      const auto pid = start_judge(socket);
      lock.lock();
      if (!pid && !ending_ && std::exchange(can_start_, false)) warn(pid.error());
      if (pid) can_start_ = true;
      absent->state = pid ? State::idle : State::absent;
      absent->pid = pid.value_or(-1);
      absent->socket = std::move(socket);
      changed_.notify_all();
      // Out of processes, for example.
      if (!pid) changed_.wait_for(lock, std::chrono::seconds(1), [&] { return ending_; });
    }
  }

  /// Whether another check may be slow.
  bool may_be_slow() const {
    const auto slow = std::count_if(judges_.begin(), judges_.end(),
                                    [](const Judge& judge) { return judge.slow; });
    return static_cast<std::size_t>(slow) + 1 < judges_.size();
  }

  Judge* take(bool slow, Clock::time_point deadline, const Cancelled& cancelled) {
    Judge* out = nullptr;
    {
      std::unique_lock lock(mutex_);
      auto& line = lines_[slow];
      const auto place = line.insert(line.end(), 0);
      while (Clock::now() < deadline && !cancelled()) {
        const auto idle = find_judge(State::idle);
        if (place == line.begin() && idle != judges_.end() && (!slow || may_be_slow())) {
          out = &*idle;
          out->state = State::busy;
          out->slow = slow;
          break;
        }
        changed_.wait_for(lock, kGlance);
      }
      line.erase(place);
    }
    changed_.notify_all();
    return out;
  }

  void give_back(Judge& judge, bool usable) {
    {
      const std::lock_guard lock(mutex_);
      judge.slow = false;
      judge.state = usable ? State::idle : State::absent;
      if (!usable) {
        ::kill(judge.pid, SIGKILL);
        judge.socket.reset();
      }
    }
    changed_.notify_all();
  }

  bool can_start() {
    const std::lock_guard lock(mutex_);
    return can_start_;
  }

  /// Whether a slow check may keep its judge.
  bool may_go_on(Judge& judge) {
    const std::lock_guard lock(mutex_);
    judge.slow = judge.slow || may_be_slow();
    return judge.slow || lines_[false].empty();
  }

  /// A judge may be compromised: its answer's values are checked.
  static bool is_sane(const Judgement& judgement) {
    return judgement.verdict <= Verdict::incompatible && judgement.reasons.size() <= kMostReasons &&
           std::all_of(judgement.reasons.begin(), judgement.reasons.end(), [](const Reason& one) {
             return one.kind <= Reason::Kind::not_judged && one.weight <= Verdict::incompatible;
           });
  }

  /// A process's CPU time until now.
  static std::chrono::nanoseconds cpu_time(pid_t pid) {
    clockid_t clock{};
    timespec time{};
    if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return {};
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }

  /// EAGAIN: a slow check is preempted; ETIMEDOUT; and the failures of receive_large().
  Result<Answer> converse(Judge& judge, const Question& question, Clock::time_point deadline,
                          const Cancelled& cancelled) {
    const auto begin = Clock::now();
    const auto used = cpu_time(judge.pid);
    TRY(send_large(judge.socket.get(), question));
    pollfd ready{judge.socket.get(), POLLIN, 0};
    while (::poll(&ready, 1, static_cast<int>(kGlance.count())) <= 0) {
      const auto now = Clock::now();
      if (now >= deadline || cancelled()) return fail_errno("judge", "timed out", ETIMEDOUT);
      const bool slow = now - begin > kQuickElapsed || cpu_time(judge.pid) - used > kQuick;
      if (slow && !may_go_on(judge)) return fail_errno("judge", "preempted", EAGAIN);
    }
    auto answer = TRY(receive_large<Answer>(judge.socket.get(), 2 * kMostAnswerBytes));
    if (!is_sane(answer.judgement)) return fail_errno("judge", "wrong answer", EPROTO);
    return answer;
  }

  Answer ask(std::string_view artifact, const std::string& where, const Cancelled& cancelled) {
    const auto deadline = Clock::now() + timeout_;
    const auto none = [&](const char* reason) {
      Answer out;
      out.error = where + ": no verdict: " + reason;
      return out;
    };
    for (bool slow = artifact.size() > kLarge;; slow = true) {
      auto* judge = take(slow, deadline, cancelled);
      if (judge == nullptr)
        return none(can_start() ? "too many checks: try again" : "no judge can be started");
      struct Turn {
        JudgePool& pool;
        Judge& judge;
        bool usable = false;
        ~Turn() { pool.give_back(judge, usable); }
      } turn{*this, *judge};
      const auto asked = question(artifact, where);
      auto said = converse(*judge, asked, deadline, cancelled);
      if (said && said->hanging.empty()) {
        turn.usable = !said->leaving;
        said->generation = asked.generation;
        return std::move(*said);
      }
      if (!said && said.error().code() == EAGAIN) continue;
      ++counters_.killed;
      if (said) avoid(said->hanging);
      return none(said || said.error().code() == ETIMEDOUT
                      ? "it took too long, or a directory does not answer"
                      : "its judge died");
    }
  }

  std::shared_ptr<const Answer> find_cached(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto known = cached_.find(key);
    if (known == cached_.end()) return nullptr;
    const auto& cached = known->second;
    const bool is_good = cached.answer->watched || Clock::now() - cached.made <= kTimedLife;
    return is_good ? cached.answer : nullptr;
  }

  void cache(const Key& key, const std::shared_ptr<const Answer>& answer) {
    Encoder coder;
    coder(*answer);
    const auto size = 2 * coder.take().size() + 1024;  // in memory, estimated
    const std::lock_guard lock(mutex_);
    if (!answer->error.empty() || answer->generation != generation_) return;
    // Many different artifacts must not fill the memory.
    if (cached_.size() >= kMostCached || cached_bytes_ + size > kMostCachedBytes) {
      cached_.clear();
      cached_bytes_ = 0;
    }
    cached_bytes_ += size;  // also when one is replaced: an overestimate does no harm
    cached_[key] = {answer, Clock::now()};
  }

  NodeIndexOptions options_;
  std::chrono::seconds timeout_;
  std::string program_;
  Fd watch_socket_;
  pid_t watcher_ = -1;
  Clock::time_point heard_ = Clock::now();  ///< the watcher's last notice
  std::size_t libraries_ = 0;
  std::atomic<std::uint64_t> generation_{1};
  Counters counters_;

  std::mutex mutex_;  ///< of all members below; held briefly
  std::condition_variable changed_;
  std::vector<Judge> judges_;
  std::list<char> lines_[2];                          ///< waiting calls, quick and slow
  std::vector<pid_t> killed_;                         ///< not reaped yet
  std::map<std::string, Clock::time_point> avoided_;  ///< directory that hung -> until when
  std::map<Key, Cached> cached_;
  std::size_t cached_bytes_ = 0;
  bool ending_ = false;
  bool can_start_ = true;  ///< whether the last judge did
  std::thread replacer_;
};

}  // namespace heddle::compat
