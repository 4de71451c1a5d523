// SPDX-License-Identifier: MIT
#include "fuseovl/files/read_at.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace heddle {
namespace {

tl::expected<std::size_t, int> read_cached(int fd, std::span<char> into, off_t offset) {
  const iovec part{into.data(), into.size()};
  const ssize_t n = ::preadv2(fd, &part, 1, offset, RWF_NOWAIT);
  // A short one ends at a page that is not there, or at the file's end: who may wait finds out.
  if (n == static_cast<ssize_t>(into.size())) return into.size();
  // Linux before 4.14 and file systems without FMODE_NOWAIT say EOPNOTSUPP before they do anything.
  if (n >= 0 || errno == EOPNOTSUPP || errno == EINTR || errno == ENOSYS)
    return tl::unexpected(EAGAIN);
  return tl::unexpected(errno);
}

}  // namespace

tl::expected<std::size_t, int> read_at(int fd, std::span<char> into, off_t offset, MayBlock block) {
  if (block == MayBlock::no) return read_cached(fd, into, offset);
  std::size_t got = 0;
  while (got < into.size()) {
    const ssize_t n =
        ::pread(fd, into.data() + got, into.size() - got, offset + static_cast<off_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return tl::unexpected(errno);
    if (n == 0) break;
    got += static_cast<std::size_t>(n);
  }
  return got;
}

}  // namespace heddle
