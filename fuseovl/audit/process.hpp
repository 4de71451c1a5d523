// SPDX-License-Identifier: MIT
#pragma once

#include "resolver/map/tls_formula.hpp"

namespace heddle::audit {

/// What the kernel put on the stack at exec: argument, environment and auxiliary vectors. ld.so
/// hands them to constructors (elf/dl-init.c, call_init), so neither /proc nor a libc is needed.
struct StartBlock {
  int argc = 0;
  char** argv = nullptr;
  char** envp = nullptr;
  const unsigned long* auxv = nullptr;  ///< (type, value) pairs up to AT_NULL

  constexpr StartBlock() = default;
  StartBlock(int count, char** arguments, char** environment);
  /// Value of the variable, or nullptr.
  const char* variable(const char* name) const;
  /// The auxiliary vector's value of `type`, or 0.
  unsigned long auxiliary(unsigned long type) const;
  /// Takes the variable out of the environment that the program is going to see.
  void remove(const char* name);
};

/// The rtld tunables this process was started with.
tls::Settings current_settings(const StartBlock& start);

/// Whether static TLS was already raised for this start, by start_again() or by who started us.
bool was_raised(const StartBlock& start);

/// Gives the program the environment and the name it would have without us: undoes what
/// HEDDLE_TUNABLES and HEDDLE_COMM say was changed for this start.
void restore_environment(StartBlock& start);

/// Execs this program again, with at least `optional` bytes of optional static TLS and all else as
/// it was; restore_environment() then hides the change. Only for the time before any code of the
/// program or its libraries has run. Returns if that is impossible (no /proc, or ld.so was the
/// command).
void start_again(const StartBlock& start, unsigned long optional);

/// As start_again(), but without us in LD_AUDIT: it and its children run unguided.
void start_unaudited(const StartBlock& start);

}  // namespace heddle::audit
