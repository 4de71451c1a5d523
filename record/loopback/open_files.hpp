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
#include "record/loopback/request.hpp"

namespace heddle::loopback {

/// Decides for each open of a regular file whether the kernel caches its pages. Cached pages and
/// their mappings are coherent within the run only, and each is copied. So a local file is read
/// from the real file (FOPEN_PASSTHROUGH; Linux 6.9, root), and mappings are of its pages, which
/// all processes share. Writes, and with `each_io` reads, are requests (FOPEN_DIRECT_IO).
///
/// Without passthrough, or when the run has the file open for reading already (all mappings of a
/// file must be of one kind), its pages are cached. But a file opened O_RDWR that a process outside
/// has open is uncached, and its mmap(2) with MAP_SHARED fails with ENODEV. Thread-safe.
class IoModes {
 public:
  enum class Mode : std::uint8_t { none, kept, direct, passed };

  IoModes(int device, bool each_io) : device_(device), each_io_(each_io) {}
  /// As agreed in the answer to INIT.
  void agree(bool passthrough) { passthrough_ = passthrough; }

  /// Registers an open with open(2)'s `flags` and sets the flags of its answer. The calling thread
  /// has the recorder's rights.
  Mode open(std::uint64_t node, int fd, int flags, fuse_open_out& out);
  void close(std::uint64_t node, Mode mode);
  /// Whether the kernel may have cached pages of the file.
  bool keeps_pages(std::uint64_t node);

  /// While one exists, the run changes the content of a file, of which `fd` is any descriptor.
  class Change {
   public:
    /// `of_pages`: the kernel writes pages of a shared mapping.
    Change(IoModes& modes, std::uint64_t node, int fd, bool of_pages = false)
        : modes_(modes), node_(node), fd_(fd) {
      counts_ = modes.begin_change(node, fd, of_pages, collides_);
    }
    ~Change() {
      if (counts_) modes_.end_change(node_, fd_);
    }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;
    /// Whether the pages replace what a process outside may have written since the run had the file
    /// mapped. True once for a file, until all have closed it.
    bool collides() const { return collides_; }

   private:
    IoModes& modes_;
    const std::uint64_t node_;
    const int fd_;
    bool counts_ = false, collides_ = false;
  };

 private:
  struct Opens {
    unsigned kept = 0, passed = 0, direct = 0;
    std::int32_t backing = 0;  ///< the kernel's id of the real file, while `passed` > 0
    /// Of a file whose cached pages may be mapped and written: mtime after the run's last change,
    /// and the changes that are being made.
    bool watched = false;
    std::int64_t changed_ns = 0;
    unsigned changes = 0;
    bool changed_outside = false, collided = false;
  };
  bool pass(Opens& opens, int fd);
  /// Whether the file is watched, so that end_change() must follow.
  bool begin_change(std::uint64_t node, int fd, bool of_pages, bool& collides);
  void end_change(std::uint64_t node, int fd);
  const int device_;
  const bool each_io_;
  bool passthrough_ = false;
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Opens> nodes_;  ///< open ones
};

/// One open of a file or directory. The kernel's fh is its address, valid until RELEASE.
struct Handle {
  Fd fd;
  std::uint64_t node = 0;
  std::int64_t number = -1;  ///< in the trace; -1 for directories
  int access = 0;            ///< O_ACCMODE
  IoModes::Mode mode = IoModes::Mode::none;
  std::atomic<bool> append = false;
  /// Of the opener, for the log: RELEASE names no caller.
  std::int32_t tid = 0, pid = 0;
  std::string_view exe;  ///< the log's
  std::string path;
  std::mutex mutex;             ///< the directory's position, the flags of fd
  std::int64_t dir_offset = 0;  ///< the position of fd

  std::uint64_t fh() const { return reinterpret_cast<std::uintptr_t>(this); }
  static Handle& of(std::uint64_t fh) { return *reinterpret_cast<Handle*>(fh); }
};

/// All handles, so that those still open at the end can be logged. Thread-safe.
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
