// SPDX-License-Identifier: MIT
#pragma once

// Who uses a mount while a test does something to whoever serves it.

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/sandbox/sanitized.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {

/// What HEDDLE_TEST_SECONDS says, for cases that disturb and count; else 3. With a sanitizer 10.
std::chrono::seconds time_to_spend();

/// Between one disturbance and the next, and as long as a process of a build takes to start.
inline constexpr std::chrono::milliseconds kPace{kSanitized ? 1000 : 100};

/// Processes of which `pid` is the parent.
std::vector<int> children_of(int pid);

/// What a process holds: descriptors, and memory that is its own alone.
struct Footprint {
  std::size_t fds = 0;
  long kib = 0;
};
Footprint footprint(int pid);

/// What `pid` has spent of processors' time.
std::chrono::nanoseconds time_spent(int pid);

/// `pid` gets no descriptor any more, until the end.
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

/// That `pid` does not wake up again and again for as long as it can do nothing.
void expect_rest(int pid);

/// A file's bytes, none of them from the page cache.
Result<std::string> read_uncached(const std::string& path);

/// Readers of contents and of names that the kernel does not know yet, from construction to stop().
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

/// A program of 300 libraries and a compiler, the libraries of both for a map to serve.
class Workshop {
 public:
  /// Makes the program in `directory`.
  explicit Workshop(const std::string& directory);
  /// The map of all, each library a copy of its own in `copies` (empty: the originals). Returns
  /// `map`.
  std::string write_map(const std::string& map, const std::string& copies = {}) const;

  const std::string& directory() const { return directory_; }
  const ElfFarm& farm() const { return farm_; }

 private:
  std::string directory_;
  ElfFarm farm_;
  std::vector<std::pair<std::string, std::string>> libraries_;  ///< name, path
};

/// Eight loops that start the workshop's program with its libraries from the mount, and one that
/// compiles, runs what it compiled, and has its compiler's libraries there too; while one forgets
/// what the kernel knows. From construction to stop().
class Work {
 public:
  Work(const Workshop& workshop, const Mount& mount);
  ~Work() { stop(); }
  void stop();

  std::atomic<int> starts = 0;
  std::atomic<int> compiled = 0;
  std::atomic<int> failed = 0;  ///< or with wrong output; each is told as a failure

 private:
  const Workshop& workshop_;
  const Mount& mount_;
  std::atomic<bool> stop_ = false;
  std::vector<std::jthread> loops_;
};

}  // namespace heddle::test
