// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace heddle::test {

/// One system call of a run that does not go as it should.
struct Fault {
  enum class Kind : std::uint8_t {
    error,  ///< it is not made and fails with `error_number`
    cut,    ///< a read or write gets half of the length it asked for
  };
  long call = -1;    ///< SYS_...
  unsigned nth = 1;  ///< of all processes and threads of the run together
  Kind kind = Kind::error;
  int error_number = 0;
};

/// A program and all that it starts, under ptrace(2): every system call is seen, also those that
/// the C library and ld.so make inside, and one of them can be made to fail. (x86-64)
class TracedRun {
 public:
  using Counts = std::map<long, unsigned>;

  enum class Scope : std::uint8_t {
    everything,
    until_exec,  ///< a process that becomes another program runs on by itself
  };

  /// `environment`: NAME=value, the whole of it. stdout and stderr go to `output`. `wrappers`: as
  /// many programs of `argv` only become the next; what they do does not count.
  static TracedRun start(const std::vector<std::string>& argv,
                         const std::vector<std::string>& environment, const std::string& output,
                         const std::optional<Fault>& fault, Scope scope = Scope::everything,
                         unsigned wrappers = 0);
  TracedRun(TracedRun&&) noexcept = default;
  TracedRun& operator=(TracedRun&&) = delete;
  /// Kills what still runs.
  ~TracedRun();

  /// Exit status of the program itself (128+n for a signal), while what it left behind goes on;
  /// nullopt at the deadline.
  std::optional<int> wait_for_program(std::chrono::milliseconds limit);
  /// How often each call was made, when the last process has ended; nullopt at the deadline.
  std::optional<Counts> wait_for_all(std::chrono::milliseconds limit);

 private:
  TracedRun(pid_t tracer, Fd told) : tracer_(tracer), told_(std::move(told)) {}
  std::optional<std::string> line(std::chrono::milliseconds limit);

  pid_t tracer_;
  Fd told_;           ///< the tracer's lines
  std::string read_;  ///< of them, and not used yet
};

/// "writev number 3: EIO".
std::string to_text(const Fault& fault);

/// Every fault to try in a program that makes each call as often as `counts` says: EIO, ENOSPC,
/// ENOMEM, EMFILE and EINTR from each, and reads and writes that are cut short.
std::vector<Fault> all_faults(const TracedRun::Counts& counts);

/// Gives `live` a sample for HEDDLE_TEST_SECONDS (4); with HEDDLE_FAULTS=all every fault, and with
/// HEDDLE_FAULTS='writev number 3' those that to_text() tells with these words.
void try_faults(std::vector<Fault> faults, const std::function<void(const Fault&)>& live);

}  // namespace heddle::test
