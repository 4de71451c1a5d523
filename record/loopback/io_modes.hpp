// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "record/loopback/protocol.hpp"

namespace heddle::loopback {

/// Decides for each open of a regular file whether the kernel may keep its pages. What is kept is
/// coherent in the run only, and a mapping of it is. So a file that is opened to be read and
/// written, as databases do, is read and written without that, and mappings of it are of the real
/// file's pages (FOPEN_DIRECT_IO with FOPEN_PASSTHROUGH, Linux 6.9, root), which are those of
/// everybody else.
///
/// Where the kernel cannot, or the run has the file open for reading already (the kernel has one
/// way for all mappings of a file), its pages are kept, unless a process outside has it open: then
/// not, and mmap(2) with MAP_SHARED fails with ENODEV. Any thread.
class IoModes {
 public:
  enum class Mode : std::uint8_t { none, kept, direct, passed };

  explicit IoModes(int device) : device_(device) {}
  /// INIT has been answered so.
  void agree(bool passthrough) { passthrough_ = passthrough; }

  /// The file `fd` is opened (by open(2)'s `flags`): sets the flags of the answer. The caller has
  /// our own rights. Fails never.
  Mode open(std::uint64_t node, int fd, int flags, fuse_open_out& out);
  void close(std::uint64_t node, Mode mode);
  /// Whether the kernel may have pages of it.
  bool keeps_pages(std::uint64_t node);

 private:
  struct Opens {
    unsigned kept = 0, passed = 0, direct = 0;
    std::int32_t backing = 0;  ///< the kernel's number of the real file, while one is passed
  };
  bool pass(Opens& opens, int fd);
  const int device_;
  bool passthrough_ = false;
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Opens> nodes_;  ///< those that are open
};

}  // namespace heddle::loopback
