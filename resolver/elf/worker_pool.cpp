// SPDX-License-Identifier: MIT
#include "resolver/elf/worker_pool.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "resolver/elf/byte_codec.hpp"
#include "resolver/elf/facts_codec.hpp"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

/// Jobs a worker holds: enough that it never waits for us, few enough that little is sent again
/// when it crashes and few descriptors are in flight.
constexpr std::size_t kDepth = 8;
/// LIEF 0.9 leaks on some errors: a worker is replaced before that matters.
constexpr std::size_t kJobsPerWorker = 2000;
constexpr unsigned kMaxAttempts = 3;

Error damaged(const std::string& path, const std::string& reason) {
  return Error::with_code(EBADMSG, path, "cannot read as ELF", reason);
}

/// The worker's error, made one about `path`. Only the codes of the contract come through.
Error told_error(const std::string& path, std::string_view payload) {
  ByteReader in(payload);
  const auto code = in.number<std::int32_t>();
  const std::string text(in.take(in.left()));
  return Error::with_code(code == ENOEXEC || code == EIO ? code : EBADMSG, path, text);
}

}  // namespace

unsigned usable_cpus() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::clamp(static_cast<unsigned>(CPU_COUNT(&set)), 1U, 16U);
}

Result<std::string> default_worker_path() {
  auto dir = own_program_dir();
  if (!dir) return dir;
  return *dir + "/../libexec/heddle/elf-worker";
}

WorkerPool::WorkerPool(WorkerPoolOptions options) : options_(std::move(options)) {
  if (options_.worker_path.empty()) options_.worker_path = default_worker_path().value_or("");
  if (options_.max_workers == 0) options_.max_workers = usable_cpus();
}

WorkerPool::~WorkerPool() = default;

Result<OpenedFile> WorkerPool::open(const std::string& path) const {
  return OpenedFile::open(path, options_.root ? options_.root->get() : -1);
}

Result<FileFacts> WorkerPool::facts(const std::string& path, FactsDetail detail) {
  const Key key(path, detail);
  if (!known_.contains(key)) {
    auto file = open(path);
    if (!file) return fail(std::move(file.error()));
    return facts(path, std::move(*file), detail);
  }
  return wait_for(key);
}

Result<FileFacts> WorkerPool::facts(const std::string& path, OpenedFile file, FactsDetail detail) {
  if (!knows(path, detail)) enqueue({path, detail, std::move(file)});
  return wait_for({path, detail});
}

void WorkerPool::prefetch(const std::vector<std::string>& paths, FactsDetail detail) {
  for (const auto& path : paths)
    if (!knows(path, detail)) enqueue({path, detail, std::nullopt});
  pump(Wait::none);
}

void WorkerPool::prefetch(const std::string& path, OpenedFile file, FactsDetail detail) {
  if (knows(path, detail)) return;
  // Too many open files are worse than opening one twice.
  constexpr std::size_t kOpenJobs = 16;
  std::optional<OpenedFile> kept;
  if (queue_.size() < kOpenJobs) kept = std::move(file);
  enqueue({path, detail, std::move(kept)});
  pump(Wait::none);
}

bool WorkerPool::knows(const std::string& path, FactsDetail detail) const {
  return known_.contains({path, detail});
}

void WorkerPool::enqueue(Job job) {
  known_.emplace(Key(job.path, job.detail), std::nullopt);
  queue_.push_back(std::move(job));
}

Result<FileFacts> WorkerPool::wait_for(const Key& key) {
  const auto entry = known_.find(key);
  const auto wanted =
      entry->second ? queue_.end() : std::find_if(queue_.begin(), queue_.end(), [&](const Job& j) {
        return j.path == key.first && j.detail == key.second;
      });
  if (wanted != queue_.end() && wanted != queue_.begin()) {
    Job job = std::move(*wanted);
    queue_.erase(wanted);
    queue_.push_front(std::move(job));
  }
  for (auto& worker : workers_) worker.reset_deadline();
  while (!entry->second) pump(Wait::for_answers);
  auto result = std::move(*entry->second);
  known_.erase(entry);
  pump(Wait::none);
  return result;
}

void WorkerPool::pump(Wait wait) {
  dispatch();
  std::vector<pollfd> sockets;
  auto next_deadline = Clock::time_point::max();
  for (const auto& worker : workers_) {
    sockets.push_back({worker.socket(), POLLIN, 0});
    if (worker.queued() > 0 || !worker.ready())
      next_deadline = std::min(next_deadline, worker.busy_since() + options_.time_limit);
  }
  int timeout = 0;
  if (wait == Wait::for_answers && next_deadline != Clock::time_point::max()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(next_deadline - Clock::now()).count();
    timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  }
  if (::poll(sockets.data(), sockets.size(), timeout) < 0)
    return;  // EINTR: the caller's loop goes on
  auto socket = sockets.begin();
  for (auto it = workers_.begin(); it != workers_.end(); ++socket) {
    const auto worker = it++;
    bool gone = false;
    if (socket->revents != 0) {
      gone = worker->receive() == WorkerProcess::State::gone;
      collect(*worker);
    }
    const bool overdue = (worker->queued() > 0 || !worker->ready()) &&
                         Clock::now() >= worker->busy_since() + options_.time_limit;
    const bool retired = worker->queued() == 0 && worker->accepted() >= kJobsPerWorker;
    if (retired)
      workers_.erase(worker);
    else if (gone || worker->broken() || (overdue && wait == Wait::for_answers))
      reap_failed(worker, overdue && !gone);
  }
  dispatch();
}

void WorkerPool::collect(WorkerProcess& worker) {
  while (auto answer = worker.answer()) finish(std::move(*answer));
}

void WorkerPool::dispatch() {
  while (!queue_.empty()) {
    auto& next = queue_.front();
    if (!next.file) {
      auto file = open(next.path);
      // Out of descriptors: answers will give some back.
      if (!file && (file.error().code() == EMFILE || file.error().code() == ENFILE) && busy())
        return;
      if (!file) {
        settle(next, fail(std::move(file.error())));
        queue_.pop_front();
        continue;
      }
      next.file = std::move(*file);
    }
    WorkerProcess* worker = worker_for_next_job();
    if (worker == nullptr) return;
    Job job = std::move(queue_.front());
    queue_.pop_front();
    if (auto refused = worker->send(std::move(job), options_.parse_mode)) {
      queue_.push_front(std::move(*refused));
      return;  // it is dying: poll() will say so
    }
  }
}

bool WorkerPool::busy() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const WorkerProcess& worker) { return worker.queued() > 0; });
}

/// The least busy worker, or a new one while jobs wait that the present ones would not get to soon;
/// nullptr: all hands are full.
WorkerProcess* WorkerPool::worker_for_next_job() {
  WorkerProcess* best = nullptr;
  for (auto& worker : workers_)
    if (worker.queued() < kDepth && worker.accepted() < kJobsPerWorker && !worker.broken() &&
        (best == nullptr || worker.queued() < best->queued()))
      best = &worker;
  const bool worth_one_more = best == nullptr || (best->queued() > 0 && queue_.size() > kDepth / 2);
  if (workers_.size() >= options_.max_workers || !worth_one_more) return best;
  auto started = WorkerProcess::start(options_.worker_path, options_.parse_mode);
  if (started) {
    ++counters_.started;
    return &workers_.emplace_back(std::move(*started));
  }
  if (workers_.empty()) fail_all(started.error());
  return best;
}

void WorkerPool::finish(WorkerProcess::Answer answer) {
  Job& job = answer.job;
  if (!job.file->unchanged()) {
    job.file.reset();
    if (++job.attempts < kMaxAttempts) return queue_.push_front(std::move(job));
    return settle(job, fail(damaged(job.path, "it changes while it is read")));
  }
  if (answer.kind == frame_error) return settle(job, fail(told_error(job.path, answer.payload)));
  ByteReader in(answer.payload);
  FileFacts facts;
  facts.stamp = job.file->stamp;
  facts.mode = job.file->mode;
  const auto hash = in.take(facts.hash.bytes.size());
  auto elf = decode_facts(in.take(in.left()));
  if (!in.ok() || !elf)
    return settle(job, fail(damaged(job.path, "the reader gave a damaged answer")));
  std::memcpy(facts.hash.bytes.data(), hash.data(), hash.size());
  facts.elf = std::move(*elf);
  ++counters_.parsed;
  settle(job, std::move(facts));
}

void WorkerPool::reap_failed(std::list<WorkerProcess>::iterator worker, bool overdue) {
  const bool was_ready = worker->ready();
  auto how = worker->end(overdue);
  if (!worker->refusal().empty()) how = worker->refusal();
  auto jobs = worker->take_jobs();
  workers_.erase(worker);
  if (was_ready && !jobs.empty()) {
    // Answers come in order: the first without one is what it died of.
    ++counters_.crashed;
    settle(jobs.front(), fail(damaged(jobs.front().path, how)));
    jobs.pop_front();
  }
  for (auto job = jobs.rbegin(); job != jobs.rend(); ++job) queue_.push_front(std::move(*job));
  if (was_ready) return;
  // Perhaps memory or process limits: those that run do the work, and no more are tried.
  if (workers_.empty())
    fail_all(Error(options_.worker_path, "ended before it was ready", how));
  else
    options_.max_workers = static_cast<unsigned>(workers_.size());
}

void WorkerPool::settle(const Job& job, Result<FileFacts> result) {
  known_.insert_or_assign(Key(job.path, job.detail), std::move(result));
}

void WorkerPool::fail_all(const Error& reason) {
  for (const auto& job : queue_)
    settle(job, fail(Error::with_code(EPROTO, job.path, "no reader for ELF files", reason.message(),
                                      reason.hint())));
  queue_.clear();
}

}  // namespace heddle
