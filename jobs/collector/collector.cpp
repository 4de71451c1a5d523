// SPDX-License-Identifier: MIT

// libheddle-job.so: reports what each process of a job used (record_format.hpp). It is
// freestanding, as the auditor is, and has two roles. As a preload (LD_PRELOAD) it appends a record
// at the program's start, at its end, and for each child that the program waits for, which tells
// the end of those that cannot do so themselves: killed, static, setuid. As an auditor too
// (LD_AUDIT, --lookups) a second copy of it sees ld.so's searches; both are one file, so that each
// finds the other's variables at the same offset.
//
// The program must not notice: no descriptor stays open, nothing is allocated, a failure is a
// missing record. What it does not do: wrap threads (what ended ones used is the process's total
// less that of the living), handle signals. Exec is interposed for what ends there, and for
// programs that this library cannot be in.
//
// This unit has a process's start, its forks and its end.

#include "base/rank_mark.hpp"
#include "jobs/collector/interposed.hpp"
#include "jobs/collector/process.hpp"

namespace heddle::jobs {

HEDDLE_DATA constinit State state;

const char* value_in(const char* entry, const char* name) {
  const char* rest = behind(entry, name);
  return rest && *rest == '=' ? rest + 1 : nullptr;
}

void write_digits(char* out, std::int64_t value, unsigned count) {
  while (count > 0) {
    out[--count] = static_cast<char>('0' + value % 10);
    value /= 10;
  }
}

namespace {

HEDDLE_DATA constinit char variable_copy[kPathAt + kMostSpoolPath + 1] = {};

int number_of(const char* text) { return text ? static_cast<int>(next_number(text)) : -1; }

std::int64_t read_digits(const char* text, unsigned count) {
  std::int64_t value = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (text[i] < '0' || text[i] > '9') return -1;
    value = value * 10 + (text[i] - '0');
  }
  return value;
}

void read_environment(char** envp) {
  static constexpr const char* kContainers[] = {"APPTAINER_CONTAINER", "SINGULARITY_CONTAINER",
                                                "SHIFTER_IMAGE", "container"};
  unsigned rank = 99, ranks = 99, container = 99;
  for (char** entry = envp; *entry; ++entry) {
    char* const text = *entry;
    const auto choose = [text](const auto& names, unsigned& best) -> const char* {
      unsigned i = 0;
      for (const char* name : names) {
        if (i >= best) break;
        if (const char* value = value_in(text, name)) return best = i, value;
        ++i;
      }
      return nullptr;
    };
    // Most variables begin with another letter.
    switch (*text) {
      case 'H':
        if (const char* value = value_in(text, kJobVariable)) state.original = value;
        break;
      case 'O':
      case 'F':
      case 'S':
      case 'A':
      case 'J':
      case 'M':
      case 'c':
      case 'P':
        if (const char* value = choose(kRankVariables, rank)) state.rank = number_of(value);
        if (const char* value = choose(kSizeVariables, ranks)) state.ranks = number_of(value);
        if (const char* value = choose(kContainers, container)) state.container = value;
        if (const char* value = value_in(text, "PAPIEX_TAGS")) state.tags = value;
        break;
      default:
        break;
    }
  }
}

void exited(int status, void*) { write_end(status & 0xff); }

void forked() {
  state.pid = own_id(__NR_getpid);
  state.start = real_time_us();
  state.cycles = cycles();
  state.previous = 0;
  state.threads = 1;
  state.forked = true;
  state.ended = false;
  for (auto& counter : state.own_io) counter = 0;
  for (int& fd : state.perf) fd = -1;  // they count the parent's
}

bool is_in_program() {
  if (!&_r_debug) return false;
  for (const link_map* map = _r_debug.r_map; map; map = map->l_next)
    if (is_us(*map)) return true;
  return false;
}

__attribute__((constructor)) void begin(int argc, char** argv, char** envp) {
  if (!envp || !is_in_program()) return;  // the auditor's copy
  read_environment(envp);
  char* const at = const_cast<char*>(state.original);
  if (!at || length(at) <= kPathAt || length(at) >= sizeof variable_copy || at[kModes] != ' ' ||
      at[kPathAt - 1] != ':')
    return;
  copy(variable_copy, at);
  state.variable = variable_copy;
  state.argc = argc;
  state.argv = argv;
  state.pid = own_id(__NR_getpid);
  state.start = real_time_us();
  state.cycles = cycles();
  char* const self = at + kModes + 1;
  if (read_digits(self, kPidDigits) == state.pid) {
    state.previous = read_digits(self + kPidDigits, kStartDigits);
    write_exec(state.previous, 0);
  }
  write_digits(self, state.pid, kPidDigits);
  write_digits(self + kPidDigits, state.start, kStartDigits);
  if (at[1] == 'p') open_perf_events();
  write_start();
  // The first registration is the last to run, behind the destructors of all libraries.
  if (&on_exit) (void)on_exit(exited, nullptr);
  if (&__register_atfork) (void)__register_atfork(nullptr, nullptr, forked, nullptr);
}

/// Without on_exit (musl), whose status is then unknown.
__attribute__((destructor)) void finish() {
  if (!&on_exit) write_end(-1);
}

[[noreturn]] void leave(int status) {
  for (;;) syscall6(__NR_exit_group, status);
}

}  // namespace

using Exit = void(int);
HEDDLE_EXPORT __attribute__((noreturn)) void _exit(int status) {
  static constinit Next<Exit> next("_exit");
  write_end(status & 0xff);
  if (auto* function = next.get()) function(status);
  leave(status);
}
HEDDLE_EXPORT __attribute__((noreturn)) void _Exit(int status) {
  static constinit Next<Exit> next("_Exit");
  write_end(status & 0xff);
  if (auto* function = next.get()) function(status);
  leave(status);
}

using Create = int(unsigned long*, const void*, void* (*)(void*), void*);
HEDDLE_EXPORT int pthread_create(unsigned long* thread, const void* attributes,
                                 void* (*body)(void*), void* argument) {
  static constinit Next<Create> next("pthread_create");
  auto* function = next.get();
  if (!function) return 11;  // EAGAIN: there is no libpthread
  const int result = function(thread, attributes, body, argument);
  if (result == 0) __atomic_fetch_add(&state.threads, 1, __ATOMIC_RELAXED);
  return result;
}

}  // namespace heddle::jobs
