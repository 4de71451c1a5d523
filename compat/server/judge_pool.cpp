// SPDX-License-Identifier: MIT
#include "compat/server/judge_pool.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>

#include "base/content_hash.hpp"
#include "base/escape.hpp"
#include "base/log.hpp"

namespace heddle::compat {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMostJudges = 4;
/// Parsing more takes longer than clients with small artifacts should wait.
constexpr std::size_t kLarge = 256 << 10;
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

}  // namespace

std::size_t JudgePool::KeyHash::operator()(const Key& key) const {
  std::size_t out = 0;
  std::memcpy(&out, key.data(), sizeof out);
  return out;
}

JudgePool::JudgePool(JudgeOptions options) : options_(std::move(options)) {}

Result<std::unique_ptr<JudgePool>> JudgePool::start(
    JudgeOptions options, const std::function<void(std::size_t, std::size_t)>& progress,
    int cancelled) {
  std::unique_ptr<JudgePool> pool(new JudgePool(std::move(options)));
  const auto folder = own_program_dir();
  if (!folder) return fail(folder.error());
  pool->program_ = *folder + "/../libexec/heddle/compat-judge";
  if (auto done = pool->start_watcher(); !done) return fail(std::move(done.error()));
  for (bool indexed = false; !indexed;) {
    pollfd ready[] = {{pool->watch_socket_.get(), POLLIN, 0}, {cancelled, POLLIN, 0}};
    static_cast<void>(::poll(ready, 2, -1));
    if (ready[1].revents != 0) return fail_errno("", "ended while the index was made", ECANCELED);
    if (ready[0].revents == 0) continue;
    const auto notice = receive_notice(pool->watch_socket_.get());
    // It has said why.
    if (!notice) return fail("", "the index cannot be made");
    if (notice->kind == Notice::Kind::progress && progress) progress(notice->done, notice->total);
    if (notice->kind != Notice::Kind::indexed) continue;
    pool->libraries_ = notice->done;
    indexed = true;
  }
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

Result<pid_t> JudgePool::start_process(const char* role, Fd& socket,
                                       std::shared_ptr<Looking>& page) const {
  const Fd memory(::memfd_create("looking", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ::ftruncate(memory.get(), sizeof(Looking)) != 0)
    return fail_errno("memfd", "cannot be made");
  // A judge that was taken over could cut it off under us.
  static_cast<void>(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  void* at = ::mmap(nullptr, sizeof(Looking), PROT_READ, MAP_SHARED, memory.get(), 0);
  if (at == MAP_FAILED) return fail_errno("memory", "cannot be shared");
  page.reset(static_cast<Looking*>(at), [](Looking* old) { ::munmap(old, sizeof(Looking)); });
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail_errno("", "cannot make a socket");
  socket.reset(ends[0]);
  const Fd theirs(ends[1]);
  std::vector<std::string> argv = {"compat-judge", "--generation", std::to_string(generation_)};
  if (!options_.index_dir.empty()) argv.push_back("--index=" + options_.index_dir);
  if (!options_.root.empty()) argv.push_back("--rootfs=" + options_.root);
  for (const auto& folder : options_.library_dirs) argv.push_back("--library-dir=" + folder);
  argv.emplace_back(role);
  auto child =
      spawn(program_, argv, {.fds = {{theirs.get(), kJudgeSocket}, {memory.get(), kJudgeMemory}}});
  if (!child) return fail(std::move(child.error()));
  return child->release();
}

Result<void> JudgePool::start_watcher() {
  std::shared_ptr<Looking> unused;
  const auto pid = start_process("watch", watch_socket_, unused);
  if (!pid) return fail(pid.error());
  watcher_ = *pid;
  heard_ = Clock::now();
  return {};
}

void JudgePool::tend() {
  pollfd ready{watch_socket_.get(), POLLIN, 0};
  while (watch_socket_ && ::poll(&ready, 1, 0) > 0) {
    const auto notice = receive_notice(watch_socket_.get());
    if (!notice) {
      watch_socket_.reset();
      break;
    }
    heard_ = Clock::now();
    if (notice->kind == Notice::Kind::changed) invalidate();
  }
  bool forgiven = false;
  {
    const std::lock_guard lock(mutex_);
    forgiven =
        std::erase_if(avoided_, [](const auto& one) { return Clock::now() > one.second; }) > 0;
  }
  if (forgiven) invalidate();
  if (Clock::now() - heard_ < kSilence) return;
  // It hangs or has died: until another one tells, nothing is known to be unchanged.
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

void JudgePool::avoid(const std::string& folder) {
  warn(fmt::format("{}: does not answer: left alone for a minute", escape_for_terminal(folder)));
  {
    const std::lock_guard lock(mutex_);
    avoided_[folder] = Clock::now() + kAvoided;
  }
  invalidate();
}

std::string JudgePool::avoided() {
  std::string out;
  const std::lock_guard lock(mutex_);
  for (const auto& [folder, until] : avoided_) out += folder + '\0';
  return out;
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
    absent->state = State::busy;  // nobody's: until it is there
    lock.unlock();
    Fd socket;
    std::shared_ptr<Looking> page;
    const auto pid = start_process("judge", socket, page);
    if (!pid) warn(pid.error());
    lock.lock();
    absent->state = pid ? State::idle : State::absent;
    absent->pid = pid.value_or(-1);
    absent->socket = std::move(socket);
    absent->page = std::move(page);
    changed_.notify_all();
    // Out of processes: no use to try at once.
    if (!pid) changed_.wait_for(lock, std::chrono::seconds(1), [&] { return ending_; });
  }
}

JudgePool::Judge* JudgePool::take(const Client& client, bool large, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto with_large = static_cast<std::size_t>(std::count_if(
        judges_.begin(), judges_.end(),
        [](const Judge& judge) { return judge.state == State::busy && judge.large; }));
    const auto most = judges_.size() - 1;
    const auto known = has_.find(client.name);
    if ((!large || with_large < most) && (known == has_.end() || known->second < most))
      for (auto& judge : judges_)
        if (judge.state == State::idle) {
          ++has_[client.name];  // first: it may throw
          judge.state = State::busy;
          judge.large = large;
          return &judge;
        }
    if (Clock::now() >= deadline || client.cancelled()) return nullptr;
    changed_.wait_for(lock, kGlance);
  }
}

void JudgePool::give_back(Judge& judge, const Client& client, bool usable) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = has_.find(client.name); known != has_.end() && --known->second == 0)
      has_.erase(known);
    judge.large = false;
    judge.state = usable ? State::idle : State::absent;
    if (!usable) {
      ::kill(judge.pid, SIGKILL);
      judge.socket.reset();
    }
  }
  changed_.notify_all();
}

Answer JudgePool::ask(std::string_view artifact, const std::string& where, const Client& client) {
  const auto deadline = Clock::now() + options_.timeout;
  Answer out;
  auto* judge = take(client, artifact.size() > kLarge, deadline);
  if (judge == nullptr) {
    out.error = where + ": no verdict: too many others ask: try again";
    return out;
  }
  // Given back whatever happens: there are few.
  struct Turn {
    JudgePool& pool;
    Judge& judge;
    const Client& client;
    bool usable = false;
    ~Turn() { pool.give_back(judge, client, usable); }
  } turn{*this, *judge, client};
  const auto generation = generation_.load();
  const auto left_alone = avoided();
  auto done =
      send_question(judge->socket.get(), {generation, where, artifact, left_alone}, deadline);
  pollfd ready{judge->socket.get(), POLLIN, 0};
  std::uint64_t look = 0;
  auto since = Clock::now();
  while (done && ::poll(&ready, 1, static_cast<int>(kGlance.count())) == 0) {
    const auto now = Clock::now();
    if (const auto count = judge->page->count.load(); std::exchange(look, count) != count)
      since = now;
    const bool hangs = look % 2 == 1 && (now - since) * 2 > options_.timeout;
    // Cut by whoever wrote it: the judge may not be trusted.
    if (hangs)
      avoid(
          std::string(judge->page->folder, ::strnlen(judge->page->folder, sizeof Looking::folder)));
    if (hangs || now >= deadline || client.cancelled()) done = fail_errno("", "", ETIMEDOUT);
  }
  Result<Answer> said = fail("", "");
  if (done) said = receive_answer(judge->socket.get(), deadline);
  const int code = !done ? done.error().code() : said ? 0 : said.error().code();
  turn.usable = said && !said->leaving;
  if (said) {
    out = std::move(*said);
  } else {
    ++counters_.killed;
    out.error = where + (code == ETIMEDOUT
                             ? ": no verdict: it took too long, or a directory does not answer"
                             : ": no verdict: its judge died");
  }
  out.generation = generation;
  return out;
}

std::shared_ptr<const Answer> JudgePool::look(const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto known = kept_.find(key);
  if (known == kept_.end()) return nullptr;
  const auto& kept = known->second;
  if (!kept.answer->watched && Clock::now() - kept.made > kTimedLife) return nullptr;
  return kept.answer;
}

void JudgePool::keep(const Key& key, const std::shared_ptr<const Answer>& answer) {
  const std::lock_guard lock(mutex_);
  if (!answer->error.empty() || answer->generation != generation_) return;
  // A flood of different artifacts must not fill the memory: start over.
  const auto size = sizeof(Kept) + sizeof(Key) + answer->bytes();
  if (kept_.size() >= kMostKept || kept_bytes_ + size > kMostKeptBytes) {
    kept_.clear();
    kept_bytes_ = 0;
  }
  kept_bytes_ += size;  // of one that is replaced as well: too much is no harm
  kept_[key] = {answer, Clock::now()};
}

std::shared_ptr<const Answer> JudgePool::check(std::string_view artifact, const std::string& where,
                                               const Client& client) {
  const Key key = hash_bytes(artifact).bytes;
  auto answer = look(key);
  if (answer)
    ++counters_.kept;
  else
    keep(key, answer = std::make_shared<const Answer>(ask(artifact, where, client)));
  ++counters_.checks;
  counters_.errors += !answer->error.empty();
  counters_.incompatible +=
      answer->error.empty() && answer->judgement.verdict == Verdict::incompatible;
  return answer;
}

}  // namespace heddle::compat
