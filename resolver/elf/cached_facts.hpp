// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "base/file_systems.hpp"
#include "resolver/elf/elf_facts.hpp"
#include "resolver/store/record_cache.hpp"

namespace heddle {

struct Reply;

/// `$XDG_CACHE_HOME/heddle` or `~/.cache/heddle`; empty when neither variable is an absolute path,
/// or another user may replace the directory (check_trusted_directory()).
std::string default_cache_dir();

/// Facts cached across runs, by the file's FileStamp: store::RecordCache in the file
/// facts-VERSION-BOOT, of at most 64 MiB. Without a directory that is this user's alone and on a
/// file system of the node's own it is empty.
///
/// A stamp identifies a content only if the content cannot change without it. Hence a file that was
/// changed less than two seconds before the cache was opened is not cached (its next change may
/// fall into the same tick of the file system's clock: git's racy-git.txt), nor one on a file
/// system whose ctime is not a kernel's (see FileSystems).
class FactsCache {
 public:
  /// Makes a missing `dir` (mode 0700); empty: no cache. `now_ns`: when files began to be opened,
  /// for tests; 0: now.
  explicit FactsCache(const std::string& dir, std::int64_t now_ns = 0);

  /// FileFacts::mode is 0. `file_system` as FileSystems::of() gave it.
  std::optional<FileFacts> find(const FileStamp& stamp, FactsDetail detail,
                                std::uint64_t file_system) const;
  /// Adds `facts` unless its stamp is too young.
  void add(const FileFacts& facts, FactsDetail detail, std::uint64_t file_system);
  /// Writes what was added. No effect while another process does the same, or on a full disk.
  void save();

 private:
  std::optional<store::RecordCache> records_;  ///< nullopt: no cache
  std::int64_t opened_ns_;
  std::vector<std::pair<std::string, std::string>> fresh_;
};

struct WorkerPoolOptions {
  /// Empty: `../libexec/heddle/elf-worker` beside the directory of the running program.
  std::string worker_path;
  unsigned max_workers = 0;  ///< 0: one for each usable CPU, at most 16
  /// The directory below which paths are; null: this process' root.
  std::shared_ptr<const Fd> root;
  /// For one file on a file system that hangs; loops end much earlier, by CPU time.
  std::chrono::milliseconds time_limit{120'000};
  /// Of one worker, in bytes. LIEF takes three copies of what it reads.
  std::uint64_t memory = std::uint64_t{3} << 30;
};

enum class CacheUse : std::uint8_t { none, read_write };

struct FactsOptions {
  WorkerPoolOptions pool;
  CacheUse cache = CacheUse::read_write;
  std::string cache_dir;  ///< empty: default_cache_dir()
};

/// For the files below the directory `root` of an image, a trust domain of its own: a worker that
/// one of them subverts can forge the facts of all it reads. So these workers read no other files,
/// and their facts are not cached, where a host's file could have the same stamp. Empty: this
/// process's own root, with the user's cache.
Result<FactsOptions> facts_below(const std::string& root);

/// Facts from the cache, or else from sandboxed worker processes. Each facts() opens the file and
/// compares its stamp; a cached file is not read and needs no worker.
///
/// Workers are started on demand and end with this object. No threads: answers are collected while
/// the caller waits for one. A worker that crashes, hangs or sends an invalid answer costs one
/// error about one file; its other files go to another worker. When no worker can be started, every
/// file fails with EPROTO and the reason.
class CachedFacts : public FactsSource {
 public:
  explicit CachedFacts(FactsOptions options = {});
  ~CachedFacts() override;  ///< saves the cache

  Result<FileFacts> facts(const std::string& path, FactsDetail detail) override;
  void prefetch(const std::vector<std::string>& paths, FactsDetail detail) override;

  /// Saves the cache now; for programs that run for long or end by _exit().
  void save();
  /// Ends the idle workers of a long-running program; facts() starts new ones.
  void end_workers();

  struct Counters {
    std::uint64_t hits = 0;     ///< answers from the cache
    std::uint64_t started = 0;  ///< workers
    std::uint64_t parsed = 0;   ///< files whose facts came from a worker
    std::uint64_t crashed = 0;  ///< workers that died over a file, hung ones included
  };
  const Counters& counters() const { return counters_; }

 private:
  using Key = std::pair<std::string, FactsDetail>;
  /// A regular file, open for reading.
  struct OpenedFile {
    Fd fd;
    FileStamp stamp;
    std::uint32_t mode = 0;
  };
  /// One file to be read. It stays open until the answer, when its stamp is compared again.
  struct Job {
    Key key;
    std::optional<OpenedFile> file;  ///< nullopt: opened when the job is sent
    unsigned attempts = 0;           ///< during which the file changed
  };
  struct Worker;

  FactsCache& cache();
  Result<OpenedFile> open(const std::string& path) const;
  std::optional<FileFacts> look_up(const OpenedFile& file, FactsDetail detail);
  void remember(const FileFacts& facts, FactsDetail detail);
  Result<void> start(const Key& key);
  std::vector<Job> look_up_all(std::vector<Job> jobs);
  void enqueue(std::vector<Job> jobs);

  enum class Wait : std::uint8_t { none, for_answers };
  void pump(Wait wait);
  void dispatch();
  Worker* worker_for_next_job();
  bool collect(Worker& worker);
  void finish(Job job, Reply reply);
  void reap_failed(std::list<Worker>::iterator worker, bool overdue);
  void settle(const Job& job, Result<FileFacts> result);
  void fail_all(const Error& reason);

  FactsOptions options_;
  std::optional<FactsCache> cache_;  ///< opened when first needed
  FileSystems file_systems_;
  std::map<std::pair<FileStamp, FactsDetail>, std::uint64_t>
      to_keep_;  ///< not in the cache, and their file systems
  /// Without a cache: so that a large file is not hashed again for each of its names and closures.
  std::map<std::pair<FileStamp, FactsDetail>, FileFacts> remembered_;
  /// Requested and not yet returned; nullopt: not yet answered.
  std::map<Key, std::optional<Result<FileFacts>>> known_;
  std::deque<Job> queue_;
  std::list<Worker> workers_;
  bool needs_library_path_ = false;  ///< a worker did not start without
  Counters counters_;
};

}  // namespace heddle
