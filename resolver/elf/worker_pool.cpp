// SPDX-License-Identifier: MIT
#include "resolver/elf/worker_pool.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/child.hpp"
#include "base/open_regular.hpp"
#include "resolver/elf/worker_protocol.hpp"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

/// Jobs a worker holds: enough that it never waits for us, few enough that little is sent again
/// when it crashes and few descriptors are in flight.
constexpr std::size_t kDepth = 8;
/// Files that wait for a worker open. Too many open files are worse than opening one twice.
constexpr std::size_t kMostOpenJobs = 16;
/// LIEF 0.9 leaks on some errors: a worker is replaced before that matters.
constexpr std::size_t kJobsPerWorker = 2000;
constexpr unsigned kMaxAttempts = 3;

Error cannot_read(const std::string& path, const std::string& reason) {
  return Error::with_code(EBADMSG, path, "cannot read as ELF", reason);
}

std::string how_it_ended(int status) {
  if (status < 128) return fmt::format("the reader ended with status {}", status);
  const int number = status - 128;
  switch (number) {
    case SIGXCPU:
      return "the reader used up its time";
    case SIGSYS:
      return "the reader made a forbidden system call (SIGSYS)";
    case SIGKILL:
      return "the reader was killed";
    default:
      return fmt::format("the reader crashed ({})", ::strsignal(number));
  }
}

}  // namespace

/// A running elf-worker and the jobs it was sent. Answers come in the order of the jobs.
struct WorkerPool::Worker {
  Child child;
  Fd socket;
  std::deque<Job> jobs{};
  std::size_t accepted = 0;
  Clock::time_point busy_since = Clock::now();
  std::string input{};    ///< pieces of a reply
  bool ready = false;     ///< its sandbox is closed
  bool broken = false;    ///< it sent what no worker sends
  std::string refusal{};  ///< what it said instead of being ready

  static Result<Worker> start(const WorkerPoolOptions& options) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      return fail_errno("", "cannot make a socket");
    Fd ours(ends[0]);
    const Fd theirs(ends[1]);
    SpawnOptions spawn_options;
    spawn_options.fds = {{theirs.get(), kWorkerSocket}};
    // LD_PRELOAD and LD_AUDIT would only do harm in there; where the loader finds the worker's
    // libraries (a compiler's, of a module) is what it is for us.
    spawn_options.environment.emplace();
    if (const char* dirs = std::getenv("LD_LIBRARY_PATH"))
      spawn_options.environment->push_back(std::string("LD_LIBRARY_PATH=") + dirs);
    Child child = TRY(
        spawn(options.worker_path, {"elf-worker", std::to_string(options.memory)}, spawn_options));
    return Worker{std::move(child), std::move(ours)};
  }

  bool waits() const { return !jobs.empty() || !ready; }

  /// Ends the process, waits for it and says how it ended ("the reader crashed (...)").
  std::string end(bool overdue) {
    if (!refusal.empty()) return refusal;
    // When its socket is closed it is ending by itself, and the user wants to know how.
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

Result<OpenedFile> OpenedFile::open(const std::string& path, int root) {
  auto fd = root < 0 ? open_regular(path) : open_regular_in(root, path);
  if (!fd && fd.error().code() == ENOEXEC)
    return fail(Error::with_code(ENOEXEC, path, "not an ELF file", "not a regular file"));
  if (!fd) return fail(std::move(fd.error()));
  struct stat st {};
  if (::fstat(fd->get(), &st) != 0) return fail_errno(path, "cannot read");
  return OpenedFile{std::move(*fd), file_stamp(st), st.st_mode};
}

bool OpenedFile::unchanged() const {
  struct stat st {};
  return ::fstat(fd.get(), &st) == 0 && file_stamp(st) == stamp;
}

unsigned usable_cpus() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::clamp(static_cast<unsigned>(CPU_COUNT(&set)), 1U, 16U);
}

WorkerPool::WorkerPool(WorkerPoolOptions options) : options_(std::move(options)) {
  if (options_.worker_path.empty())
    options_.worker_path = own_program_dir().value_or("") + "/../libexec/heddle/elf-worker";
  if (options_.max_workers == 0) options_.max_workers = usable_cpus();
}

WorkerPool::~WorkerPool() = default;

Result<OpenedFile> WorkerPool::open(const std::string& path) const {
  return OpenedFile::open(path, options_.root ? options_.root->get() : -1);
}

void WorkerPool::start(const std::string& path, OpenedFile file, FactsDetail detail) {
  if (knows(path, detail)) return;
  std::optional<OpenedFile> kept;
  if (queue_.size() < kMostOpenJobs) kept = std::move(file);
  known_.emplace(Key(path, detail), std::nullopt);
  queue_.push_back({{path, detail}, std::move(kept)});
  pump(Wait::none);
}

bool WorkerPool::knows(const std::string& path, FactsDetail detail) const {
  return known_.contains({path, detail});
}

Result<FileFacts> WorkerPool::wait(const std::string& path, FactsDetail detail) {
  const auto entry = known_.find({path, detail});
  if (entry == known_.end()) return fail_errno(path, "cannot read as ELF", EINVAL);
  const auto wanted = std::find_if(queue_.begin(), queue_.end(),
                                   [&](const Job& job) { return job.key == entry->first; });
  if (wanted != queue_.end()) std::rotate(queue_.begin(), wanted, wanted + 1);
  // The pool did not look for answers in the meantime.
  for (auto& worker : workers_) worker.busy_since = Clock::now();
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
    sockets.push_back({worker.socket.get(), POLLIN, 0});
    if (worker.waits())
      next_deadline = std::min(next_deadline, worker.busy_since + options_.time_limit);
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
                         Clock::now() >= worker->busy_since + options_.time_limit;
    if (gone || overdue)
      reap_failed(worker, overdue && !gone);
    else if (worker->jobs.empty() && worker->accepted >= kJobsPerWorker)
      workers_.erase(worker);
  }
  dispatch();
}

/// Takes what has arrived. False: the worker has ended, or is to be ended.
bool WorkerPool::collect(Worker& worker) {
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
    worker.busy_since = Clock::now();  // by whole replies: one byte by byte would never be late
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

void WorkerPool::dispatch() {
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

/// The least busy worker, or a new one while jobs wait that the present ones would not get to soon;
/// nullptr: all are full.
WorkerPool::Worker* WorkerPool::worker_for_next_job() {
  Worker* best = nullptr;
  for (auto& worker : workers_)
    if (worker.jobs.size() < kDepth && worker.accepted < kJobsPerWorker &&
        (best == nullptr || worker.jobs.size() < best->jobs.size()))
      best = &worker;
  const bool worth_one_more =
      best == nullptr || (!best->jobs.empty() && queue_.size() > kDepth / 2);
  if (workers_.size() >= options_.max_workers || !worth_one_more) return best;
  auto started = Worker::start(options_);
  if (started) {
    ++counters_.started;
    return &workers_.emplace_back(std::move(*started));
  }
  if (workers_.empty()) fail_all(started.error());
  return best;
}

void WorkerPool::finish(Job job, Reply reply) {
  const std::string& path = job.key.first;
  if (!job.file->unchanged()) {
    job.file.reset();
    if (++job.attempts < kMaxAttempts) return queue_.push_front(std::move(job));
    return settle(job, fail(cannot_read(path, "it changes while it is read")));
  }
  if (reply.code != 0) {
    // Only the codes that FactsSource promises come through.
    const bool known = reply.code == ENOEXEC || reply.code == EIO;
    return settle(job, fail(Error::with_code(known ? reply.code : EBADMSG, path, reply.message)));
  }
  ++counters_.parsed;
  settle(job, FileFacts{job.file->stamp, job.file->mode, reply.hash, std::move(reply.facts)});
}

void WorkerPool::reap_failed(std::list<Worker>::iterator worker, bool overdue) {
  const bool was_ready = worker->ready;
  const auto how = worker->end(overdue);
  auto jobs = std::move(worker->jobs);
  workers_.erase(worker);
  if (was_ready && !jobs.empty()) {
    // Answers come in order: the first file without one is what it died of.
    ++counters_.crashed;
    settle(jobs.front(), fail(cannot_read(jobs.front().key.first, how)));
    jobs.pop_front();
  }
  queue_.insert(queue_.begin(), std::make_move_iterator(jobs.begin()),
                std::make_move_iterator(jobs.end()));
  if (was_ready) return;
  // Perhaps memory or process limits: those that run do the work, and no more are tried.
  if (workers_.empty())
    fail_all(Error(options_.worker_path, "ended before it was ready", how));
  else
    options_.max_workers = static_cast<unsigned>(workers_.size());
}

void WorkerPool::settle(const Job& job, Result<FileFacts> result) {
  known_.insert_or_assign(job.key, std::move(result));
}

void WorkerPool::fail_all(const Error& reason) {
  for (const auto& job : queue_)
    settle(job, fail(Error::with_code(EPROTO, job.key.first, "no reader for ELF files",
                                      reason.message(), reason.hint())));
  queue_.clear();
}

}  // namespace heddle
