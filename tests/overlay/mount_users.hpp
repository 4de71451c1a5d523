// SPDX-License-Identifier: MIT
#pragma once

// Users of a mount while a test disturbs its daemon, and measurements of processes.

#include <sys/resource.h>

#include <atomic>

#include "base/sandbox/sanitized.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// Duration of a disturbance: $HEDDLE_TEST_SECONDS, else 3; 10 with a sanitizer.
std::chrono::seconds time_to_spend();

/// Time between disturbances: a worker's start takes up to a second with sanitizers.
inline constexpr std::chrono::milliseconds kPace{kSanitized ? 1000 : 100};

/// Processes of which `pid` is the parent.
std::vector<int> children_of(int pid);

/// A process's descriptors and anonymous memory.
struct Footprint {
  std::size_t fds = 0;
  long kib = 0;
};
Footprint footprint(int pid);

/// Lowers the descriptor limit of `pid` to its use, until the end.
class WithoutDescriptors {
 public:
  explicit WithoutDescriptors(int pid);
  WithoutDescriptors(const WithoutDescriptors&) = delete;
  WithoutDescriptors& operator=(const WithoutDescriptors&) = delete;
  ~WithoutDescriptors();

 private:
  int pid_;
  rlimit before_{};
};

/// Expects that `pid` does not spin while it waits.
void expect_rest(int pid);

/// A file's bytes, bypassing the page cache.
Result<std::string> read_uncached(const std::string& path);

/// Threads that read contents and look up new names, until stop().
class MountReaders {
 public:
  /// `content`: of the files `file0` to `file19` of the mount.
  MountReaders(const Mount& mount, std::function<std::string(int)> content);
  void stop() { threads_.clear(); }

  std::atomic<int> wrong = 0;
  std::atomic<int> rounds = 0;

 private:
  std::vector<std::jthread> threads_;
};

/// Writes a map of `farm`'s libraries to `map`, which it returns.
std::string write_map(const ElfFarm& farm, const std::string& map);

/// Eight threads that start `farm`'s program with libraries of the mount, and one that drops its
/// page cache, until stop().
class Starts {
 public:
  Starts(const ElfFarm& farm, const Mount& mount);
  void stop() { loops_.clear(); }

  std::atomic<int> done = 0;
  std::atomic<int> failed = 0;  ///< or with wrong output; each is reported

 private:
  std::vector<std::jthread> loops_;
};

}  // namespace heddle::test
