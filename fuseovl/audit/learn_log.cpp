// SPDX-License-Identifier: MIT
#include "fuseovl/audit/learn_log.hpp"

#include <limits.h>

#include "fuseovl/audit/kernel.hpp"
#include "fuseovl/audit/text.hpp"
#include "resolver/map/learn_format.hpp"

namespace heddle::audit {
namespace {

/// One record in the making; too long a one is dropped.
class Record {
 public:
  void add(const char* field) {
    const unsigned long size = length(field) + 1;
    if (size > sizeof bytes_ - used_) {
      whole_ = false;
      return;
    }
    copy(bytes_ + used_, field);
    used_ += size;
  }
  void add_program() {
    char path[PATH_MAX];
    const long n = syscall6(__NR_readlinkat, AT_FDCWD, as_long("/proc/self/exe"), as_long(path),
                            sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    if (n <= 0) whole_ = false;
    add(path);
  }
  /// `path` made absolute.
  void add_path(const char* path) {
    if (*path == '/') return add(path);
    char folder[PATH_MAX];
    // The kernel counts the NUL; "(unreachable)" folders do not begin with a slash.
    const long n = syscall6(__NR_getcwd, as_long(folder), sizeof folder);
    if (n <= 0 || *folder != '/') {
      whole_ = false;
      return;
    }
    add(folder);
    if (used_ > 0) bytes_[used_ - 1] = '/';
    add(path);
  }
  void append_to(const char* file) const {
    if (!whole_) return;
    // Opened each time: the program's descriptors are its own.
    const long fd = syscall6(__NR_openat, AT_FDCWD, as_long(file),
                             O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return;
    struct stat st;
    if (syscall6(__NR_fstat, fd, as_long(&st)) == 0 && S_ISREG(st.st_mode) &&
        st.st_size < learn_format::kMostBytes)
      syscall6(__NR_write, fd, as_long(bytes_), static_cast<long>(used_));
    syscall6(__NR_close, fd);
  }

 private:
  char bytes_[3 * PATH_MAX];
  unsigned long used_ = 0;
  bool whole_ = true;
};

// Frames of their own, never inlined: a thread of PTHREAD_STACK_MIN that learns nothing must not
// need the room of the buffers.
__attribute__((noinline)) void log_program(const char* file) {
  Record record;
  record.add(learn_format::kProgram);
  record.add_program();
  record.add("");
  record.add("");
  record.append_to(file);
}

__attribute__((noinline)) void log_library(const char* file, const char* name, const char* path) {
  Record record;
  record.add(learn_format::kLibrary);
  record.add_program();
  record.add(name);
  record.add_path(path);
  record.append_to(file);
}

}  // namespace

LearnLog::LearnLog(const StartBlock& start) : path_(start.variable(learn_format::kVariable)) {
  if (path_) log_program(path_);
}

void LearnLog::search(const char* name) {
  if (path_) pending_ = name;
}

void LearnLog::opened(const link_map& map) {
  if (!pending_) return;
  const char* name = pending_;
  pending_ = nullptr;
  if (map.l_name && *map.l_name) log_library(path_, name, map.l_name);
}

}  // namespace heddle::audit
