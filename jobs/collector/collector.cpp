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
// less that of the living), handle signals. Exec is interposed only for programs that this library
// cannot be in; any other tells what this one had used until then, by kJobVariable.

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <linux/limits.h>
#include <linux/perf_event.h>
#include <linux/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdarg>
#include <cstddef>
#include <initializer_list>

#include "base/rank_mark.hpp"
#include "fuseovl/audit/kernel.hpp"
#include "jobs/collector/record_format.hpp"

#define HEDDLE_EXPORT extern "C" __attribute__((visibility("default")))

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
namespace {

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
// all that most processes write is in the first page: what is long comes behind the rest.
#define HEDDLE_DATA __attribute__((section(".data")))
#define HEDDLE_LONG_DATA __attribute__((section(".data.long")))

HEDDLE_DATA constinit State state;
HEDDLE_DATA constinit Lookups* seen = nullptr;  ///< in the auditor's copy only
HEDDLE_DATA constinit char variable_copy[kPathAt + kMostSpoolPath + 1] = {};

bool is_us(const link_map& map) {
  return map.l_addr == reinterpret_cast<unsigned long>(__ehdr_start);
}

std::int64_t now_us() {
  timespec now{};
  syscall6(__NR_clock_gettime, CLOCK_REALTIME, as_long(&now));
  return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

std::int64_t cycles() {
#if defined(__x86_64__)
  return static_cast<std::int64_t>(__builtin_ia32_rdtsc());
#else
  std::int64_t value;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#endif
}

/// A read (0) or write (1) of this library, and its bytes.
void count_own(unsigned kind, long bytes) {
  if (bytes > 0) __atomic_fetch_add(&state.own_io[kind], bytes, __ATOMIC_RELAXED);
  __atomic_fetch_add(&state.own_io[kind + 2], 1, __ATOMIC_RELAXED);
}

// Writing.

template <unsigned kMost>
class RecordOf {
 public:
  constexpr RecordOf() = default;
  void begin(RecordType type, int pid, std::int64_t start, unsigned flags = 0) {
    auto& header = *reinterpret_cast<RecordHeader*>(bytes_);
    header = {kRecordMagic, 0, type, static_cast<std::uint8_t>(flags), pid, 0, start};
    used_ = sizeof(RecordHeader);
    at_ = 0;
  }
  /// As begin(), behind what was not appended; append() then writes both at once. Where there is no
  /// room for both the first is appended, as it is by itself. `most`: of the new one's bytes.
  void follow(unsigned most, RecordType type, int pid, std::int64_t start, unsigned flags = 0) {
    if (is_empty()) used_ = at_;
    if (used_ > 0 && sizeof(RecordHeader) + most > room()) append(), used_ = 0;
    if (used_ > at_) seal();
    at_ = used_;
    add(RecordHeader{kRecordMagic, 0, type, static_cast<std::uint8_t>(flags), pid, 0, start});
  }
  unsigned room() const { return kMost - used_; }
  /// Bytes of records that the next append() writes before this one.
  unsigned before() const { return at_; }
  bool is_empty() const { return used_ == at_ + sizeof(RecordHeader); }
  void set_flag(unsigned flag) {
    bytes_[at_ + offsetof(RecordHeader, flags)] |= static_cast<char>(flag);
  }
  template <class T>
  void add(const T& value) {
    const auto* from = reinterpret_cast<const char*>(&value);
    for (unsigned i = 0; i < sizeof(T); ++i) bytes_[used_++] = from[i];
  }
  /// With its NUL; false: no room.
  bool add_text(const char* text) {
    const unsigned long size = length(text) + 1;
    if (size > room()) return false;
    copy(bytes_ + used_, text);
    used_ += static_cast<unsigned>(size);
    return true;
  }
  /// What the link at `path` is to; "" if that is not known, or leaves no room for two more texts.
  void add_target(const char* path) {
    const long most = room() - 3;
    const long n =
        syscall6(__NR_readlinkat, AT_FDCWD, as_long(path), as_long(bytes_ + used_), most);
    if (n > 0 && n < most) used_ += static_cast<unsigned>(n);
    bytes_[used_++] = '\0';
  }
  /// Appends the record, and begins another one of its kind. `own`: by this process.
  void append(bool own = true) {
    if (used_ > at_) seal();
    // A program may have closed or replaced any descriptor, so the file is opened for each record.
    const long fd = syscall6(__NR_openat, AT_FDCWD, as_long(state.variable + kPathAt),
                             O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
    // Beyond the limit a write is answered with SIGXFSZ.
    rlimit limit{};
    struct stat st {};
    const bool fits = fd >= 0 &&
                      syscall6(__NR_prlimit64, 0, RLIMIT_FSIZE, 0, as_long(&limit)) == 0 &&
                      (limit.rlim_cur == RLIM_INFINITY ||
                       (syscall6(__NR_fstat, fd, as_long(&st)) == 0 &&
                        static_cast<unsigned long>(st.st_size) + used_ <= limit.rlim_cur));
    const long n = fits ? syscall6(__NR_write, fd, as_long(bytes_), used_) : 0;
    if (fits && own) count_own(1, n);
    if (fd >= 0) syscall6(__NR_close, fd);
    for (unsigned i = 0; i < sizeof(RecordHeader); ++i) bytes_[i] = bytes_[at_ + i];
    at_ = 0;
    used_ = sizeof(RecordHeader);
  }

 private:
  void seal() {
    const auto size = static_cast<std::uint16_t>(used_ - at_);
    __builtin_memcpy(bytes_ + at_ + offsetof(RecordHeader, size), &size, sizeof size);
  }

  unsigned used_ = 0;
  unsigned at_ = 0;  ///< the last record
  alignas(8) char bytes_[kMost] = {};
};
using Record = RecordOf<kMostRecord>;

// Reading /proc.

/// A small file's text; empty if it cannot be read.
struct ProcFile {
  char text[1024];
  explicit ProcFile(const char* path) {
    const long fd = syscall6(__NR_openat, AT_FDCWD, as_long(path), O_RDONLY | O_CLOEXEC | O_NOCTTY);
    const long n = fd < 0 ? 0 : syscall6(__NR_read, fd, as_long(text), sizeof text - 1);
    if (fd >= 0) count_own(0, n);
    if (fd >= 0) syscall6(__NR_close, fd);
    text[n > 0 ? n : 0] = '\0';
  }
};

/// The next number in `at`, which moves behind it; -1: none.
std::int64_t next_number(const char*& at) {
  while (*at && (*at < '0' || *at > '9')) ++at;
  if (!*at) return -1;
  std::int64_t value = 0;
  while (*at >= '0' && *at <= '9') value = value * 10 + (*at++ - '0');
  return value;
}

/// `directory` ends with a slash and has room for a file's name.
TaskUsage read_task(char* directory, std::int64_t* own_before_io = nullptr) {
  TaskUsage out;
  char* const name = directory + length(directory);
  copy(name, "stat");
  {
    const ProcFile file(directory);
    const char* at = file.text;
    // proc(5): the name in parentheses may have any byte.
    for (const char* c = file.text; *c; ++c)
      if (*c == ')') at = c + 1;
    while (*at == ' ') ++at;
    if (*at) ++at;  // the state
    std::int64_t fields[52];
    for (unsigned i = 4; i < 52; ++i) {
      while (*at == ' ') ++at;
      if (*at == '-') ++at;  // of no field that is used
      fields[i] = next_number(at);
    }
    out.minflt = fields[10];
    out.majflt = fields[12];
    out.utime = fields[14];
    out.stime = fields[15];
    out.num_threads = fields[20];
    out.starttime = fields[22];
    out.processor = fields[39];
    out.blkio = fields[42];
    out.guest = fields[43];
  }
  if (own_before_io)
    for (unsigned i = 0; i < 4; ++i)
      own_before_io[i] = __atomic_load_n(&state.own_io[i], __ATOMIC_RELAXED);
  {
    copy(name, "io");
    const ProcFile file(directory);
    const char* at = file.text;
    for (auto& value : out.io) value = next_number(at);
  }
  copy(name, "schedstat");
  const ProcFile file(directory);
  const char* at = file.text;
  for (auto& value : out.sched) value = next_number(at);
  *name = '\0';
  return out;
}

void fill(Usage& out, const rusage& from) {
  out.utime = from.ru_utime.tv_sec * 1000000 + from.ru_utime.tv_usec;
  out.stime = from.ru_stime.tv_sec * 1000000 + from.ru_stime.tv_usec;
  out.maxrss = from.ru_maxrss;
  out.minflt = from.ru_minflt;
  out.majflt = from.ru_majflt;
  out.inblock = from.ru_inblock;
  out.oublock = from.ru_oublock;
  out.nvcsw = from.ru_nvcsw;
  out.nivcsw = from.ru_nivcsw;
}

Usage read_usage(int who) {
  Usage out;
  rusage raw{};
  if (syscall6(__NR_getrusage, who, as_long(&raw)) == 0) fill(out, raw);
  return out;
}

ProcessUsage read_process() {
  ProcessUsage out{};
  out.cycles = cycles();
  char directory[64] = "/proc/self/";
  out.task = read_task(directory, out.own_io);
  for (unsigned i = 0; i < 2; ++i)
    out.late_io[i] = __atomic_load_n(&state.own_io[2 * i], __ATOMIC_RELAXED) - out.own_io[2 * i];
  out.self = read_usage(RUSAGE_SELF);
  out.children = read_usage(RUSAGE_CHILDREN);
  timespec cpu{};
  syscall6(__NR_clock_gettime, CLOCK_PROCESS_CPUTIME_ID, as_long(&cpu));
  out.cpu_ns = cpu.tv_sec * 1000000000 + cpu.tv_nsec;
  out.time = now_us();
  for (unsigned i = 0; i < kPerfEvents; ++i) {
    std::int64_t value = -1;
    if (state.perf[i] >= 0 && syscall6(__NR_read, state.perf[i], as_long(&value), 8) != 8)
      value = -1;
    out.perf[i] = value;
  }
  return out;
}

// The records of this process. They are not on the stack: a thread of PTHREAD_STACK_MIN may exit.

HEDDLE_LONG_DATA constinit Record record;

int own_id(long number, long argument = 0) { return static_cast<int>(syscall6(number, argument)); }

/// Adds the start to the record; to be appended.
void add_start() {
  record.begin(RecordType::start, state.pid, state.start, state.forked ? unsigned{kForked} : 0U);
  StartBody body{};
  body.previous = state.previous;
  body.cycles = state.cycles;
  body.failed_lookups = state.lookups ? state.lookups->failed : -1;
  body.ppid = own_id(__NR_getppid);
  body.pgid = own_id(__NR_getpgid);
  body.sid = own_id(__NR_getsid);
  body.rank = state.rank;
  body.ranks = state.ranks;
  record.add(body);
  record.add_target("/proc/self/exe");
  // A program that writes its title over its arguments goes on in the environment.
  const bool overwritten = !equal(state.original + kPathAt, state.variable + kPathAt);
  for (const char* text : {overwritten ? "" : state.tags, overwritten ? "" : state.container})
    if (!record.add_text(text)) (void)record.add_text("");
  if (state.variable[0] == 'f')
    for (int i = 1; i < state.argc && state.argv[i]; ++i)  // parsers of options put NULLs there
      if (overwritten || !record.add_text(state.argv[i])) {
        record.set_flag(kArgsCut);
        break;
      }
}

/// As add_start(), behind it.
void add_libraries() {
  record.follow(0, RecordType::libraries, state.pid, state.start,
                state.lookups ? unsigned{kLookups} : 0U);
  if (state.lookups) {
    const char* at = state.lookups->text;
    const char* const end = at + state.lookups->used;
    while (at < end) {
      const char* second = at + length(at) + 1;
      const char* third = second + length(second) + 1;
      const char* next = third + length(third) + 1;
      if (static_cast<unsigned long>(next - at) > record.room()) {
        record.append();
      }
      if (static_cast<unsigned long>(next - at) <= record.room())
        for (; at < next; at += length(at) + 1) (void)record.add_text(at);
      at = next;
    }
  } else if (&_r_debug) {
    for (const link_map* map = _r_debug.r_map; map; map = map->l_next) {
      // The program and the vDSO have no path, this library is no part of the job.
      if (!map->l_name || *map->l_name != '/' || is_us(*map)) continue;
      if (record.add_text(map->l_name)) continue;
      record.append();
      (void)record.add_text(map->l_name);
    }
  }
}

void write_threads() {
  char directory[64] = "/proc/self/task/";
  const long fd =
      syscall6(__NR_openat, AT_FDCWD, as_long(directory), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  char* const name = directory + length(directory);
  alignas(8) char entries[512];
  for (long got; (got = syscall6(__NR_getdents64, fd, as_long(entries), sizeof entries)) > 0;) {
    for (long at = 0; at < got;) {
      const auto& entry = *reinterpret_cast<const DirectoryEntry*>(entries + at);
      at += entry.size;
      if (entry.name[0] == '.') continue;
      copy(copy(name, entry.name), "/");
      const char* digits = entry.name;
      auto task = read_task(directory);
      task.tid = next_number(digits);
      if (sizeof task > record.room()) {
        record.append();
        record.begin(RecordType::threads, state.pid, state.start);
      }
      record.add(task);
    }
  }
  syscall6(__NR_close, fd);
}

/// Appends what this process did. Once; not in a child that shares its parent's memory (vfork), and
/// not where a system call may be the last (seccomp).
void write_end(int status) {
  if (!state.variable || state.sandboxed || own_id(__NR_getpid) != state.pid ||
      __atomic_exchange_n(&state.ended, true, __ATOMIC_RELAXED))
    return;
  record.begin(RecordType::end, state.pid, state.start);
  if (state.forked) add_start();
  add_libraries();
  record.follow(sizeof(EndBody), RecordType::end, state.pid, state.start);
  EndBody body{};
  body.status = status;
  body.ppid = own_id(__NR_getppid);
  body.pgid = own_id(__NR_getpgid);
  body.sid = own_id(__NR_getsid);
  body.threads = __atomic_load_n(&state.threads, __ATOMIC_RELAXED);
  body.perf_error = state.perf_error;
  body.behind = static_cast<std::int32_t>(record.before());
  body.failed_lookups = state.lookups ? state.lookups->failed : -1;
  body.usage = read_process();
  record.add(body);
  if (body.usage.task.num_threads > 1 || body.threads > 1) write_threads();
  record.append();
}

void write_reaped(pid_t pid, int status, const rusage& usage) {
  if (!state.variable || state.sandboxed || (!WIFEXITED(status) && !WIFSIGNALED(status))) return;
  // On a stack that may be a signal handler's, so it is small.
  RecordOf<sizeof(RecordHeader) + sizeof(ReapedBody)> reaped;
  reaped.begin(RecordType::reaped, pid, 0);
  ReapedBody body{};
  body.time = now_us();
  body.parent = state.pid;
  body.parent_start = state.start;
  body.status = status;
  fill(body.usage, usage);
  reaped.add(body);
  reaped.append();
}

/// Of the program, begun at `start`, that this process executed before another one.
template <class Any>
void write_exec(Any& told, std::int64_t start) {
  told.begin(RecordType::exec, state.pid, start);
  EndBody body{};
  body.status = -1;
  body.ppid = own_id(__NR_getppid);
  body.pgid = own_id(__NR_getpgid);
  body.sid = own_id(__NR_getsid);
  body.failed_lookups = -1;
  body.usage = read_process();
  told.add(body);
  told.append();
}

void open_perf_events() {
  static constexpr std::uint64_t kEvents[kPerfEvents] = {
      PERF_COUNT_SW_CPU_CLOCK, PERF_COUNT_SW_TASK_CLOCK, PERF_COUNT_SW_PAGE_FAULTS,
      PERF_COUNT_SW_CONTEXT_SWITCHES, PERF_COUNT_SW_CPU_MIGRATIONS};
  for (unsigned i = 0; i < kPerfEvents; ++i) {
    perf_event_attr attributes{};
    attributes.type = PERF_TYPE_SOFTWARE;
    attributes.size = sizeof attributes;
    attributes.config = kEvents[i];
    attributes.inherit = 1;
    attributes.inherit_thread = 1;
    long fd = syscall6(__NR_perf_event_open, as_long(&attributes), 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    // Without the kernel's part context switches and migrations read 0, which would be a lie.
    if (fd == -EACCES && i < 3) {
      attributes.exclude_kernel = 1;
      fd = syscall6(__NR_perf_event_open, as_long(&attributes), 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    }
    if (fd < 0) {
      if (state.perf_error == 0) state.perf_error = static_cast<int>(-fd);
      continue;
    }
    // Out of the way of programs that expect their first descriptor to be 3.
    const long high = syscall6(__NR_fcntl, fd, F_DUPFD_CLOEXEC, 900 + i);
    if (high >= 0) syscall6(__NR_close, fd);
    state.perf[i] = static_cast<int>(high >= 0 ? high : fd);
  }
}

// The start.

const char* value_in(const char* entry, const char* name) {
  const char* rest = behind(entry, name);
  return rest && *rest == '=' ? rest + 1 : nullptr;
}

int number_of(const char* text) { return text ? static_cast<int>(next_number(text)) : -1; }

/// Writes `value` as `count` digits.
void write_digits(char* out, std::int64_t value, unsigned count) {
  while (count > 0) {
    out[--count] = static_cast<char>('0' + value % 10);
    value /= 10;
  }
}

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
  state.start = now_us();
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
  state.start = now_us();
  state.cycles = cycles();
  char* const self = at + kModes + 1;
  if (read_digits(self, kPidDigits) == state.pid) {
    state.previous = read_digits(self + kPidDigits, kStartDigits);
    write_exec(record, state.previous);
  }
  write_digits(self, state.pid, kPidDigits);
  write_digits(self + kPidDigits, state.start, kStartDigits);
  if (at[1] == 'p') open_perf_events();
  add_start();
  record.append();
  // The first registration is the last to run, behind the destructors of all libraries.
  if (&on_exit) (void)on_exit(exited, nullptr);
  if (&__register_atfork) (void)__register_atfork(nullptr, nullptr, forked, nullptr);
}

/// Without on_exit (musl), whose status is then unknown.
__attribute__((destructor)) void finish() {
  if (!&on_exit) write_end(-1);
}

// Interposed functions call the next definition: libc's, or another preload's.

unsigned gnu_hash(const char* name) {
  unsigned hash = 5381;
  for (; *name; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

/// The function `name` of `map`, in its default version. dlsym would do it, but is in a library of
/// its own before glibc 2.34.
void* find_in(const link_map& map, const char* name) {
  const unsigned* hashes = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Half)* versions = nullptr;
  const auto at = [&](const ElfW(Dyn) & entry) {
    // ld.so has relocated it, but not in the vDSO.
    return entry.d_un.d_ptr < map.l_addr ? entry.d_un.d_ptr + map.l_addr : entry.d_un.d_ptr;
  };
  for (const ElfW(Dyn)* entry = map.l_ld; entry && entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_GNU_HASH) hashes = reinterpret_cast<const unsigned*>(at(*entry));
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(at(*entry));
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(at(*entry));
    if (entry->d_tag == DT_VERSYM) versions = reinterpret_cast<const ElfW(Half)*>(at(*entry));
  }
  if (!hashes || !symbols || !strings) return nullptr;
  const unsigned buckets = hashes[0], first = hashes[1], bloom = hashes[2];
  const unsigned* const bucket = hashes + 4 + bloom * (sizeof(ElfW(Addr)) / 4);
  const unsigned* const chain = bucket + buckets;
  const unsigned hash = gnu_hash(name);
  if (buckets == 0) return nullptr;
  for (unsigned i = bucket[hash % buckets]; i >= first; ++i) {
    const unsigned found = chain[i - first];
    const auto& symbol = symbols[i];
    if ((found | 1U) == (hash | 1U) && symbol.st_shndx != SHN_UNDEF &&
        !(versions && (versions[i] & 0x8000U)) && equal(strings + symbol.st_name, name))
      return reinterpret_cast<void*>(map.l_addr + symbol.st_value);
    if (found & 1U) break;
  }
  return nullptr;
}

void* find_next(const char* name) {
  bool behind_us = false;
  for (const link_map* map = &_r_debug ? _r_debug.r_map : nullptr; map; map = map->l_next) {
    if (behind_us)
      if (void* found = find_in(*map, name)) return found;
    if (is_us(*map)) behind_us = true;
  }
  return nullptr;
}

/// The next definition of an interposed function.
template <class Function>
class Next {
 public:
  explicit constexpr Next(const char* name) : name_(name) {}
  Function* get() {
    void* found = __atomic_load_n(&found_, __ATOMIC_RELAXED);
    if (!found) __atomic_store_n(&found_, found = find_next(name_), __ATOMIC_RELAXED);
    return reinterpret_cast<Function*>(found);
  }

 private:
  const char* name_;
  void* found_ = nullptr;
};

// Programs that this library cannot be in.

constexpr unsigned kLongestPath = 1024;  ///< on the stack, which a vfork shares

constexpr unsigned kFdLink = 28;
/// `out` (kFdLink): /proc/self/fd/FD.
const char* fd_link(char* out, long fd) {
  char digits[11] = {};
  write_digits(digits, fd, 10);
  const char* first = digits;
  while (*first == '0' && first[1]) ++first;
  copy(copy(out, "/proc/self/fd/"), first);
  return out;
}

/// Whether the program at `path` is static, or gets rights that the caller has not; then `real`
/// (kLongestPath) is its path. `own`: not in a vfork.
bool is_foreign(const char* path, char* real, bool own) {
  struct stat st {};
  if (syscall6(__NR_newfstatat, AT_FDCWD, as_long(path), as_long(&st), 0) != 0 ||
      !S_ISREG(st.st_mode) || (st.st_mode & 0111U) == 0)
    return false;
  bool foreign =
      ((st.st_mode & S_ISUID) != 0 && st.st_uid != static_cast<uid_t>(own_id(__NR_geteuid))) ||
      ((st.st_mode & S_ISGID) != 0 && (st.st_mode & S_IXGRP) != 0 &&
       st.st_gid != static_cast<gid_t>(own_id(__NR_getegid)));
  // It may be executable and not readable.
  const int flags = foreign ? O_PATH : O_RDONLY | O_NONBLOCK | O_NOCTTY;
  const long fd = syscall6(__NR_openat, AT_FDCWD, as_long(path), flags | O_CLOEXEC);
  if (fd < 0) return false;
  if (!foreign) {
    alignas(8) char head[kLongestPath];
    const long n = syscall6(__NR_read, fd, as_long(head), sizeof head);
    if (own) count_own(0, n);
    const auto& elf = *reinterpret_cast<const ElfW(Ehdr)*>(head);
    if (n >= static_cast<long>(sizeof elf) && head[0] == ELFMAG0 && head[1] == ELFMAG1 &&
        head[2] == ELFMAG2 && head[3] == ELFMAG3 && elf.e_phentsize == sizeof(ElfW(Phdr)) &&
        elf.e_phoff % 8 == 0 && elf.e_phoff <= static_cast<unsigned long>(n) &&
        elf.e_phnum <= (static_cast<unsigned long>(n) - elf.e_phoff) / sizeof(ElfW(Phdr))) {
      foreign = true;
      const auto* at = reinterpret_cast<const ElfW(Phdr)*>(head + elf.e_phoff);
      for (unsigned i = 0; i < elf.e_phnum; ++i)
        if (at[i].p_type == PT_INTERP) foreign = false;
    }
  }
  if (foreign) {
    char link[kFdLink];
    const long size = syscall6(__NR_readlinkat, AT_FDCWD, as_long(fd_link(link, fd)), as_long(real),
                               kLongestPath - 1);
    real[size > 0 ? size : 0] = '\0';
    foreign = size > 0;
  }
  syscall6(__NR_close, fd);
  return foreign;
}

/// The file that execvp(3) finds for `name`, in `out` (kLongestPath) if it has no slash; null:
/// none.
const char* find_in_path(const char* name, char* out) {
  if (!name || !state.variable || state.sandboxed) return nullptr;
  for (const char* c = name; *c; ++c)
    if (*c == '/') return name;
  const char* path = nullptr;
  for (char** entry = &environ ? environ : nullptr; entry && *entry && !path; ++entry)
    path = value_in(*entry, "PATH");
  while (path) {
    const char* end = path;
    while (*end && *end != ':') ++end;
    if (static_cast<unsigned long>(end - path) + length(name) + 2 <= kLongestPath) {
      char* to = out;
      while (path < end) *to++ = *path++;
      if (to != out) *to++ = '/';
      copy(to, name);
      if (syscall6(__NR_faccessat, AT_FDCWD, as_long(out), X_OK) == 0) return out;
    }
    path = *end ? end + 1 : nullptr;
  }
  return nullptr;
}

void write_foreign(int pid, int ppid, std::int64_t previous, std::int64_t start, const char* path,
                   char* const* argv, bool own) {
  RecordOf<2048> told;
  told.begin(RecordType::start, pid, start, kForeign);
  StartBody body{};
  body.previous = previous;
  body.failed_lookups = -1;
  body.ppid = ppid;
  body.pgid = own_id(__NR_getpgid, pid);
  body.sid = own_id(__NR_getsid, pid);
  body.rank = state.rank;
  body.ranks = state.ranks;
  told.add(body);
  for (const char* text : {path, "", ""}) (void)told.add_text(text);
  if (state.variable[0] == 'f')
    for (int i = 1; argv && argv[0] && argv[i]; ++i)
      if (!told.add_text(argv[i])) {
        told.set_flag(kArgsCut);
        break;
      }
  told.append(own);
}

/// Before this process executes `path`, or a child of it that shares its memory (vfork).
void before_exec(const char* path, char* const* argv) {
  char real[kLongestPath];
  if (!state.variable || state.sandboxed || !path) return;
  const int pid = own_id(__NR_getpid);
  const bool is_own = pid == state.pid;
  if (!is_foreign(path, real, is_own)) return;
  if (is_own && !state.forked) {
    RecordOf<sizeof(RecordHeader) + sizeof(EndBody)> told;
    write_exec(told, state.start);
  }
  write_foreign(pid, own_id(__NR_getppid), is_own ? state.start : 0, now_us(), real, argv, is_own);
}

[[noreturn]] void leave(int status) {
  for (;;) syscall6(__NR_exit_group, status);
}

}  // namespace

// Interposed functions.

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

using Exec = int(const char*, char* const*);
using Execve = int(const char*, char* const*, char* const*);
HEDDLE_EXPORT int execve(const char* path, char* const* argv, char* const* envp) {
  static constinit Next<Execve> next("execve");
  before_exec(path, argv);
  auto* function = next.get();
  return function ? function(path, argv, envp) : -1;
}
HEDDLE_EXPORT int execv(const char* path, char* const* argv) {
  static constinit Next<Exec> next("execv");
  before_exec(path, argv);
  auto* function = next.get();
  return function ? function(path, argv) : -1;
}
HEDDLE_EXPORT int execvp(const char* file, char* const* argv) {
  static constinit Next<Exec> next("execvp");
  char path[kLongestPath];
  before_exec(find_in_path(file, path), argv);
  auto* function = next.get();
  return function ? function(file, argv) : -1;
}
HEDDLE_EXPORT int execvpe(const char* file, char* const* argv, char* const* envp) {
  static constinit Next<Execve> next("execvpe");
  char path[kLongestPath];
  before_exec(find_in_path(file, path), argv);
  auto* function = next.get();
  return function ? function(file, argv, envp) : -1;
}

HEDDLE_EXPORT int fexecve(int fd, char* const* argv, char* const* envp) {
  static constinit Next<int(int, char* const*, char* const*)> next("fexecve");
  char link[kFdLink];
  before_exec(fd_link(link, fd), argv);
  auto* function = next.get();
  return function ? function(fd, argv, envp) : -1;
}

// libc's make a list of their words and call its own execve.

/// The words of `first` and behind it in `words`, whose list ends behind the null.
#define HEDDLE_WORDS(first)                                                          \
  va_list list;                                                                      \
  va_start(list, first);                                                             \
  unsigned long count = 1;                                                           \
  for (const char* word = first; word; word = va_arg(list, const char*)) ++count;    \
  va_end(list);                                                                      \
  char** const words = static_cast<char**>(__builtin_alloca(count * sizeof(char*))); \
  va_start(list, first);                                                             \
  words[0] = const_cast<char*>(first);                                               \
  for (unsigned long i = 1; i < count; ++i) words[i] = va_arg(list, char*)

HEDDLE_EXPORT int execl(const char* path, const char* first, ...) {
  HEDDLE_WORDS(first);
  va_end(list);
  return execv(path, words);
}
HEDDLE_EXPORT int execlp(const char* file, const char* first, ...) {
  HEDDLE_WORDS(first);
  va_end(list);
  return execvp(file, words);
}
HEDDLE_EXPORT int execle(const char* path, const char* first, ...) {
  HEDDLE_WORDS(first);
  char* const* const envp = va_arg(list, char* const*);
  va_end(list);
  return execve(path, words, envp);
}

using Spawn = int(pid_t*, const char*, const void*, const void*, char* const*, char* const*);
namespace {
int spawn(Spawn* function, const char* path, pid_t* pid, const char* file, const void* actions,
          const void* attributes, char* const* argv, char* const* envp) {
  if (!function) return 38;  // ENOSYS
  pid_t unused = 0;
  pid_t* const at = pid ? pid : &unused;
  const auto start = now_us();
  const int result = function(at, file, actions, attributes, argv, envp);
  char real[kLongestPath];
  if (result == 0 && state.variable && !state.sandboxed && path && is_foreign(path, real, true))
    write_foreign(*at, state.pid, 0, start, real, argv, true);
  return result;
}
}  // namespace
HEDDLE_EXPORT int posix_spawn(pid_t* pid, const char* path, const void* actions,
                              const void* attributes, char* const* argv, char* const* envp) {
  static constinit Next<Spawn> next("posix_spawn");
  return spawn(next.get(), path, pid, path, actions, attributes, argv, envp);
}
HEDDLE_EXPORT int posix_spawnp(pid_t* pid, const char* file, const void* actions,
                               const void* attributes, char* const* argv, char* const* envp) {
  static constinit Next<Spawn> next("posix_spawnp");
  char path[kLongestPath];
  return spawn(next.get(), find_in_path(file, path), pid, file, actions, attributes, argv, envp);
}

// A child's end. libc's wait4 is a cancellation point and sets errno.

using Wait4 = pid_t(pid_t, int*, int, rusage*);
namespace {
/// `wait` reaps a child, and fills both; the caller of ours may have asked for neither.
template <class Wait>
long reap(int* status, rusage* usage, const Wait& wait) {
  int unused_status = 0;
  rusage unused_usage{};
  int* const at = status ? status : &unused_status;
  rusage* const used = usage ? usage : &unused_usage;
  const long got = wait(at, used);
  if (got > 0) write_reaped(static_cast<pid_t>(got), *at, *used);
  return got;
}
pid_t wait_for(pid_t pid, int* status, int options, rusage* usage) {
  static constinit Next<Wait4> next("wait4");
  auto* function = next.get();
  if (!function) return -1;
  return static_cast<pid_t>(
      reap(status, usage, [&](int* at, rusage* used) { return function(pid, at, options, used); }));
}
}  // namespace
HEDDLE_EXPORT pid_t wait4(pid_t pid, int* status, int options, rusage* usage) {
  return wait_for(pid, status, options, usage);
}
HEDDLE_EXPORT pid_t wait3(int* status, int options, rusage* usage) {
  return wait_for(-1, status, options, usage);
}
HEDDLE_EXPORT pid_t waitpid(pid_t pid, int* status, int options) {
  return wait_for(pid, status, options, nullptr);
}
HEDDLE_EXPORT pid_t wait(int* status) { return wait_for(-1, status, 0, nullptr); }

// libc's has no usage: it only waits, and the system call, which has, reaps.
HEDDLE_EXPORT int waitid(idtype_t which, id_t id, siginfo_t* info, int options) {
  static constinit Next<int(idtype_t, id_t, siginfo_t*, int)> next("waitid");
  auto* function = next.get();
  if (!function) return -1;
  if (!state.variable || state.sandboxed || (options & WEXITED) == 0 || (options & WNOWAIT) != 0)
    return function(which, id, info, options);
  for (;;) {
    siginfo_t child{};
    const int result = function(which, id, &child, options | WNOWAIT);
    rusage usage{};
    // Another thread may wait for the same child, and be the first.
    if (result == 0 && child.si_pid != 0 &&
        (syscall6(__NR_waitid, P_PID, child.si_pid, as_long(&child), options | WNOHANG,
                  as_long(&usage)) != 0 ||
         child.si_pid == 0))
      continue;
    if (result == 0 && child.si_pid != 0)
      write_reaped(child.si_pid,
                   child.si_code == CLD_EXITED   ? (child.si_status & 0xff) << 8
                   : child.si_code == CLD_KILLED ? child.si_status
                   : child.si_code == CLD_DUMPED ? child.si_status | 0x80
                                                 : 0x7f,  // stopped
                   usage);
    if (info) *info = child;  // on failure the kernel clears it
    return result;
  }
}

// A program that takes system calls away from itself may be killed by the first of ours.

using Prctl = int(int, unsigned long, unsigned long, unsigned long, unsigned long);
HEDDLE_EXPORT int prctl(int what, unsigned long a, unsigned long b, unsigned long c,
                        unsigned long d) {
  static constinit Next<Prctl> next("prctl");
  if (what == PR_SET_SECCOMP) state.sandboxed = true;
  auto* function = next.get();
  return function ? function(what, a, b, c, d)
                  : static_cast<int>(syscall6(__NR_prctl, what, static_cast<long>(a),
                                              static_cast<long>(b), static_cast<long>(c),
                                              static_cast<long>(d)));
}
// <unistd.h> declares it with an ellipsis.
HEDDLE_EXPORT long all_of_syscall(long number, long a, long b, long c, long d, long e,
                                  long f) __asm__("syscall");
long all_of_syscall(long number, long a, long b, long c, long d, long e, long f) {
  using Call = long(long, long, long, long, long, long, long);
  static constinit Next<Call> next("syscall");
  if (number == __NR_seccomp && a < 2) state.sandboxed = true;  // others ask only
  auto* function = next.get();
  if (!function) return -1;
  if (number != __NR_wait4) return function(number, a, b, c, d, e, f);
  // Not by libc's wait4(), where a thread can be cancelled.
  return reap(reinterpret_cast<int*>(b), reinterpret_cast<rusage*>(d), [&](int* at, rusage* used) {
    return function(number, a, as_long(at), c, as_long(used), e, f);
  });
}
HEDDLE_EXPORT int seccomp_load(void* filter) {
  static constinit Next<int(void*)> next("seccomp_load");
  state.sandboxed = true;
  auto* function = next.get();
  return function ? function(filter) : -38;  // ENOSYS
}

// The auditor's role.

namespace {

void keep(const char* path) {
  if (!seen->is_pending) return;
  char digits[24];
  write_digits(digits, seen->pending_failed, 10);
  digits[10] = '\0';
  const unsigned long size = length(seen->pending_name) + length(path) + 13;
  if (size > sizeof seen->text - seen->used) {
    seen->cut = true;
  } else {
    for (const char* text :
         {static_cast<const char*>(seen->pending_name), path, static_cast<const char*>(digits)})
      seen->used = static_cast<unsigned long>(copy(seen->text + seen->used, text) - seen->text) + 1;
  }
  seen->is_pending = false;
}

}  // namespace

/// 0, without room for what it sees: ld.so goes on without this auditor.
HEDDLE_EXPORT unsigned la_version(unsigned version) {
  const long at = syscall6(__NR_mmap, 0, sizeof(Lookups), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at < 0 && at >= -4095) return 0;
  seen = reinterpret_cast<Lookups*>(at);
  return version < 2 ? version : 2;
}

HEDDLE_EXPORT char* la_objsearch(const char* name, uintptr_t*, unsigned flag) {
  if (flag == LA_SER_ORIG) {
    keep("");  // the one before was not found
    if (length(name) < sizeof seen->pending_name) {
      copy(seen->pending_name, name);
      seen->pending_failed = 0;
      seen->is_pending = true;
    }
  } else if (seen->is_pending) {
    ++seen->pending_failed;
    ++seen->failed;
  }
  return const_cast<char*>(name);
}

HEDDLE_EXPORT unsigned la_objopen(link_map* map, Lmid_t, uintptr_t*) {
  const bool has_our_layout =
      map->l_ld && map->l_addr + static_cast<unsigned long>(
                                     reinterpret_cast<const char*>(_DYNAMIC) - __ehdr_start) ==
                       reinterpret_cast<unsigned long>(map->l_ld);
  const char* base = map->l_name ? map->l_name : "";
  for (const char* c = base; *c; ++c)
    if (*c == '/') base = c + 1;
  if (has_our_layout && equal(base, "libheddle-job.so")) {
    reinterpret_cast<State*>(
        map->l_addr + static_cast<unsigned long>(reinterpret_cast<char*>(&state) - __ehdr_start))
        ->lookups = seen;
    seen->is_pending = false;
    return 0;
  }
  if (seen->is_pending) {
    // The last path that was tried is the one that was mapped.
    if (seen->pending_failed > 0) --seen->pending_failed, --seen->failed;
    keep(map->l_name ? map->l_name : "");
  }
  return 0;
}

}  // namespace heddle::jobs
