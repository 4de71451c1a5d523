// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "resolver/elf/facts_source.hpp"
#include "resolver/elf/worker_process.hpp"

namespace heddle {

/// `<own program's folder>/../libexec/heddle/elf-worker`.
Result<std::string> default_worker_path();

/// The CPUs this process may use, at most 16.
unsigned usable_cpus();

struct WorkerPoolOptions {
  std::string worker_path;   ///< empty: default_worker_path()
  unsigned max_workers = 0;  ///< 0: usable_cpus()
  std::shared_ptr<const Fd>
      root;  ///< the directory below which paths are; null: this process' root
  /// Without a sign of life from its worker for so long, a file is given up. Loops end much
  /// earlier, by CPU time: this is for file systems that hang.
  std::chrono::milliseconds time_limit{120'000};
  ParseMode parse_mode = ParseMode::automatic;
};

/// Reads ELF files in sandboxed worker processes, started when there is work and ended with the
/// pool. No threads: answers are collected while somebody waits for one. A worker that crashes,
/// hangs or answers nonsense costs one error about one file; its other files go to another worker.
/// When no worker can be started at all, every file fails with EPROTO and the reason.
class WorkerPool : public FactsSource {
 public:
  explicit WorkerPool(WorkerPoolOptions options = {});
  ~WorkerPool() override;

  Result<FileFacts> facts(const std::string& path, FactsDetail detail) override;
  void prefetch(const std::vector<std::string>& paths, FactsDetail detail) override;

  /// As facts() and prefetch(), for a file that the caller has opened already. A file that changes
  /// while it is read is opened again by `path`.
  Result<FileFacts> facts(const std::string& path, OpenedFile file, FactsDetail detail);
  void prefetch(const std::string& path, OpenedFile file, FactsDetail detail);
  /// The file that these workers know as `path`.
  Result<OpenedFile> open(const std::string& path) const;
  /// Whether a prefetch of `path` is waiting, under way or done and not yet fetched.
  bool knows(const std::string& path, FactsDetail detail) const;

  struct Counters {
    std::uint64_t started = 0;  ///< workers
    std::uint64_t parsed = 0;   ///< files whose facts came from a worker
    std::uint64_t crashed = 0;  ///< workers that died over a file, hung ones included
  };
  const Counters& counters() const { return counters_; }

 private:
  using Key = std::pair<std::string, FactsDetail>;
  enum class Wait : std::uint8_t { none, for_answers };

  void enqueue(Job job);
  void pump(Wait wait);
  void dispatch();
  bool busy() const;
  WorkerProcess* worker_for_next_job();
  void collect(WorkerProcess& worker);
  void finish(WorkerProcess::Answer answer);
  void reap_failed(std::list<WorkerProcess>::iterator worker, bool overdue);
  void settle(const Job& job, Result<FileFacts> result);
  void fail_all(const Error& reason);
  Result<FileFacts> wait_for(const Key& key);

  WorkerPoolOptions options_;
  std::list<WorkerProcess> workers_;
  std::deque<Job> queue_;
  std::map<Key, std::optional<Result<FileFacts>>> known_;  ///< nullopt: not yet answered
  Counters counters_;
};

}  // namespace heddle
