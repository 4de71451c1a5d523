// SPDX-License-Identifier: MIT
#include "record/loopback/channel.hpp"

#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/insist.hpp"
#include "fuseovl/session/kernel_order.hpp"

namespace heddle::loopback {
namespace {

void send_to(int device, std::uint64_t unique, int error, const void* data, std::size_t size) {
  fuse_out_header header{};
  header.len = static_cast<std::uint32_t>(sizeof(header) + size);
  header.error = -error;
  header.unique = unique;
  const iovec parts[2] = {{&header, sizeof(header)}, {const_cast<void*>(data), size}};
  before_answer();
  if (insist([&] { return ::writev(device, parts, size > 0 ? 2 : 1); }, may_pass) < 0 &&
      may_pass(errno))
    leave_to_next_worker();
}

}  // namespace

void leave_to_next_worker() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

/// What is noted before it is sent is sent once more when the kernel asks again. Longer answers are
/// those of requests that only read.
void Request::send(int error, const void* data, std::size_t size) {
  if (size <= sizeof(progress_.reply)) {
    progress_.reply_error = error;
    progress_.reply_size = static_cast<std::uint32_t>(size);
    if (size > 0) std::memcpy(progress_.reply, data, size);
    progress_.stage.store(RequestProgress::Stage::done, std::memory_order_release);
  }
  send_to(device_, header().unique, error, data, size);
}

void Request::reply_as_noted() {
  send_to(device_, header().unique, progress_.reply_error, progress_.reply, progress_.reply_size);
}

void Request::reply_error(int error) { send(error, nullptr, 0); }

void Request::reply_bytes(const void* data, std::size_t size) { send(0, data, size); }

}  // namespace heddle::loopback
