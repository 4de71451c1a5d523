// SPDX-License-Identifier: MIT

// The records that a process appends to the job's file.

#include <sys/wait.h>

#include <cstddef>
#include <initializer_list>

#include "jobs/collector/process.hpp"

namespace heddle::jobs {
namespace {

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
    // Not of a limit that the program has: its parent tells its end.
    if (fits && n != static_cast<long>(used_)) syscall6(__NR_fchmod, fd, kLostMode);
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

// The records of this process. They are not on the stack: a thread of PTHREAD_STACK_MIN may exit.

HEDDLE_LONG_DATA constinit Record record;

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

}  // namespace

void write_start() {
  add_start();
  record.append();
}

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

void write_exec(std::int64_t start, unsigned flags) {
  RecordOf<sizeof(RecordHeader) + sizeof(EndBody)> told;
  told.begin(RecordType::exec, state.pid, start, flags);
  EndBody body{};
  body.status = -1;
  body.ppid = own_id(__NR_getppid);
  body.pgid = own_id(__NR_getpgid);
  body.sid = own_id(__NR_getsid);
  body.failed_lookups = -1;
  body.usage = read_process(flags != 0);
  told.add(body);
  told.append();
}

void write_reaped(pid_t pid, int status, const rusage& usage) {
  if (!state.variable || state.sandboxed || (!WIFEXITED(status) && !WIFSIGNALED(status))) return;
  // On a stack that may be a signal handler's, so it is small.
  RecordOf<sizeof(RecordHeader) + sizeof(ReapedBody)> reaped;
  reaped.begin(RecordType::reaped, pid, 0);
  ReapedBody body{};
  body.time = real_time_us();
  body.parent = state.pid;
  body.parent_start = state.start;
  body.status = status;
  fill(body.usage, usage);
  reaped.add(body);
  reaped.append();
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

}  // namespace heddle::jobs
