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

/// The map of `farm`'s libraries, at `map`, which it returns.
std::string write_map(const ElfFarm& farm, const std::string& map);

/// Eight loops that start `farm`'s program with its libraries from the mount, and one that forgets
/// what the kernel knows. From construction to stop().
class Starts {
 public:
  Starts(const ElfFarm& farm, const Mount& mount);
  void stop() { loops_.clear(); }

  std::atomic<int> done = 0;
  std::atomic<int> failed = 0;  ///< or with wrong output; each is told as a failure

 private:
  std::vector<std::jthread> loops_;
};

}  // namespace heddle::test
