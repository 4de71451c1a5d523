// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/fd.hpp"
#include "record/loopback/block_store.hpp"

namespace heddle::loopback {

/// One open of a file or folder, in the store: the kernel's fh is its address, and so its
/// descriptor and its counts are the next worker's too.
struct Handle {
  int fd = -1;
  std::uint64_t node = 0;
  std::int64_t number = -1;  ///< in the trace; -1 for folders
  std::atomic<bool> append = false;
  /// Who opened it: the kernel does not say who closed it, and he may be in the midst of execve.
  std::int32_t tid = 0;
  std::atomic<std::int32_t> pid = 0;         ///< 0: not known
  std::atomic<const char*> exe = nullptr;    ///< the log's
  std::mutex mutex;                          ///< the folder's position, the flags of fd
  std::atomic<std::int64_t> dir_offset = 0;  ///< where fd stands
  std::atomic<std::int64_t> reads = 0, read_bytes = 0, writes = 0, write_bytes = 0;
  std::size_t path_length = 0;

  std::uint16_t tag = 0;  ///< tells it from others at the same address

  std::string_view path() const { return {reinterpret_cast<const char*>(this + 1), path_length}; }
  std::uint64_t fh() const {
    return std::uint64_t{tag} << kTagShift | reinterpret_cast<std::uintptr_t>(this);
  }
  static Handle& of(std::uint64_t fh) {
    return *reinterpret_cast<Handle*>(fh & ((1ULL << kTagShift) - 1));
  }
  static constexpr unsigned kTagShift = 48;  // addresses of user space are below 2^47
};

/// The handles, so that those still open at the end are known.
class HandleSet {
 public:
  /// Those in the store are known at once.
  explicit HandleSet(BlockStore& store);

  struct Opened {
    std::uint64_t node;
    std::int32_t tid;
    std::string_view path;
    bool in_trace;
    bool append = false;
  };
  /// `fh` is set before the handle is there for a next worker.
  Handle& add(Fd fd, const Opened& opened, std::atomic<std::uint64_t>& fh);
  void remove(Handle& handle);
  /// Whether `fh` is a handle now. A RELEASE that is sent again may name one that has gone.
  bool has(std::uint64_t fh) const;
  template <class Visit>
  void each(Visit visit) {
    const std::lock_guard lock(mutex_);
    for (Handle* handle : all_) visit(*handle);
  }
  /// Descriptors of the handles in the store, for one who closes what nobody knows of.
  static std::vector<int> descriptors(const BlockStore& store);

 private:
  void take_over(Handle& handle);
  BlockStore& store_;
  mutable std::mutex mutex_;
  std::unordered_set<Handle*> all_;
};

}  // namespace heddle::loopback
