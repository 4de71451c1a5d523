// SPDX-License-Identifier: MIT
#include "compat/server/judge_pool.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>

#include "base/child.hpp"
#include "base/content_hash.hpp"
#include "base/escape.hpp"
#include "base/log.hpp"

namespace heddle::compat {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMostJudges = 4;
/// Parsing more takes longer than clients with small artifacts should wait.
constexpr std::size_t kLarge = 256 << 10;
/// A check that takes longer is slow. Most take a few milliseconds.
constexpr milliseconds kQuick{250};
constexpr std::size_t kMostKept = 4096;
constexpr std::size_t kMostKeptBytes = std::size_t{32} << 20;
/// A change must show within two seconds, also where nobody watches.
constexpr milliseconds kTimedLife{1000};
/// A watcher that says nothing for so long hangs in a directory: nothing is taken for unchanged.
constexpr std::chrono::seconds kSilence{5};
/// For so long a directory that hung is left alone.
constexpr std::chrono::seconds kAvoided{60};
/// How often a call looks whether its client has gone.
constexpr milliseconds kGlance{100};

std::size_t judges_wanted() {
  cpu_set_t cpus;
  const auto count = ::sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
  return std::clamp<std::size_t>(static_cast<std::size_t>(count), 2, kMostJudges);
}

/// A judge reads what peers send, and may be theirs: its answer's numbers are checked.
bool is_sane(const Answer& answer) {
  const auto& judgement = answer.judgement;
  return judgement.verdict <= Verdict::incompatible && judgement.reasons.size() <= kMostReasons &&
         std::all_of(judgement.reasons.begin(), judgement.reasons.end(), [](const Reason& reason) {
           return reason.kind <= Reason::Kind::not_judged && reason.weight <= Verdict::incompatible;
         });
}

}  // namespace

std::size_t JudgePool::KeyHash::operator()(const Key& key) const {
  std::size_t out = 0;
  std::memcpy(&out, key.data(), sizeof out);
  return out;
}

Result<std::unique_ptr<JudgePool>> JudgePool::start(JudgeOptions options, int cancelled) {
  std::unique_ptr<JudgePool> pool(new JudgePool(std::move(options)));
  pool->program_ = TRY(own_program_dir()) + "/../libexec/heddle/compat-judge";
  TRY(pool->start_watcher());
  pollfd ready[] = {{pool->watch_socket_.get(), POLLIN, 0}, {cancelled, POLLIN, 0}};
  while (::poll(ready, 2, -1) < 0) {
  }
  if (ready[1].revents != 0) return fail_errno("", "ended while the index was made", ECANCELED);
  const auto indexed = receive_record<Notice>(pool->watch_socket_.get(), milliseconds(0));
  // It has said why.
  if (!indexed) return fail("", "the index cannot be made");
  pool->libraries_ = indexed->message.libraries;
  pool->heard_ = Clock::now();
  pool->judges_.resize(judges_wanted());
  pool->replacer_ = std::thread([raw = pool.get()] { raw->replace_judges(); });
  return pool;
}

JudgePool::~JudgePool() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (replacer_.joinable()) replacer_.join();
  for (const auto& judge : judges_)
    if (judge.pid > 0) ::kill(judge.pid, SIGKILL);
  if (watcher_ > 0) ::kill(watcher_, SIGKILL);
  // Not waited for: one that hangs in a file system may take its time, and is not ours any more.
}

/// By exec, and not by fork alone: a judge must not have the memory that the token and the TLS key
/// are in.
Result<pid_t> JudgePool::start_process(const char* role, Fd& socket) const {
  auto sockets = TRY(make_socket_pair());
  auto child =
      TRY(spawn(program_, {"compat-judge", role}, {.fds = {{sockets.other.get(), kJudgeSocket}}}));
  TRY(send_large(sockets.one.get(), options_));
  socket = std::move(sockets.one);
  return child.release();
}

Result<void> JudgePool::start_watcher() {
  watcher_ = TRY(start_process("watch", watch_socket_));
  heard_ = Clock::now();
  return {};
}

void JudgePool::tend() {
  pollfd ready{watch_socket_.get(), POLLIN, 0};
  while (watch_socket_ && ::poll(&ready, 1, 0) > 0) {
    const auto notice = receive_record<Notice>(watch_socket_.get(), milliseconds(0));
    if (!notice) {
      watch_socket_.reset();
      break;
    }
    heard_ = Clock::now();
    if (notice->message.kind == Notice::Kind::changed) invalidate();
  }
  bool forgiven = false;
  {
    const std::lock_guard lock(mutex_);
    forgiven =
        std::erase_if(avoided_, [](const auto& one) { return Clock::now() > one.second; }) > 0;
  }
  if (forgiven) invalidate();
  if (Clock::now() - heard_ < kSilence) return;
  // It hangs or has died: until another one reports, nothing is known to be unchanged.
  invalidate();
  if (watch_socket_) return;
  {
    const std::lock_guard lock(mutex_);
    if (watcher_ > 0) killed_.push_back(std::exchange(watcher_, -1));
  }
  if (auto done = start_watcher(); !done) warn(done.error());
}

void JudgePool::invalidate() {
  const std::lock_guard lock(mutex_);
  kept_.clear();
  kept_bytes_ = 0;
  ++generation_;
  ++counters_.invalidations;
}

void JudgePool::avoid(const std::string& directory) {
  warn(fmt::format("{}: does not answer: left alone for a minute", escape_for_terminal(directory)));
  {
    const std::lock_guard lock(mutex_);
    avoided_[directory] = Clock::now() + kAvoided;
  }
  invalidate();
}

void JudgePool::replace_judges() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    std::erase_if(killed_, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
    const auto absent = std::find_if(judges_.begin(), judges_.end(), [](const Judge& judge) {
      return judge.state == State::absent;
    });
    if (absent == judges_.end()) {
      changed_.wait_for(lock, std::chrono::seconds(killed_.empty() ? 60 : 1));
      continue;
    }
    if (absent->pid > 0) killed_.push_back(std::exchange(absent->pid, -1));
    absent->state = State::busy;  // nobody's, until it is there
    lock.unlock();
    Fd socket;
    const auto pid = start_process("judge", socket);
    if (!pid) warn(pid.error());
    lock.lock();
    absent->state = pid ? State::idle : State::absent;
    absent->pid = pid.value_or(-1);
    absent->socket = std::move(socket);
    changed_.notify_all();
    // Out of processes: no use to try at once.
    if (!pid) changed_.wait_for(lock, std::chrono::seconds(1), [&] { return ending_; });
  }
}

/// Whether another check may be slow.
bool JudgePool::may_be_slow() const {
  const auto slow =
      std::count_if(judges_.begin(), judges_.end(), [](const Judge& judge) { return judge.slow; });
  return static_cast<std::size_t>(slow) + 1 < judges_.size();
}

JudgePool::Judge* JudgePool::take(bool slow, Clock::time_point deadline,
                                  const std::function<bool()>& cancelled) {
  Judge* out = nullptr;
  {
    std::unique_lock lock(mutex_);
    auto& line = lines_[slow];
    const auto place = line.insert(line.end(), 0);
    while (Clock::now() < deadline && !cancelled()) {
      const auto idle = std::find_if(judges_.begin(), judges_.end(),
                                     [](const Judge& judge) { return judge.state == State::idle; });
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

void JudgePool::give_back(Judge& judge, bool usable) {
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

/// Whether a check that turned out to be slow may keep its judge.
bool JudgePool::may_go_on(Judge& judge) {
  const std::lock_guard lock(mutex_);
  judge.slow = judge.slow || may_be_slow();
  return judge.slow || lines_[false].empty();
}

/// Failures: EAGAIN when a slow check has to make room, ETIMEDOUT, those of receive_large().
Result<Answer> JudgePool::converse(Judge& judge, const Question& question,
                                   Clock::time_point deadline,
                                   const std::function<bool()>& cancelled) {
  const auto begin = Clock::now();
  TRY(send_large(judge.socket.get(), question));
  pollfd ready{judge.socket.get(), POLLIN, 0};
  while (::poll(&ready, 1, static_cast<int>(kGlance.count())) <= 0) {
    const auto now = Clock::now();
    if (now >= deadline || cancelled()) return fail_errno("judge", "given up", ETIMEDOUT);
    if (now - begin > kQuick && !may_go_on(judge)) return fail_errno("judge", "taken away", EAGAIN);
  }
  auto answer = TRY(receive_large<Answer>(judge.socket.get(), 2 * kMostAnswerBytes));
  if (!is_sane(answer)) return fail_errno("judge", "wrong answer", EPROTO);
  return answer;
}

Answer JudgePool::ask(std::string_view artifact, const std::string& where,
                      const std::function<bool()>& cancelled) {
  const auto deadline = Clock::now() + options_.timeout;
  const auto none = [&](const char* reason) {
    Answer out;
    out.error = where + ": no verdict: " + reason;
    return out;
  };
  for (bool slow = artifact.size() > kLarge;; slow = true) {
    auto* judge = take(slow, deadline, cancelled);
    if (judge == nullptr) return none("too many others ask: try again");
    // Given back whatever happens: there are few.
    struct Turn {
      JudgePool& pool;
      Judge& judge;
      bool usable = false;
      ~Turn() { pool.give_back(judge, usable); }
    } turn{*this, *judge};
    Question question{generation_, 0, where, {}, std::string(artifact)};
    question.patience_ms = static_cast<std::uint64_t>(milliseconds(options_.timeout).count()) / 2;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [directory, until] : avoided_) question.avoided.push_back(directory);
    }
    auto said = converse(*judge, question, deadline, cancelled);
    if (said && said->hanging.empty()) {
      turn.usable = !said->leaving;
      said->generation = question.generation;
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

std::shared_ptr<const Answer> JudgePool::find_kept(const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto known = kept_.find(key);
  if (known == kept_.end()) return nullptr;
  const auto& kept = known->second;
  if (!kept.answer->watched && Clock::now() - kept.made > kTimedLife) return nullptr;
  return kept.answer;
}

void JudgePool::keep(const Key& key, const std::shared_ptr<const Answer>& answer) {
  Encoder coder;
  coder(*answer);
  const auto size = 2 * coder.take().size() + 1024;  // in memory, with the maps' own
  const std::lock_guard lock(mutex_);
  if (!answer->error.empty() || answer->generation != generation_) return;
  // A flood of different artifacts must not fill the memory: start over.
  if (kept_.size() >= kMostKept || kept_bytes_ + size > kMostKeptBytes) {
    kept_.clear();
    kept_bytes_ = 0;
  }
  kept_bytes_ += size;  // of one that is replaced as well: too much is no harm
  kept_[key] = {answer, Clock::now()};
}

std::shared_ptr<const Answer> JudgePool::check(std::string_view artifact, const std::string& where,
                                               const std::function<bool()>& cancelled) {
  const Key key = hash_bytes(artifact).bytes;
  auto answer = find_kept(key);
  if (answer)
    ++counters_.kept;
  else
    keep(key, answer = std::make_shared<const Answer>(ask(artifact, where, cancelled)));
  ++counters_.checks;
  counters_.errors += !answer->error.empty();
  counters_.incompatible +=
      answer->error.empty() && answer->judgement.verdict == Verdict::incompatible;
  return answer;
}

}  // namespace heddle::compat
