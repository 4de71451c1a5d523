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
  std::string cache_dir = {};                  ///< where the index lies; empty: the user's cache
  std::vector<std::string> library_dirs = {};  ///< opened beside those that the loader itself names
  std::string worker_path = {};  ///< where elf-worker is; empty: as for programs in bin
  /// LibraryDirectories::on_look
  std::function<void(std::string_view directory)> on_look = {};
};

/// The node's facts in LMDB. CachedFacts hands out what it was once asked to prefetch: renew()
/// makes it look again.
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

/// This node's libraries, ready to judge by. Of the node's files it opens what lies in the loader's
/// directories, in those of ld.so.cache and /etc/ld.so.preload and in the options', and no other
/// that an artifact names. Not for concurrent use.
class NodeIndex {
 public:
  /// Throws Error when the node's loader is none that can be judged by.
  explicit NodeIndex(NodeIndexOptions options);

  /// Reads every library of the loader's directories and of ld.so.cache, in parallel, into the
  /// index. Result: how many files it has.
  std::size_t fill();
  struct Answer {
    Result<Judgement> judgement;
    /// Whether all that it rests on lies in directories(): else it may change unseen.
    bool watched = true;
  };
  Answer check(const Artifact& artifact);
  /// Something may have changed: forget what was seen of the node's files, and do not look into the
  /// directories `avoided` until the next time.
  void invalidate(std::vector<std::string> avoided = {});

  /// The directories whose changes matter, absolute, as this node names them.
  std::vector<std::string> directories();

 private:
  /// What was seen of the node at one time.
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
  std::shared_ptr<const LibraryDirectories> allowed_;  ///< nullptr: to be found out
  std::unique_ptr<Snapshot> watched_;
  std::unique_ptr<Snapshot> timed_;  ///< for programs that search where nobody watches
};

}  // namespace heddle::compat
