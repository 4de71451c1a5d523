// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <fmt/format.h>

#include <string>

#include "base/fd.hpp"

namespace heddle::loopback {

/// An absolute path as the *at() system calls take it. One beyond PATH_MAX is cut: its front is
/// opened piece by piece (O_PATH), so that trees deeper than PATH_MAX work as they do for relative
/// paths (gnulib's configure tests make such trees).
class Place {
 public:
  explicit Place(std::string path);
  int dir() const noexcept { return front_ ? front_.get() : AT_FDCWD; }
  const char* name() const noexcept { return rest_.c_str(); }

 private:
  Fd front_;
  std::string rest_;
};

/// Where system calls reach one file: its path, or, when it has none any more, the descriptor that
/// still holds it, by its name in /proc.
class Target {
 public:
  explicit Target(std::string path) : place_(std::move(path)) {}
  explicit Target(int fd) : place_(fmt::format("/proc/self/fd/{}", fd)), fd_(fd) {}
  int dir() const noexcept { return place_.dir(); }
  const char* name() const noexcept { return place_.name(); }
  /// -1 when it has a path.
  int fd() const noexcept { return fd_; }
  /// AT_SYMLINK_NOFOLLOW for a path; the name in /proc is a link that must be followed.
  int nofollow() const noexcept { return fd_ >= 0 ? 0 : AT_SYMLINK_NOFOLLOW; }

 private:
  Place place_;
  int fd_ = -1;
};

}  // namespace heddle::loopback
