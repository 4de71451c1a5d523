// SPDX-License-Identifier: MIT
#pragma once

// System calls and string functions without a libc: a DT_NEEDED libc would be loaded a second time,
// into the auditor's namespace, by a search of its own. Failures are -errno.

#include <asm/unistd.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

namespace heddle::audit {

#if defined(__x86_64__)
inline long syscall6(long number, long a, long b = 0, long c = 0, long d = 0, long e = 0,
                     long f = 0) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
inline long syscall6(long number, long a, long b = 0, long c = 0, long d = 0, long e = 0,
                     long f = 0) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc #0"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory");
  return x0;
}
#else
#error "the audit library has no system calls for this machine yet"
#endif

inline long as_long(const void* pointer) { return reinterpret_cast<long>(pointer); }

enum class Mapping : unsigned char {
  whole,  ///< up to 4 MiB are read at once: a page fault later would need a daemon that is alive
  lazy,
  writable,
};

/// A mapping of the regular file at `path`, which is on `device`, or nullptr. FIFOs and devices do
/// not block it. Truncating the file ends this process (SIGBUS), so a writable one must be this
/// user's own; a readable one is as trusted as LD_LIBRARY_PATH, and a file of the mount cannot be
/// truncated.
inline void* map_file(const char* path, Mapping how, unsigned long& size,
                      unsigned long* device = nullptr) {
  const bool writable = how == Mapping::writable;
  const int open_flags = (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const long fd = syscall6(__NR_openat, AT_FDCWD, as_long(path), open_flags);
  if (fd < 0) return nullptr;
  struct stat st;
  void* out = nullptr;
  if (syscall6(__NR_fstat, fd, as_long(&st)) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 &&
      (!writable || st.st_uid == static_cast<unsigned long>(syscall6(__NR_geteuid, 0)))) {
    size = static_cast<unsigned long>(st.st_size);
    if (device) *device = st.st_dev;
    const bool whole = how == Mapping::whole && size <= (4UL << 20);
    const long at =
        syscall6(__NR_mmap, 0, st.st_size, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                 MAP_SHARED | (whole ? MAP_POPULATE : 0), fd, 0);
    if (at > 0 || at < -4095) out = reinterpret_cast<void*>(at);
  }
  syscall6(__NR_close, fd);
  return out;
}

inline void unmap(void* at, unsigned long size) {
  syscall6(__NR_munmap, as_long(at), static_cast<long>(size));
}

/// Zeroed private memory, or nullptr.
inline char* allocate(unsigned long size) {
  const long at = syscall6(__NR_mmap, 0, static_cast<long>(size), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at > 0 || at < -4095 ? reinterpret_cast<char*>(at) : nullptr;
}

/// linux_dirent64, of getdents64(2).
struct DirectoryEntry {
  unsigned long ino;
  long offset;
  unsigned short size;
  unsigned char type;
  char name[1];
};

inline bool stat_path(const char* path, struct stat& st) {
  return syscall6(__NR_newfstatat, AT_FDCWD, as_long(path), as_long(&st), 0) == 0;
}

inline bool path_exists(const char* path) {
  return syscall6(__NR_faccessat, AT_FDCWD, as_long(path), F_OK) == 0;
}

inline unsigned long own_pid() { return static_cast<unsigned long>(syscall6(__NR_getpid, 0)); }

inline unsigned long monotonic_ns() {
  timespec now;
  if (syscall6(__NR_clock_gettime, CLOCK_MONOTONIC, as_long(&now)) != 0) return 0;
  return static_cast<unsigned long>(now.tv_sec) * 1000000000UL +
         static_cast<unsigned long>(now.tv_nsec);
}

inline unsigned long length(const char* text) {
  unsigned long n = 0;
  while (text[n]) ++n;
  return n;
}

inline bool equal(const char* a, const char* b) {
  while (*a && *a == *b) ++a, ++b;
  return *a == *b;
}

/// What follows `prefix` in `text`, or nullptr.
inline const char* behind(const char* text, const char* prefix) {
  while (*prefix)
    if (*text++ != *prefix++) return nullptr;
  return text;
}

/// Copies `text` with its NUL to `out`; returns the NUL's address.
inline char* copy(char* out, const char* text) {
  while ((*out = *text)) ++out, ++text;
  return out;
}

}  // namespace heddle::audit
