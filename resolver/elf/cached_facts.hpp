// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "resolver/elf/facts_cache.hpp"
#include "resolver/elf/worker_pool.hpp"

namespace heddle {

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

/// Worker pool and cache together: what programs use. Every file is opened and its stamp compared
/// at each facts(); a file found in the cache is not read and starts no worker.
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
    std::uint64_t hits = 0;  ///< answers from the cache
    std::uint64_t started = 0;
    std::uint64_t parsed = 0;
    std::uint64_t crashed = 0;
  };
  Counters counters() const;

 private:
  using Key = std::pair<std::string, FactsDetail>;
  FactsCache* cache(FactsDetail detail);
  std::optional<FileFacts> look_up(const OpenedFile& file, FactsDetail detail);

  FactsOptions options_;
  std::unique_ptr<WorkerPool> pool_;
  Counters past_;  ///< of pools that were ended, and the hits
  std::optional<FactsCache> caches_[2];
  FileSystems file_systems_;
  std::map<Key, FileFacts> found_;              ///< by prefetch()
  std::map<FileStamp, std::uint64_t> to_keep_;  ///< misses, and their file systems
};

}  // namespace heddle
