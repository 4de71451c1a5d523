// SPDX-License-Identifier: MIT
#pragma once

#include <link.h>

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

/// PT_TLS of a mapped object; size 0: none, or its headers cannot be seen.
struct TlsSegment {
  unsigned long size = 0;
  unsigned long align = 0;
};
TlsSegment tls_of(const link_map& map);

/// Watches the libraries of a start for the static TLS trap (tls_formula.hpp): any auditor, ours
/// too, makes glibc forget their blocks. While the libraries are mapped, none of their code has
/// run: when they outgrow the area, the program is started again with an area that is large enough.
/// Programs whose closure the map knows are started with it and never come to this.
class TlsGuard {
 public:
  constexpr TlsGuard() = default;
  explicit TlsGuard(const StartBlock& start);
  /// An object was mapped into the program's namespace, at its start.
  void take(const link_map& map, const StartBlock& start);

 private:
  unsigned long needed_ = 0;
  unsigned long limit_ = 0;
  unsigned long namespaces_ = tls::kDefaultNamespaces;
  unsigned long area_align_ = 64;
  bool raised_ = false;
  bool wide_ = false;  ///< a block is aligned more than the area
};

}  // namespace heddle::audit
