// SPDX-License-Identifier: MIT
#pragma once

// What the units of the collector share: the state of this process, and what it tells in records.

#include <link.h>
#include <linux/limits.h>
#include <sys/resource.h>

#include "fuseovl/audit/kernel.hpp"
#include "jobs/collector/record_format.hpp"

// Of the program's libc, where it has them: this library needs no library, so that a program with
// another libc starts too.
#pragma weak _r_debug
extern "C" {
extern char** environ __attribute__((weak));
__attribute__((weak)) int on_exit(void (*)(int, void*), void*);
__attribute__((weak)) int __register_atfork(void (*)(), void (*)(), void (*)(), void*);
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
}

namespace heddle::jobs {

using audit::as_long;
using audit::behind;
using audit::copy;
using audit::DirectoryEntry;
using audit::equal;
using audit::length;
using audit::syscall6;

// What the auditor's copy has seen: mapped there, and zeroed. Guarded by ld.so's lock.
struct Lookups {
  std::int64_t failed;
  bool cut;
  unsigned long used;
  char text[60000];  ///< name, path, failed; each with its NUL
  // What ld.so looks for.
  bool is_pending;
  std::int64_t pending_failed;
  char pending_name[PATH_MAX];
};

struct State {
  const char* variable = nullptr;  ///< a copy of kJobVariable's value; null: nothing is collected
  const char* original = nullptr;  ///< that value, in the environment's own memory
  int pid = 0;
  std::int64_t start = 0;
  std::int64_t cycles = 0;    ///< at the start
  std::int64_t previous = 0;  ///< of the program before an exec; 0: none
  int threads = 1;
  int rank = -1, ranks = -1;
  bool forked = false;
  bool ended = false;
  bool sandboxed = false;  ///< a system call may kill the program
  std::int64_t own_io[4] =
      {};  ///< in the order of /proc/self/io: of this library, not of the program
  int argc = 0;
  char** argv = nullptr;
  const char* tags = "";
  const char* container = "";
  const Lookups* lookups = nullptr;  ///< the auditor's; set by it
  int perf[kPerfEvents] = {-1, -1, -1, -1, -1};
  int perf_error = 0;
};

// Every process pays for each mapping and for each page that is written. So there is no .bss, and
// all that most processes write is in the first page: what is long comes behind the rest, in
// .data1, which linkers place behind the .data of all units.
#define HEDDLE_DATA __attribute__((section(".data")))
#define HEDDLE_LONG_DATA __attribute__((section(".data1")))

HEDDLE_DATA extern State state __attribute__((visibility("hidden")));

inline bool is_us(const link_map& map) {
  return map.l_addr == reinterpret_cast<unsigned long>(__ehdr_start);
}

inline std::int64_t real_time_us() {
  timespec now{};
  syscall6(__NR_clock_gettime, CLOCK_REALTIME, as_long(&now));
  return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

inline std::int64_t cycles() {
#if defined(__x86_64__)
  return static_cast<std::int64_t>(__builtin_ia32_rdtsc());
#else
  std::int64_t value;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#endif
}

inline int own_id(long number, long argument = 0) {
  return static_cast<int>(syscall6(number, argument));
}

/// A read (0) or write (1) of this library, and its bytes.
inline void count_own(unsigned kind, long bytes) {
  if (bytes > 0) __atomic_fetch_add(&state.own_io[kind], bytes, __ATOMIC_RELAXED);
  __atomic_fetch_add(&state.own_io[kind + 2], 1, __ATOMIC_RELAXED);
}

// Text.

/// The value of the environment's `entry` if it is of `name`; else null.
const char* value_in(const char* entry, const char* name);
/// The next number in `at`, which moves behind it; -1: none.
std::int64_t next_number(const char*& at);
/// Writes `value` as `count` digits.
void write_digits(char* out, std::int64_t value, unsigned count);

// What this process has used (usage.cpp).

/// `directory` ends with a slash and has room for a file's name.
TaskUsage read_task(char* directory, std::int64_t* own_before_io = nullptr);
/// `is_same`: of the program that is executed now, and not of the one before.
ProcessUsage read_process(bool is_same = true);
void fill(Usage& out, const rusage& from);
void open_perf_events();

// Records (records.cpp).

void write_start();
/// Appends what this process did. Once; not in a child that shares its parent's memory (vfork), and
/// not where a system call may be the last (seccomp).
void write_end(int status);
/// Of the program, begun at `start`, that this process executed before another one. `flags`: of a
/// record.
void write_exec(std::int64_t start, unsigned flags);
/// The end of a child, as wait4(2) tells it.
void write_reaped(pid_t pid, int status, const rusage& usage);
/// The start of a program that this library cannot be in. `own`: by this process, not in a vfork.
void write_foreign(int pid, int ppid, std::int64_t previous, std::int64_t start, const char* path,
                   char* const* argv, bool own);

}  // namespace heddle::jobs
