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

namespace heddle {

struct Reply;

/// `$XDG_CACHE_HOME/heddle` or `~/.cache/heddle`; empty when neither variable is an absolute path.
std::string default_cache_dir();

/// Facts kept across runs, for one FactsDetail, by the file's FileStamp. It is never in the way:
/// with no directory, no right to it or a damaged file there are just no hits.
///
/// A stamp stands for a content only if the content cannot change without it. Hence a file that was
/// changed less than two seconds before the cache was opened is not kept (its next change may fall
/// into the same tick of the file system's clock: git's "racily clean" rule, racy-git.txt), nor one
/// on a file system whose ctime is not kept by a kernel (see FileSystems).
///
/// The file: a Checksum of all that follows, then, by base/coder.hpp, kFactsVersion and a list of
/// (key, value). It is read into memory, never mapped: it lies in the user's home, which may be on
/// NFS, and an I/O error is then an errno.
class FactsCache {
 public:
  /// `dir` is made (mode 0700) by save() when it is missing; empty: nothing is kept. `now_ns`: when
  /// files began to be opened, for tests; 0: now.
  FactsCache(std::string dir, FactsDetail detail, std::int64_t now_ns = 0);

  /// What was read of this very file, FileFacts::mode being left 0.
  /// `file_system` as FileSystems::of() gave it.
  std::optional<FileFacts> find(const FileStamp& stamp, std::uint64_t file_system) const;
  /// Keeps `facts` for save(), unless its stamp is too young.
  void add(const FileFacts& facts, std::uint64_t file_system);
  /// Publishes what was added: reads the newest generation, adds, writes aside, renames. When
  /// another process does the same at this moment, or the disk is full, nothing happens.
  void save();

 private:
  using Entries = std::unordered_map<std::string_view, std::string_view>;
  /// A generation of the file at path_, and its entries, which are views into it.
  struct Generation {
    std::string bytes;
    Entries entries;
  };
  Generation load() const;
  void write(const Entries& entries) const;

  std::string dir_;
  std::string path_;
  std::size_t limit_ = 0;
  std::int64_t opened_ns_;
  Generation kept_;
  std::unordered_map<std::string, std::string> fresh_;
};

struct WorkerPoolOptions {
  /// Empty: `../libexec/heddle/elf-worker` beside the directory of the running program.
  std::string worker_path;
  unsigned max_workers = 0;  ///< 0: one for each usable CPU, at most 16
  /// The directory below which paths are; null: this process' root.
  std::shared_ptr<const Fd> root;
  /// Without a sign of life from its worker for so long, a file is given up. Loops end much
  /// earlier, by CPU time: this is for file systems that hang.
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

/// For the files below the directory `root`: an image's, which are a trust domain of their own. A
/// worker that one of them subverts can forge the facts of all it reads: so these workers see no
/// other files, and nothing they say is kept, since another image's file, or the host's, may have
/// the same stamp. Empty: this process' own root, with the user's cache.
Result<FactsOptions> facts_below(const std::string& root);

/// Where programs have their facts from: the cache, and sandboxed worker processes for what is not
/// in it. Every file is opened and its stamp compared at each facts(); one that is in the cache is
/// not read and starts no worker.
///
/// Workers are started when there is work and ended with this object. No threads: answers are
/// collected while the caller waits for one. A worker that crashes, hangs or answers nonsense costs
/// one error about one file; its other files go to another worker. When no worker can be started at
/// all, every file fails with EPROTO and the reason.
class CachedFacts : public FactsSource {
 public:
  explicit CachedFacts(FactsOptions options = {});
  /// Saves the cache.
  ~CachedFacts() override;

  Result<FileFacts> facts(const std::string& path, FactsDetail detail) override;
  void prefetch(const std::vector<std::string>& paths, FactsDetail detail) override;

  /// Writes what is new into the cache now; for programs that go on for long or end by _exit().
  void save();
  /// Ends the workers: for programs that go on without asking for facts. Later facts() start new
  /// ones.
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
  /// A regular file open for reading, and what fstat(2) said of it then.
  struct OpenedFile {
    Fd fd;
    FileStamp stamp;
    std::uint32_t mode = 0;
  };
  /// One file on its way through a worker. It stays open here until the answer is in, so that stamp
  /// and content are known to belong together.
  struct Job {
    Key key;
    std::optional<OpenedFile> file;  ///< opened when the job is sent, unless it came so
    unsigned attempts = 0;           ///< readings that a change of the file spoilt
  };
  struct Worker;

  FactsCache* cache(FactsDetail detail);
  Result<OpenedFile> open(const std::string& path) const;
  std::optional<FileFacts> look_up(const OpenedFile& file, FactsDetail detail);
  Result<void> start(const Key& key);

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
  std::optional<FactsCache> caches_[2];
  FileSystems file_systems_;
  std::map<std::pair<FileStamp, FactsDetail>, std::uint64_t>
      to_keep_;  ///< not in the cache, and their file systems
  /// What was asked for and not yet given out; nullopt: not yet answered.
  std::map<Key, std::optional<Result<FileFacts>>> known_;
  std::deque<Job> queue_;
  std::list<Worker> workers_;
  Counters counters_;
};

}  // namespace heddle
