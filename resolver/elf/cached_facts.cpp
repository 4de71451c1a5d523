// SPDX-License-Identifier: MIT
#include "resolver/elf/cached_facts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/channel.hpp"
#include "base/child.hpp"
#include "base/open_regular.hpp"
#include "base/task_pool.hpp"
#include "resolver/elf/worker_protocol.hpp"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

/// A worker's limit for files of an image, which must not exhaust the machine's memory.
constexpr std::uint64_t kMemoryForImages = std::uint64_t{512} << 20;
/// Jobs sent to a worker ahead: it never idles, and a crash repeats few.
constexpr std::size_t kDepth = 8;
/// Queued jobs whose file stays open; the others open it again.
constexpr std::size_t kMostOpenJobs = 128;
/// What is read of a file before its worker does: nearly all of most libraries.
constexpr std::uint64_t kReadAhead = std::uint64_t{4} << 20;
/// LIEF 0.9 leaks on some errors: a worker is replaced after so many jobs.
constexpr std::size_t kJobsPerWorker = 2000;
/// To read a file that changes meanwhile; a new hard link counts as a change.
constexpr unsigned kMaxAttempts = 3;
/// An image chooses how many files are read, and how long their strings are: at worst 64 MiB.
constexpr std::size_t kMostRemembered = 1024;
constexpr std::size_t kLargestRemembered = std::size_t{64} << 10;

Error cannot_read(const std::string& path, const std::string& reason) {
  return Error::with_code(EBADMSG, path, "cannot read as ELF", reason);
}

std::string how_it_ended(int status) {
  if (status < 128) return fmt::format("the reader ended with status {}", status);
  return fmt::format("the reader crashed ({})", ::strsignal(status - 128));
}

unsigned usable_cpus() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::clamp(static_cast<unsigned>(CPU_COUNT(&set)), 1U, 16U);
}

/// The user's, in which LIEF may be. A worker gets it only if it cannot start without: ld.so would
/// look for its libraries in each of those directories.
const char* library_path() {
  const char* directories = std::getenv("LD_LIBRARY_PATH");
  return directories ? directories : "";
}

}  // namespace

/// A running elf-worker and the jobs it was sent. Answers come in the order of the jobs.
struct CachedFacts::Worker {
  Child child;
  Fd socket;
  std::deque<Job> jobs{};
  std::size_t accepted = 0;
  Clock::time_point busy_since = Clock::now();
  std::string input{};     ///< pieces of a reply
  bool with_path = false;  ///< it has the user's LD_LIBRARY_PATH
  bool ready = false;      ///< its sandbox is closed
  bool broken = false;     ///< it sent an invalid message
  std::string refusal{};   ///< its reason not to be ready

  static Result<Worker> start(const WorkerPoolOptions& options, bool with_path) {
    auto sockets = TRY(make_socket_pair());
    SpawnOptions spawn_options;
    const Fd null = TRY(open_file("/dev/null", O_WRONLY));
    spawn_options.fds = {{sockets.other.get(), kWorkerSocket}};
    spawn_options.environment.emplace();  // the user's variables are meant for APP
    if (with_path)
      spawn_options.environment->push_back(std::string("LD_LIBRARY_PATH=") + library_path());
    else if (*library_path())
      spawn_options.fds.emplace_back(null.get(), STDERR_FILENO);  // what ld.so says
    Child child = TRY(
        spawn(options.worker_path, {"elf-worker", std::to_string(options.memory)}, spawn_options));
    Worker worker{std::move(child), std::move(sockets.one)};
    worker.with_path = with_path;
    return worker;
  }

  bool waits() const { return !jobs.empty() || !ready; }

  /// Ends the process; result: how it ended ("the reader crashed (...)").
  std::string end(bool overdue) {
    if (!refusal.empty()) return refusal;
    // After it closed its socket it ends by itself, with a status worth reporting.
    std::optional<int> status;
    if (!overdue && !broken)
      if (const auto ended = child.wait_for(std::chrono::seconds(2))) status = *ended;
    if (status) return how_it_ended(*status);
    ::kill(child.pid(), SIGKILL);
    static_cast<void>(child.wait());
    return overdue  ? "the reader hung"
           : broken ? "the reader gave a damaged answer"
                    : "the reader closed its socket";
  }
};

Result<FactsOptions> facts_below(const std::string& root) {
  FactsOptions options;
  if (root.empty()) return options;
  Fd opened = TRY(open_file(root, O_PATH | O_DIRECTORY));
  options.cache = CacheUse::none;
  options.pool.root = std::make_shared<const Fd>(std::move(opened));
  options.pool.max_workers = std::min(usable_cpus(), 4U);
  options.pool.memory = kMemoryForImages;
  return options;
}

CachedFacts::CachedFacts(FactsOptions options) : options_(std::move(options)) {
  if (options_.cache == CacheUse::none)
    options_.cache_dir.clear();
  else if (options_.cache_dir.empty())
    options_.cache_dir = default_cache_dir();
  auto& pool = options_.pool;
  if (pool.worker_path.empty())
    pool.worker_path = own_program_dir().value_or("") + "/../libexec/heddle/elf-worker";
  if (pool.max_workers == 0) pool.max_workers = usable_cpus();
}

CachedFacts::~CachedFacts() { save(); }

Result<CachedFacts::OpenedFile> CachedFacts::open(const std::string& path) const {
  const auto& root = options_.pool.root;
  auto fd = root ? open_regular_in(root->get(), path) : open_regular(path);
  if (!fd && fd.error().code() == ENOEXEC)
    return fail(Error::with_code(ENOEXEC, path, "not an ELF file", "not a regular file"));
  if (!fd) return fail(std::move(fd.error()));
  struct stat st {};
  if (::fstat(fd->get(), &st) != 0) return fail_errno(path, "cannot read");
  return OpenedFile{std::move(*fd), file_stamp(st), st.st_mode};
}

FactsCache& CachedFacts::cache() {
  if (!cache_) cache_.emplace(options_.cache_dir);
  return *cache_;
}

std::optional<FileFacts> CachedFacts::look_up(const OpenedFile& file, FactsDetail detail) {
  if (options_.cache_dir.empty()) {
    const auto found = remembered_.find(std::pair(file.stamp, detail));
    return found == remembered_.end() ? std::nullopt : std::optional(found->second);
  }
  const auto file_system = file_systems_.of(file.fd.get(), file.stamp);
  if (!file_system) return std::nullopt;
  auto facts = cache().find(file.stamp, detail, *file_system);
  if (facts) {
    ++counters_.hits;
    facts->mode = file.mode;
  } else {
    to_keep_.emplace(std::pair(file.stamp, detail), *file_system);
  }
  return facts;
}

Result<void> CachedFacts::start(const Key& key) {
  if (known_.contains(key)) return {};
  std::vector<Job> jobs(1);
  jobs[0].key = key;
  jobs[0].file = TRY(open(key.first));
  enqueue(look_up_all(std::move(jobs)));
  return {};
}

/// Settles those that are cached; result: the others.
std::vector<CachedFacts::Job> CachedFacts::look_up_all(std::vector<Job> jobs) {
  std::erase_if(jobs, [&](Job& job) {
    auto cached = look_up(*job.file, job.key.second);
    if (cached) known_.emplace(job.key, std::move(*cached));
    return cached.has_value();
  });
  return jobs;
}

void CachedFacts::enqueue(std::vector<Job> jobs) {
  for (auto& job : jobs) {
    if (queue_.size() >= kMostOpenJobs) job.file.reset();
    known_.emplace(job.key, std::nullopt);
    queue_.push_back(std::move(job));
  }
  pump(Wait::none);
}

/// Opens and reads many at once, which the few workers would do one by one.
void CachedFacts::prefetch(const std::vector<std::string>& paths, FactsDetail detail) {
  std::vector<Key> keys;
  for (const auto& path : paths)
    if (Key key(path, detail); !known_.contains(key)) keys.push_back(std::move(key));
  std::ranges::sort(keys);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  for (std::size_t first = 0; first < keys.size(); first += kMostOpenJobs) {
    std::vector<Job> jobs(std::min(kMostOpenJobs, keys.size() - first));
    for_each_at_once(jobs.size(), [&](std::size_t i) {
      jobs[i].key = keys[first + i];
      if (auto file = open(jobs[i].key.first)) jobs[i].file = std::move(*file);
    });
    std::erase_if(jobs, [](const Job& job) { return !job.file; });  // facts() will say why
    jobs = look_up_all(std::move(jobs));
    for_each_at_once(jobs.size(), [&](std::size_t i) {
      const auto& file = *jobs[i].file;
      (void)::readahead(file.fd.get(), 0, std::min(file.stamp.size, kReadAhead));
    });
    while (!queue_.empty() && queue_.size() + jobs.size() > kMostOpenJobs && !workers_.empty())
      pump(Wait::for_answers);
    enqueue(std::move(jobs));
  }
}

Result<FileFacts> CachedFacts::facts(const std::string& path, FactsDetail detail) {
  const Key key(path, detail);
  TRY(start(key));
  const auto entry = known_.find(key);
  if (!entry->second) {
    const auto wanted = std::ranges::find(queue_, key, &Job::key);
    if (wanted != queue_.end()) std::rotate(queue_.begin(), wanted, wanted + 1);
    // The time since the last pump() does not count.
    for (auto& worker : workers_) worker.busy_since = Clock::now();
    while (!entry->second) pump(Wait::for_answers);
  }
  auto result = std::move(*entry->second);
  known_.erase(entry);
  pump(Wait::none);
  if (result && options_.cache_dir.empty()) remember(*result, detail);
  // Not cached if the file was replaced between look-up and reading.
  if (result)
    if (const auto kept = to_keep_.extract(std::pair(result->stamp, detail)))
      cache().add(*result, detail, kept.mapped());
  return result;
}

void CachedFacts::remember(const FileFacts& facts, FactsDetail detail) {
  if (remembered_.size() >= kMostRemembered) return;
  Encoder coder;
  coder(facts.elf);
  if (coder.take().size() <= kLargestRemembered)
    remembered_.try_emplace(std::pair(facts.stamp, detail), facts);
}

void CachedFacts::save() {
  if (cache_) cache_->save();
}

void CachedFacts::end_workers() {
  workers_.clear();
  queue_.clear();
  known_.clear();
  remembered_.clear();
}

void CachedFacts::pump(Wait wait) {
  if (queue_.empty() && workers_.empty()) return;
  dispatch();
  std::vector<pollfd> sockets;
  auto next_deadline = Clock::time_point::max();
  for (const auto& worker : workers_) {
    sockets.push_back({worker.socket.get(), POLLIN, 0});
    if (worker.waits())
      next_deadline = std::min(next_deadline, worker.busy_since + options_.pool.time_limit);
  }
  int timeout = 0;
  if (wait == Wait::for_answers && next_deadline != Clock::time_point::max()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(next_deadline - Clock::now()).count();
    timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  }
  if (::poll(sockets.data(), sockets.size(), timeout) < 0) return;  // EINTR: called again
  auto socket = sockets.begin();
  for (auto it = workers_.begin(); it != workers_.end(); ++socket) {
    const auto worker = it++;
    const bool gone = socket->revents != 0 && !collect(*worker);
    const bool overdue = wait == Wait::for_answers && worker->waits() &&
                         Clock::now() >= worker->busy_since + options_.pool.time_limit;
    if (gone || overdue)
      reap_failed(worker, overdue && !gone);
    else if (worker->jobs.empty() && worker->accepted >= kJobsPerWorker)
      workers_.erase(worker);
  }
  dispatch();
}

/// Receives replies. False: the worker has ended or must be ended.
bool CachedFacts::collect(Worker& worker) {
  for (;;) {
    auto received = receive_record<Piece>(worker.socket.get(), std::chrono::milliseconds(0));
    if (!received && received.error().code() == ETIMEDOUT) return true;
    if (!received) {
      worker.broken = received.error().code() == EPROTO;
      return false;
    }
    const Piece& piece = received->message;
    worker.input += piece.bytes;
    worker.broken = piece.bytes.empty() || worker.input.size() > kLongestReply;
    if (worker.broken) return false;
    if (!piece.last) continue;
    worker.busy_since = Clock::now();  // only whole replies count as progress
    Reply reply;
    const std::string bytes = std::exchange(worker.input, {});
    Decoder decoder(bytes);
    decoder(reply);
    if (!decoder.complete() || !is_sound(reply.facts)) {
      reply.code = EBADMSG;
      reply.message = "the reader gave a damaged answer";
    }
    if (!worker.ready) {
      worker.ready = reply.code == 0 && reply.version == kFactsVersion;
      if (worker.ready) continue;
      worker.refusal = reply.code != 0 ? reply.message : "it is of another version of heddle";
      return false;
    }
    worker.broken = worker.jobs.empty();
    if (worker.broken) return false;
    Job job = std::move(worker.jobs.front());
    worker.jobs.pop_front();
    finish(std::move(job), std::move(reply));
  }
}

void CachedFacts::dispatch() {
  while (!queue_.empty()) {
    auto& next = queue_.front();
    if (!next.file) {
      auto file = open(next.key.first);
      if (!file) {
        settle(next, fail(std::move(file.error())));
        queue_.pop_front();
        continue;
      }
      next.file = std::move(*file);
    }
    Worker* worker = worker_for_next_job();
    if (worker == nullptr) return;
    const Request request{next.file->stamp.size, next.key.second};
    const int fds[] = {next.file->fd.get()};
    if (!send_record(worker->socket.get(), request, fds)) return;  // dying: poll() tells
    if (worker->jobs.empty()) worker->busy_since = Clock::now();
    ++worker->accepted;
    worker->jobs.push_back(std::move(next));
    queue_.pop_front();
  }
}

/// The least busy worker, or a new one if more jobs wait than it will soon get to; nullptr: all are
/// full.
CachedFacts::Worker* CachedFacts::worker_for_next_job() {
  Worker* best = nullptr;
  for (auto& worker : workers_)
    if (worker.jobs.size() < kDepth && worker.accepted < kJobsPerWorker &&
        (best == nullptr || worker.jobs.size() < best->jobs.size()))
      best = &worker;
  const bool worth_one_more =
      best == nullptr || (!best->jobs.empty() && queue_.size() > kDepth / 2);
  if (workers_.size() >= options_.pool.max_workers || !worth_one_more) return best;
  auto started = Worker::start(options_.pool, needs_library_path_);
  if (started) {
    ++counters_.started;
    return &workers_.emplace_back(std::move(*started));
  }
  if (workers_.empty()) fail_all(started.error());
  return best;
}

void CachedFacts::finish(Job job, Reply reply) {
  const std::string& path = job.key.first;
  struct stat st {};
  if (::fstat(job.file->fd.get(), &st) != 0 || file_stamp(st) != job.file->stamp) {
    job.file.reset();
    if (++job.attempts < kMaxAttempts) return queue_.push_front(std::move(job));
    return settle(job, fail(cannot_read(path, "it changes while it is read")));
  }
  if (reply.code != 0) {
    // Only the codes that FactsSource documents.
    const bool known = reply.code == ENOEXEC || reply.code == EIO;
    return settle(job, fail(Error::with_code(known ? reply.code : EBADMSG, path, reply.message)));
  }
  ++counters_.parsed;
  settle(job, FileFacts{job.file->stamp, job.file->mode, reply.hash, std::move(reply.facts)});
}

void CachedFacts::reap_failed(std::list<Worker>::iterator worker, bool overdue) {
  const bool was_ready = worker->ready;
  const bool had_path = worker->with_path;
  const auto how = worker->end(overdue);
  auto jobs = std::move(worker->jobs);
  workers_.erase(worker);
  if (was_ready && !jobs.empty()) {
    // Answers come in order: the first file without one crashed it.
    ++counters_.crashed;
    settle(jobs.front(), fail(cannot_read(jobs.front().key.first, how)));
    jobs.pop_front();
  }
  queue_.insert(queue_.begin(), std::make_move_iterator(jobs.begin()),
                std::make_move_iterator(jobs.end()));
  if (was_ready) return;
  if (!had_path && *library_path()) {
    needs_library_path_ = true;
    return;
  }
  // Perhaps memory or process limits: continue with the workers that run.
  if (workers_.empty())
    fail_all(Error(options_.pool.worker_path, "ended before it was ready", how));
  else
    options_.pool.max_workers = static_cast<unsigned>(workers_.size());
}

void CachedFacts::settle(const Job& job, Result<FileFacts> result) {
  known_.insert_or_assign(job.key, std::move(result));
}

void CachedFacts::fail_all(const Error& reason) {
  for (const auto& job : queue_)
    settle(job, fail(Error::with_code(EPROTO, job.key.first, "no reader for ELF files",
                                      reason.message(), reason.hint())));
  queue_.clear();
}

}  // namespace heddle
