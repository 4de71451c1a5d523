// SPDX-License-Identifier: MIT

// Before a program executes another one; and those that this library cannot be in, whose start the
// process tells that executes or spawns one.

#include <elf.h>

#include <cstdarg>

#include "jobs/collector/interposed.hpp"
#include "jobs/collector/process.hpp"

namespace heddle::jobs {
namespace {

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

/// Before this process executes `path`, or a child of it that shares its memory (vfork).
void before_exec(const char* path, char* const* argv) {
  char real[kLongestPath];
  if (!state.variable || state.sandboxed || !path) return;
  const int pid = own_id(__NR_getpid);
  const bool is_own = pid == state.pid;
  const bool foreign = is_foreign(path, real, is_own);
  // A forked child writes its start with its end.
  if (is_own && !state.forked &&
      (foreign || syscall6(__NR_faccessat, AT_FDCWD, as_long(path), X_OK) == 0))
    write_exec(state.start, kBefore);
  if (foreign)
    write_foreign(pid, own_id(__NR_getppid), is_own ? state.start : 0, real_time_us(), real, argv,
                  is_own);
}

}  // namespace

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
  const auto start = real_time_us();
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

}  // namespace heddle::jobs
