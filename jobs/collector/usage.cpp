// SPDX-License-Identifier: MIT

// What this process has used: /proc, getrusage(2), perf events.

#include <errno.h>
#include <linux/perf_event.h>

#include "jobs/collector/process.hpp"

namespace heddle::jobs {
namespace {

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

Usage read_usage(int who) {
  Usage out;
  rusage raw{};
  if (syscall6(__NR_getrusage, who, as_long(&raw)) == 0) fill(out, raw);
  return out;
}

/// Of this program alone, in KiB; -1: unknown.
std::int64_t peak_memory() {
  const long fd =
      syscall6(__NR_openat, AT_FDCWD, as_long("/proc/self/status"), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  // In pieces, since there may be many groups; the end of each, which may be half a line, is put
  // before the next one.
  char text[512];
  unsigned kept = 0;
  std::int64_t out = -1;
  for (long n; out < 0 && (n = syscall6(__NR_read, fd, as_long(text + kept),
                                        static_cast<long>(sizeof text - 1 - kept))) > 0;) {
    count_own(0, n);
    const unsigned size = kept + static_cast<unsigned>(n);
    text[size] = '\0';
    for (const char* at = text; *at && out < 0; ++at)
      if (const char* value = behind(at, "\nVmHWM:")) {
        const auto number = next_number(value);
        if (*value) out = number;
      }
    kept = size < 64 ? size : 64;
    for (unsigned i = 0; i < kept; ++i) text[i] = text[size - kept + i];
  }
  syscall6(__NR_close, fd);
  return out;
}

}  // namespace

std::int64_t next_number(const char*& at) {
  while (*at && (*at < '0' || *at > '9')) ++at;
  if (!*at) return -1;
  // Unsigned, as some fields are (rsslim of /proc/PID/stat): no overflow of those.
  std::uint64_t value = 0;
  while (*at >= '0' && *at <= '9') value = value * 10 + static_cast<unsigned>(*at++ - '0');
  return static_cast<std::int64_t>(value);
}

TaskUsage read_task(char* directory, std::int64_t* own_before_io) {
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

ProcessUsage read_process(bool is_same) {
  ProcessUsage out{};
  const auto peak = is_same ? peak_memory() : -1;
  out.cycles = cycles();
  char directory[64] = "/proc/self/";
  out.task = read_task(directory, out.own_io);
  for (unsigned i = 0; i < 2; ++i)
    out.late_io[i] = __atomic_load_n(&state.own_io[2 * i], __ATOMIC_RELAXED) - out.own_io[2 * i];
  out.self = read_usage(RUSAGE_SELF);
  // getrusage(2) has that of the programs before, and of the process that it was forked from.
  if (peak >= 0 && peak < out.self.maxrss) out.self.maxrss = peak;
  out.children = read_usage(RUSAGE_CHILDREN);
  timespec cpu{};
  syscall6(__NR_clock_gettime, CLOCK_PROCESS_CPUTIME_ID, as_long(&cpu));
  out.cpu_ns = cpu.tv_sec * 1000000000 + cpu.tv_nsec;
  out.time = real_time_us();
  for (unsigned i = 0; i < kPerfEvents; ++i) {
    std::int64_t value = -1;
    if (state.perf[i] >= 0 && syscall6(__NR_read, state.perf[i], as_long(&value), 8) != 8)
      value = -1;
    out.perf[i] = value;
  }
  return out;
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

}  // namespace heddle::jobs
