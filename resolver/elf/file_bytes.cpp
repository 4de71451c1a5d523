// SPDX-License-Identifier: MIT
#include "resolver/elf/file_bytes.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace heddle {
namespace {

/// Above this a copy costs more than the few preads that a reduced image needs.
constexpr std::uint64_t kSmall = std::uint64_t{1} << 20;

/// Bytes read, less than `count` only at the end of the file; -1 and errno.
ssize_t pread_fully(int fd, char* to, std::size_t count, std::uint64_t offset) {
  std::size_t have = 0;
  while (have < count) {
    const ssize_t n = ::pread(fd, to + have, count - have, static_cast<off_t>(offset + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
  }
  return static_cast<ssize_t>(have);
}

}  // namespace

Result<ContentHash> FileBytes::hash() {
  if (size_ > kSmall) return hash_file(fd_, "");
  std::string content(size_, '\0');
  const ssize_t n = pread_fully(fd_, content.data(), content.size(), 0);
  if (n < 0) return fail_errno("", "cannot read");
  if (n != static_cast<ssize_t>(size_))
    return fail_errno("", "cut short while it is read", EBADMSG);
  whole_ = std::move(content);
  return hash_bytes(whole_);
}

bool FileBytes::read(std::uint64_t offset, void* to, std::uint64_t count) const {
  if (offset > size_ || count > size_ - offset) return false;
  if (count == 0) return true;
  if (!whole_.empty()) {
    std::memcpy(to, whole_.data() + offset, count);
    return true;
  }
  return pread_fully(fd_, static_cast<char*>(to), count, offset) == static_cast<ssize_t>(count);
}

bool FileBytes::append(std::vector<std::uint8_t>& to, std::uint64_t offset,
                       std::uint64_t count) const {
  if (offset > size_ || count > size_ - offset) return false;
  const auto before = to.size();
  to.resize(before + count);
  return read(offset, to.data() + before, count);
}

}  // namespace heddle
