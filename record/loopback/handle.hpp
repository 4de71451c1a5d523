// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/fd.hpp"

namespace heddle::loopback {

/// One open of a file or folder: the kernel's fh is its address.
struct Handle {
  Fd fd;
  std::uint64_t node = 0;
  std::int64_t number = -1;  ///< in the trace; -1 for folders
  /// Who opened it: the kernel does not say who closed it, and he may be in the midst of execve.
  std::int32_t tid = 0, pid = 0;
  std::string_view exe;  ///< the log's; pid 0: not known
  bool append = false;
  std::string path;
  std::mutex mutex;             ///< the folder's position, the flags of fd
  std::int64_t dir_offset = 0;  ///< where fd stands
  std::atomic<std::int64_t> reads{0}, read_bytes{0}, writes{0}, write_bytes{0};

  std::uint64_t fh() const { return reinterpret_cast<std::uintptr_t>(this); }
  static Handle& of(std::uint64_t fh) { return *reinterpret_cast<Handle*>(fh); }
};

/// Owns the handles, so that those still open at the end are known.
class HandleSet {
 public:
  ~HandleSet() {
    for (Handle* handle : all_) delete handle;
  }
  Handle& add(Fd fd, std::uint64_t node, std::int32_t tid, std::string path) {
    auto* handle = new Handle;
    handle->fd = std::move(fd);
    handle->node = node;
    handle->tid = tid;
    handle->path = std::move(path);
    const std::lock_guard lock(mutex_);
    all_.insert(handle);
    return *handle;
  }
  std::int64_t next_number() { return ++last_number_; }
  void remove(Handle& handle) {
    {
      const std::lock_guard lock(mutex_);
      all_.erase(&handle);
    }
    delete &handle;
  }
  template <class Visit>
  void each(Visit visit) {
    const std::lock_guard lock(mutex_);
    for (Handle* handle : all_) visit(*handle);
  }

 private:
  std::mutex mutex_;
  std::unordered_set<Handle*> all_;
  std::atomic<std::int64_t> last_number_{0};
};

}  // namespace heddle::loopback
