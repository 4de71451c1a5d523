// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/fd.hpp"
#include "resolver/elf/facts_source.hpp"

namespace heddle {

struct Reply;

/// A regular file open for reading, and what fstat(2) said of it then.
struct OpenedFile {
  Fd fd;
  FileStamp stamp;
  std::uint32_t mode = 0;

  /// By open_regular(), below the directory `root` (-1: this process' own) by open_regular_in().
  /// What is not a regular file is refused with ENOEXEC (EISDIR for a directory).
  static Result<OpenedFile> open(const std::string& path, int root = -1);
  /// Whether the file is still what it was when it was opened.
  bool unchanged() const;
};

/// The CPUs this process may use, at most 16.
unsigned usable_cpus();

struct WorkerPoolOptions {
  /// Empty: `../libexec/heddle/elf-worker` beside the directory of the running program.
  std::string worker_path;
  unsigned max_workers = 0;  ///< 0: usable_cpus()
  /// The directory below which paths are; null: this process' root.
  std::shared_ptr<const Fd> root;
  /// Without a sign of life from its worker for so long, a file is given up. Loops end much
  /// earlier, by CPU time: this is for file systems that hang.
  std::chrono::milliseconds time_limit{120'000};
  /// Of one worker, in bytes. LIEF takes three copies of what it reads.
  std::uint64_t memory = std::uint64_t{3} << 30;
};

/// Reads ELF files in sandboxed worker processes, started when there is work and ended with the
/// pool. No threads: answers are collected while the caller waits for one. A worker that crashes,
/// hangs or answers nonsense costs one error about one file; its other files go to another worker.
/// When no worker can be started at all, every file fails with EPROTO and the reason.
class WorkerPool {
 public:
  explicit WorkerPool(WorkerPoolOptions options);
  ~WorkerPool();

  /// Opens the file that these workers know as `path`.
  Result<OpenedFile> open(const std::string& path) const;
  /// Starts reading `file`. One that changes while it is read is opened again by `path`.
  void start(const std::string& path, OpenedFile file, FactsDetail detail);
  /// Whether `path` was started and not yet fetched by wait().
  bool knows(const std::string& path, FactsDetail detail) const;
  /// Waits for the facts of a file that was started; failures as of FactsSource::facts().
  Result<FileFacts> wait(const std::string& path, FactsDetail detail);

  struct Counters {
    std::uint64_t started = 0;  ///< workers
    std::uint64_t parsed = 0;   ///< files whose facts came from a worker
    std::uint64_t crashed = 0;  ///< workers that died over a file, hung ones included
  };
  const Counters& counters() const { return counters_; }

 private:
  using Key = std::pair<std::string, FactsDetail>;
  /// One file on its way through a worker. It stays open here until the answer is in, so that stamp
  /// and content are known to belong together.
  struct Job {
    Key key;
    std::optional<OpenedFile> file;  ///< opened when the job is sent, unless it came so
    unsigned attempts = 0;           ///< readings that a change of the file spoilt
  };
  struct Worker;

  enum class Wait : std::uint8_t { none, for_answers };
  void pump(Wait wait);
  void dispatch();
  Worker* worker_for_next_job();
  bool collect(Worker& worker);
  void finish(Job job, Reply reply);
  void reap_failed(std::list<Worker>::iterator worker, bool overdue);
  void settle(const Job& job, Result<FileFacts> result);
  void fail_all(const Error& reason);

  WorkerPoolOptions options_;
  std::list<Worker> workers_;
  std::deque<Job> queue_;
  std::map<Key, std::optional<Result<FileFacts>>> known_;  ///< nullopt: not yet answered
  Counters counters_;
};

}  // namespace heddle
