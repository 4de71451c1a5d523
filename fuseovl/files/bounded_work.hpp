// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/fd.hpp"

namespace heddle {

/// Where work runs that may have to be left behind.
class WorkPlace {
 public:
  /// For a long piece of work: it has come further, and its time begins anew.
  virtual void moves_on() = 0;
  /// Gives the caller an open file.
  virtual void give(Fd file) = 0;

 protected:
  ~WorkPlace() = default;
};
using Work = std::function<void(std::size_t, WorkPlace&)>;

struct WorkResult {
  enum class State : std::uint8_t {
    not_begun,
    late,  ///< it has not come back in time
    done,
  };
  State state = State::not_begun;
  std::int64_t at_ms = 0;  ///< when it was begun, or done; of one clock
  Fd file;                 ///< what it gave
};

enum class Threads : std::uint8_t {
  as_needed,  ///< many when the first pieces are slow
  at_once,    ///< many: the pieces are long
};

/// Does `work` for each number below `count`, many at once as `threads` says, in a process that has
/// no descriptor of ours but those in `kept`. Once a piece has not come back for `limit` the whole
/// process is left behind, as a thread that waits for a file system that does not answer can be
/// ended by nobody, and its process neither; what it was at besides counts as not begun. All are
/// done otherwise, but for pieces in which one process after another was killed: these are late.
/// What `work` finds it writes to shared memory (session/shared.hpp), which is to be read for what
/// is done. Its folder is `/`.
///
/// `limit` 0, or no process to be had: the work is done here, and waits.
std::vector<WorkResult> do_within(std::chrono::milliseconds limit, std::size_t count,
                                  const Work& work, const std::vector<int>& kept = {},
                                  Threads threads = Threads::as_needed);

}  // namespace heddle
