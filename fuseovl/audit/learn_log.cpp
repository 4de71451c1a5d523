// SPDX-License-Identifier: MIT
#include "fuseovl/audit/learn_log.hpp"

#include <limits.h>

#include "fuseovl/audit/kernel.hpp"
#include "fuseovl/audit/text.hpp"
#include "resolver/map/learn_format.hpp"

namespace heddle::audit {
namespace {

// Not on the stack: a thread of PTHREAD_STACK_MIN may call dlopen. Callers hold ld.so's lock.
constinit char record_bytes[3 * PATH_MAX];
constinit char one_path[PATH_MAX];

/// One record in the making; too long a one is dropped. One at a time.
class Record {
 public:
  void add(const char* field) {
    const unsigned long size = length(field) + 1;
    if (size > sizeof record_bytes - used_) {
      whole_ = false;
      return;
    }
    copy(record_bytes + used_, field);
    used_ += size;
  }
  void add_program() {
    const long n = syscall6(__NR_readlinkat, AT_FDCWD, as_long("/proc/self/exe"), as_long(one_path),
                            sizeof one_path - 1);
    one_path[n > 0 ? n : 0] = '\0';
    if (n <= 0) whole_ = false;
    add(one_path);
  }
  /// `path` made absolute.
  void add_path(const char* path) {
    if (*path == '/') return add(path);
    // The kernel counts the NUL; "(unreachable)" folders do not begin with a slash.
    const long n = syscall6(__NR_getcwd, as_long(one_path), sizeof one_path);
    if (n <= 0 || *one_path != '/') {
      whole_ = false;
      return;
    }
    add(one_path);
    if (used_ > 0) record_bytes[used_ - 1] = '/';
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
      syscall6(__NR_write, fd, as_long(record_bytes), static_cast<long>(used_));
    syscall6(__NR_close, fd);
  }

 private:
  unsigned long used_ = 0;
  bool whole_ = true;
};

void log_program(const char* file) {
  Record record;
  record.add(learn_format::kProgram);
  record.add_program();
  record.add("");
  record.add("");
  record.append_to(file);
}

void log_library(const char* file, const char* name, const char* path) {
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
