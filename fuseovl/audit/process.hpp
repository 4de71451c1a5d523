// SPDX-License-Identifier: MIT
#pragma once

#include <link.h>

#include "resolver/map/tls_formula.hpp"

namespace heddle::audit {

/// Argument, environment and auxiliary vectors, as the kernel put them on the stack at exec. ld.so
/// passes them to constructors (elf/dl-init.c, call_init), so neither /proc nor a libc is needed.
struct StartBlock {
  int argc = 0;
  char** argv = nullptr;
  char** envp = nullptr;
  const unsigned long* auxv = nullptr;  ///< (type, value) pairs up to AT_NULL

  constexpr StartBlock() = default;
  StartBlock(int count, char** arguments, char** environment);
  const char* variable(const char* name) const;       ///< nullptr: not set
  unsigned long auxiliary(unsigned long type) const;  ///< of the auxiliary vector; 0: none
  /// Removes the variable from the environment that the program sees.
  void remove(const char* name);
};

/// The rtld tunables this process was started with.
tls::Settings current_settings(const StartBlock& start);

/// Restores the program's own environment, as HEDDLE_TUNABLES gives it.
void restore_environment(StartBlock& start);

/// Execs this program again with at least `optional` bytes of optional static TLS;
/// restore_environment() hides the change. No code of the program or its libraries may have run.
/// Returns if that is impossible (no /proc, or ld.so was the command).
void start_again(const StartBlock& start, unsigned long optional);

/// As start_again(), but without this library in LD_AUDIT: it and its children run unguided.
void start_unaudited(const StartBlock& start);

/// In a process that fs-launch's launcher has started as a rank: executes the agent, which prepares
/// the rank and executes it again without HEDDLE_LAUNCH. Only ld.so and this library are mapped.
/// Returns in other processes, and where the agent cannot be executed.
void enter_rank(const StartBlock& start);

/// Takes this library out of the LD_AUDIT that the program's children get.
void hide_from_children(StartBlock& start);

/// The program headers of a mapped library; none where they are not mapped.
struct Segments {
  const ElfW(Phdr) * first = nullptr;
  unsigned long count = 0;
};
Segments segments_of(const link_map& map, unsigned long page_size);

/// PT_TLS of a mapped object; size 0: none, or its headers are not mapped.
struct TlsSegment {
  unsigned long size = 0;
  unsigned long align = 0;
};
TlsSegment tls_of(const link_map& map, unsigned long page_size);

/// The static TLS of a program's libraries.
struct TlsNeed {
  unsigned long bytes = 0;    ///< sum of tls::block_cost()
  bool over_aligned = false;  ///< no auditor can place a block (static_tls.hpp)
};
/// Of a program that is not in the map, before ld.so searches for its libraries; about what they
/// need: LD_LIBRARY_PATH counts before each RPATH. The program's static area is aligned to
/// `area_align`.
TlsNeed find_tls_need(const StartBlock& start, unsigned long area_align);

/// Adds up the TLS of a start's libraries, which glibc leaves out of the static area under any
/// auditor (tls_formula.hpp). Programs of the map are started with an area of the right size.
class TlsGuard {
 public:
  enum class Fit : unsigned char {
    good,
    too_small,  ///< start_again() with wanted()
    never,      ///< start_unaudited()
  };
  constexpr TlsGuard() = default;
  explicit TlsGuard(const StartBlock& start);
  unsigned long area_align() const { return area_align_; }
  Fit fit(const TlsNeed& need) const;
  /// Counts an object that was mapped into the program's namespace at its start.
  Fit take(const link_map& map);
  /// For start_again(): half as much again as is needed so far, for the libraries still to come.
  unsigned long wanted() const;
  /// The tunable that this process was started with. A start_again() with no more would repeat
  /// without end.
  unsigned long optional() const { return optional_; }

 private:
  unsigned long needed_ = 0;
  unsigned long blocks_ = 0;
  unsigned long limit_ = 0;
  unsigned long optional_ = 0;
  unsigned long namespaces_ = tls::kDefaultNamespaces;
  unsigned long area_align_ = tls::kAreaAlign;
  unsigned long page_size_ = 4096;
  bool wide_ = false;  ///< a block is aligned more than the area
};

}  // namespace heddle::audit
