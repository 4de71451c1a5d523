// SPDX-License-Identifier: MIT
#pragma once

// The records that the collector appends to the file of a job on a node, and fs-job reads. Private:
// both are of one build, and the file lives as long as the job. A record, or several of a process,
// is one write of at most kMostRecord bytes to a file opened with O_APPEND, so records of many
// processes never mix. A process may be killed between two of its writes, and a full disk may cut
// one.
//
// A program that a process executed is known by (pid, start). Its records:
//   start      from the constructor; of a forked child together with its end; of a static or setuid
//              program from the process that executes it, which may fail
//   end        at exit
//   exec       what the process had used by then: by the program itself before it executes the
//              next, so that what ld.so does is the next one's, and by that one
//   threads    more threads of the end
//   libraries  what was loaded at the end
// and `reaped`, by its parent, with pid alone. -1 is an unknown number.

#include <cstdint>

namespace heddle::jobs {

/// Set by fs-job: `MODES SELF:PATH`. Modes are letters, padded with '-' to 4: 'f' or 'e' (arguments
/// or only the program's path), 'p' (perf events). SELF is 28 digits, in which each process writes
/// its pid and start, so that the program that it executes next knows what to continue.
inline constexpr char kJobVariable[] = "HEDDLE_JOB";
inline constexpr unsigned kModes = 4;
inline constexpr unsigned kPidDigits = 10;
inline constexpr unsigned kStartDigits = 18;
inline constexpr char kJobPrefix[] = "---- 0000000000000000000000000000:";
inline constexpr unsigned kPathAt = sizeof(kJobPrefix) - 1;
inline constexpr unsigned kMostSpoolPath = 1000;
static_assert(kPathAt == kModes + 1 + kPidDigits + kStartDigits + 1);

inline constexpr std::uint32_t kRecordMagic = 0x314a4448;  // "HDJ1"
inline constexpr unsigned kMostRecord = 4096;

/// Of the records' file, once one could not be written: it needs no room.
inline constexpr unsigned kLostMode = 0700;

enum class RecordType : std::uint8_t { start = 1, end, exec, threads, libraries, reaped };

enum RecordFlag : std::uint8_t {
  kForked = 1,   ///< start: a fork without exec
  kArgsCut = 2,  ///< start: not all arguments
  kLookups = 4,  ///< libraries: (name, path, failed) as the auditor saw them; else paths
  kForeign = 8,  ///< start: of a program that cannot tell it, by the one that executes it
  kBefore = 16,  ///< exec: by the program itself; only what ended it tells whether it succeeded
  kHeddle = 32,  ///< start: of a program of heddle's, which is none of the job
};

struct RecordHeader {
  std::uint32_t magic;
  std::uint16_t size;  ///< with this header
  RecordType type;
  std::uint8_t flags;
  std::int32_t pid;
  std::uint32_t reserved;
  std::int64_t start;  ///< microseconds since the epoch
};
static_assert(sizeof(RecordHeader) == 24);

/// Of getrusage(2); times in microseconds.
struct Usage {
  std::int64_t utime = -1, stime = -1, maxrss = -1, minflt = -1, majflt = -1, inblock = -1,
               oublock = -1, nvcsw = -1, nivcsw = -1;
};

/// Of /proc/PID/task/TID/{stat,io,schedstat}, or of /proc/PID, where io is the process's and the
/// others are the main thread's.
struct TaskUsage {
  std::int64_t tid = -1;
  std::int64_t minflt = -1, majflt = -1, utime = -1, stime = -1;  ///< ticks
  std::int64_t num_threads = -1, starttime = -1, processor = -1, blkio = -1, guest = -1;
  std::int64_t io[7] = {-1, -1, -1, -1, -1, -1, -1};  ///< in the file's order
  std::int64_t sched[3] = {-1, -1, -1};               ///< likewise
};

inline constexpr unsigned kPerfEvents = 5;

/// What a process has used in all.
struct ProcessUsage {
  std::int64_t time;  ///< microseconds since the epoch
  std::int64_t cycles;
  std::int64_t cpu_ns;  ///< of all its threads
  Usage self;
  Usage children;
  TaskUsage task;
  /// The first four of task.io that were the collector's: before they were read, and reads (bytes,
  /// calls) of the same file and the next.
  std::int64_t own_io[4];
  std::int64_t late_io[2];
  std::int64_t perf[kPerfEvents];
};

/// Followed by strings with their NUL: path, tags, container, arguments without argv[0].
struct StartBody {
  std::int64_t previous;  ///< the start of the program before an exec; 0: none
  std::int64_t cycles;
  std::int64_t failed_lookups;
  std::int32_t ppid, pgid, sid, rank, ranks;
};

/// Followed by TaskUsage[] of all threads, if there are several.
struct EndBody {
  std::int32_t status;  ///< the exit status
  std::int32_t ppid, pgid, sid;
  std::int32_t threads;     ///< that were created, with the first
  std::int32_t perf_error;  ///< errno of the first event that failed; 0: none
  std::int32_t behind;      ///< bytes of the records before it in the same write
  std::int64_t failed_lookups;
  ProcessUsage usage;
};

struct ReapedBody {
  std::int64_t time;
  std::int64_t parent_start;
  std::int32_t parent;
  std::int32_t status;  ///< of wait4(2)
  Usage usage;          ///< of the child and of the children that it waited for
};

}  // namespace heddle::jobs
