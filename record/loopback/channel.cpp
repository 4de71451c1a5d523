// SPDX-License-Identifier: MIT
#include "record/loopback/channel.hpp"

#include <sys/uio.h>

namespace heddle::loopback {
namespace {

void send(int device, std::uint64_t unique, int error, const void* data, std::size_t size) {
  fuse_out_header header{};
  header.len = static_cast<std::uint32_t>(sizeof(header) + size);
  header.error = -error;
  header.unique = unique;
  const iovec parts[2] = {{&header, sizeof(header)}, {const_cast<void*>(data), size}};
  // ENOENT: the caller was killed meanwhile; ENODEV: the mount has gone. Nobody waits then.
  while (::writev(device, parts, size > 0 ? 2 : 1) < 0 && errno == EINTR) {
  }
}

}  // namespace

void Request::reply_error(int error) { send(device_, header().unique, error, nullptr, 0); }

void Request::reply_bytes(const void* data, std::size_t size) {
  send(device_, header().unique, 0, data, size);
}

}  // namespace heddle::loopback
