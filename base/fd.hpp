// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <string>
#include <utility>

#include "base/result.hpp"

namespace heddle {

/// Owns one file descriptor, or none (-1). Move-only; the destructor closes.
class Fd {
 public:
  Fd() = default;
  /// Takes ownership of `fd`.
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  explicit operator bool() const noexcept { return valid(); }
  /// Gives the descriptor to the caller.
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

/// open(2), always with O_CLOEXEC, retried on EINTR; the error names `path`.
Result<Fd> open_file(const std::string& path, int flags, unsigned mode = 0666);

struct Pipe {
  Fd read_end;
  Fd write_end;
};
/// pipe2(2) with O_CLOEXEC.
Result<Pipe> make_pipe();

/// A copy of `fd` that the program which this process executes has too, open until that ends: of a
/// high number, out of the way of programs that count on the next one, but below select(2)'s limit
/// and the process's own. Result: the number.
Result<int> keep_over_exec(int fd);

/// Reads to the end of `fd`; EFBIG beyond `limit` bytes. `name` is for messages.
Result<std::string> read_all(int fd, const std::string& name, std::size_t limit = 1UL << 30);
/// The whole of the file at `path`.
Result<std::string> read_file(const std::string& path, std::size_t limit = 1UL << 30);
/// Writes all of `data`; retries short writes and EINTR.
Result<void> write_all(int fd, std::string_view data, const std::string& name);

}  // namespace heddle
