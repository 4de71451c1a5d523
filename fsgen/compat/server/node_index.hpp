// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fsgen/compat/checker.hpp"
#include "fsgen/compat/node_target.hpp"
#include "resolver/elf/cached_facts.hpp"

namespace heddle::compat {

/// A judgement as it is handed out: shared, never changed.
struct Answer {
  Judgement judgement;
  std::string error;  ///< not empty: there is no verdict
  std::uint64_t generation = 0;
};

struct NodeIndexOptions {
  std::string root;                 ///< empty: this node
  std::string cache_dir;            ///< where the LMDB index lies; empty: the user's cache
  std::string worker_path;          ///< tests only
  std::size_t most_answers = 4096;  ///< kept verdicts
  std::size_t most_answer_bytes = std::size_t{32} << 20;
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

/// This node's libraries, ready to judge by. For any number of threads.
class NodeIndex {
 public:
  static Result<std::unique_ptr<NodeIndex>> open(NodeIndexOptions options);

  /// Reads every library of the loader's directories and of ld.so.cache, in parallel, into the
  /// index. `progress` may be empty. Result: how many files it has.
  Result<std::size_t> fill(
      const std::function<void(std::size_t done, std::size_t total)>& progress);
  /// The verdict about an artifact's JSON. The same bytes are judged once for each state of the
  /// node.
  std::shared_ptr<const Answer> check(std::string_view artifact, const std::string& where);
  /// As above, for one that is parsed: without looking for a kept verdict.
  Answer check(const Artifact& artifact);
  /// Something may have changed: forget what was seen of the node's files.
  void invalidate();

  /// The folders whose changes matter, absolute, as this node names them.
  std::vector<std::string> folders();
  std::uint64_t generation() const { return generation_; }
  struct Counters {
    std::atomic<std::uint64_t> checks{0}, kept{0}, incompatible{0}, errors{0}, invalidations{0};
  };
  const Counters& counters() const { return counters_; }

 private:
  /// What was seen of the node at one time.
  struct Snapshot {
    Snapshot(FactsSource& facts, const NodeIndexOptions& options);
    NodeTarget target;
    Checker checker;
    std::chrono::steady_clock::time_point made = std::chrono::steady_clock::now();
  };
  explicit NodeIndex(NodeIndexOptions options);
  Snapshot& snapshot(bool watched);
  std::vector<std::string> libraries();
  Answer judge(const Artifact& artifact);

  NodeIndexOptions options_;
  std::mutex mutex_;  ///< over all below it
  FreshFacts facts_;
  std::unique_ptr<Snapshot> watched_;
  std::unique_ptr<Snapshot> timed_;  ///< for programs that search where nobody watches
  struct Kept {
    std::shared_ptr<const Answer> answer;
    bool watched = true;
  };
  std::unordered_map<std::string, Kept> kept_;
  std::size_t kept_bytes_ = 0;
  std::atomic<std::uint64_t> generation_{1};
  Counters counters_;
};

}  // namespace heddle::compat
