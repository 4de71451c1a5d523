// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>

#include "base/sandbox/sanitized.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// Gives this process, for good, mounts of its own: a mount namespace that another process makes
/// meanwhile would else hold copies of a run's mounts, whose daemons then rightly live on. Root's.
void separate_mounts();

/// One system call of a run that is made to fail.
struct Fault {
  enum class Kind : std::uint8_t {
    error,  ///< the call is not made and fails with `error_number`
    cut,    ///< a read or write gets half of the requested length
  };
  long call = -1;    ///< SYS_...
  unsigned nth = 1;  ///< counted over all processes and threads of the run
  Kind kind = Kind::error;
  int error_number = 0;
};

/// A program and its descendants under ptrace(2), which sees every system call, also of the C
/// library and ld.so. One call can be made to fail. x86-64 only.
class TracedRun {
 public:
  using Counts = std::map<long, unsigned>;

  enum class Scope : std::uint8_t {
    everything,
    until_exec,  ///< a process that executes another program is no longer traced
  };

  /// `environment`: NAME=value, all of it. stdout and stderr go to `output`. `wrappers`: that many
  /// programs of `argv` only execute the next one; their calls do not count.
  static TracedRun start(const Strings& argv, const Strings& environment, const std::string& output,
                         const std::optional<Fault>& fault, Scope scope = Scope::everything,
                         unsigned wrappers = 0);
  TracedRun(TracedRun&&) noexcept = default;
  TracedRun& operator=(TracedRun&&) = delete;
  /// Kills what still runs.
  ~TracedRun();

  /// The exit status of the program itself (128+n for a signal), whose descendants may still run;
  /// nullopt at the deadline.
  std::optional<int> wait_for_program(std::chrono::milliseconds limit);
  /// How often each call was made, when the last process has ended; nullopt at the deadline, when
  /// the threads that are left go to stderr.
  std::optional<Counts> wait_for_all(std::chrono::milliseconds limit);

 private:
  TracedRun(pid_t tracer, Fd reports) : tracer_(tracer), reports_(std::move(reports)) {}
  std::optional<std::string> line(std::chrono::milliseconds limit);
  std::string left() const;

  pid_t tracer_;
  Fd reports_;        ///< the tracer's lines
  std::string read_;  ///< read and not used yet
};

/// "writev number 3: EIO".
std::string to_text(const Fault& fault);

/// Calls `live`, which makes one run, first without a fault and then with faults: EIO, ENOSPC,
/// ENOMEM, EMFILE and EINTR from each system call that the first run made, and shortened reads and
/// writes. It tries a random sample for HEDDLE_TEST_SECONDS (4); with HEDDLE_FAULTS=all every
/// fault, and with HEDDLE_FAULTS='writev number 3' those whose to_text() contains these words.
/// Stops at a failure of the first run.
void try_faults(const std::function<TracedRun::Counts(const std::optional<Fault>&)>& live);

}  // namespace heddle::test

/// Skips where no fault can be injected.
#ifdef __x86_64__
#define HEDDLE_NEEDS_TRACER() \
  if (kSanitized) HEDDLE_SKIP("a sanitizer's runtime makes system calls of its own")
#else
#define HEDDLE_NEEDS_TRACER() HEDDLE_SKIP("the tracer knows x86-64's registers only")
#endif
