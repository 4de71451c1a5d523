// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compat/checker.hpp"
#include "resolver/elf/cached_facts.hpp"

namespace heddle::compat {

struct NodeIndexOptions {
  std::string root = {};                       ///< empty: this node
  std::string cache_dir = {};                  ///< directory of the index; empty: the user's cache
  std::vector<std::string> library_dirs = {};  ///< opened beside the loader's own directories
  std::string worker_path = {};                ///< of elf-worker; empty: as for programs in bin
  /// LibraryDirectories::on_look
  std::function<void(std::string_view directory)> on_look = {};
};

/// The node's facts in LMDB. CachedFacts does not read a prefetched file again: renew() starts
/// over.
class FreshFacts final : public FactsSource {
 public:
  explicit FreshFacts(FactsOptions options) : options_(std::move(options)) { renew(); }
  void renew() {
    facts_.reset();  // LMDB: a file is open once a process
    facts_ = std::make_unique<CachedFacts>(options_);
  }
  Result<FileFacts> facts(const std::string& path, FactsDetail detail) override {
    return facts_->facts(path, detail);
  }
  void prefetch(const std::vector<std::string>& paths, FactsDetail detail) override {
    facts_->prefetch(paths, detail);
  }
  CachedFacts& cache() { return *facts_; }

 private:
  FactsOptions options_;
  std::unique_ptr<CachedFacts> facts_;
};

/// This node's libraries, for verdicts. Of the files that an artifact names it opens only those in
/// the loader's directories, those of ld.so.cache and /etc/ld.so.preload, and the options'. Not for
/// concurrent use.
class NodeIndex {
 public:
  /// Throws Error when the node's loader is not supported.
  explicit NodeIndex(NodeIndexOptions options);

  /// Reads every library of the loader's directories and of ld.so.cache into the index, in
  /// parallel. Result: the number of files.
  std::size_t fill();
  struct Answer {
    Result<Judgement> judgement;
    /// Whether it depends on directories() only; else it may change without a notice.
    bool watched = true;
  };
  Answer check(const Artifact& artifact);
  /// Reads the node's loader and directories for the next check().
  void open();
  /// Drops all caches of the node's files. The directories `avoided` are not opened until the next
  /// call.
  void invalidate(std::vector<std::string> avoided = {});

  /// The directories whose changes matter: absolute paths on this node.
  std::vector<std::string> directories();

 private:
  /// Cached state of the node.
  struct Snapshot {
    Snapshot(FactsSource& facts, const NodeIndexOptions& options,
             std::shared_ptr<const LibraryDirectories> allowed);
    NodeTarget target;
    Checker checker;
    std::chrono::steady_clock::time_point made = std::chrono::steady_clock::now();
  };
  Snapshot& snapshot(bool watched);
  std::shared_ptr<const LibraryDirectories> library_directories();
  std::vector<std::string> libraries();

  NodeIndexOptions options_;
  FreshFacts facts_;
  std::vector<std::string> avoided_;
  std::shared_ptr<const LibraryDirectories> allowed_;  ///< nullptr: not determined yet
  std::unique_ptr<Snapshot> watched_;
  std::unique_ptr<Snapshot> timed_;  ///< for programs that search in unwatched directories
};

}  // namespace heddle::compat
