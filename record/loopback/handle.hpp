// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/fd.hpp"
#include "record/loopback/io_modes.hpp"

namespace heddle::loopback {

/// One open of a file or directory: the kernel's fh is its address, good until RELEASE.
struct Handle {
  Fd fd;
  std::uint64_t node = 0;
  std::int64_t number = -1;  ///< in the trace; -1 for directories
  int access = 0;            ///< O_ACCMODE
  IoModes::Mode mode = IoModes::Mode::none;
  std::atomic<bool> append = false;
  /// Who opened it: the kernel does not say who closed it, and that may be in the midst of execve.
  std::int32_t tid = 0, pid = 0;
  std::string_view exe;  ///< the log's
  std::string path;
  std::mutex mutex;             ///< the directory's position, the flags of fd
  std::int64_t dir_offset = 0;  ///< where fd stands
  std::atomic<std::int64_t> reads = 0, read_bytes = 0, writes = 0, write_bytes = 0;

  std::uint64_t fh() const { return reinterpret_cast<std::uintptr_t>(this); }
  static Handle& of(std::uint64_t fh) { return *reinterpret_cast<Handle*>(fh); }
};

/// All of them, so that those still open at the end are known. Any thread.
class HandleSet {
 public:
  Handle& add(std::unique_ptr<Handle> handle) {
    const std::lock_guard lock(mutex_);
    Handle& out = *handle;
    all_.emplace(&out, std::move(handle));
    return out;
  }
  void remove(Handle& handle) {
    std::unique_ptr<Handle> removed;  // closed without the lock
    const std::lock_guard lock(mutex_);
    const auto at = all_.find(&handle);
    removed = std::move(at->second);
    all_.erase(at);
  }
  std::int64_t next_number() { return ++last_number_; }
  template <class Visit>
  void each(Visit visit) {
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, owned] : all_) visit(*handle);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<Handle*, std::unique_ptr<Handle>> all_;
  std::atomic<std::int64_t> last_number_ = 0;
};

}  // namespace heddle::loopback
