// SPDX-License-Identifier: MIT
#include "record/loopback/channel.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include "base/insist.hpp"
#include "fuseovl/session/kernel_order.hpp"

namespace heddle::loopback {
namespace {

/// One message to the kernel; as writev(2).
ssize_t send_to(int device, fuse_out_header header, const void* data, std::size_t size) {
  header.len = static_cast<std::uint32_t>(sizeof(header) + size);
  const iovec parts[2] = {{&header, sizeof(header)}, {const_cast<void*>(data), size}};
  before_answer();
  return insist([&] { return ::writev(device, parts, size > 0 ? 2 : 1); }, is_shortage);
}

void answer(int device, std::uint64_t unique, int error, const void* data, std::size_t size) {
  fuse_out_header header{};
  header.error = -error;
  header.unique = unique;
  // ENOENT: nobody waits any more. ENODEV: unmounted.
  if (send_to(device, header, data, size) < 0 && is_shortage(errno)) give_up();
}

}  // namespace

bool is_shortage(int error) {
  return error == ENOMEM || error == EINTR || error == EAGAIN || error == EIO || error == ENOSPC ||
         error == EMFILE || error == ENOBUFS;
}

void give_up() { ::_exit(3); }

void Request::reply_error(int error) { answer(device_, header().unique, error, nullptr, 0); }

void Request::reply_bytes(const void* data, std::size_t size) {
  answer(device_, header().unique, 0, data, size);
}

void Request::drop_pages(std::uint64_t node) {
  fuse_out_header header{};
  header.error = FUSE_NOTIFY_INVAL_INODE;
  fuse_notify_inval_inode_out out{};
  out.ino = node;  // from offset 0, length 0: all
  (void)send_to(device_, header, &out, sizeof(out));
}

}  // namespace heddle::loopback
