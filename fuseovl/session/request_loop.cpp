// SPDX-License-Identifier: MIT
#include "fuseovl/session/request_loop.hpp"

#include <linux/fuse.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <thread>

#include "fuseovl/session/session.hpp"

namespace heddle {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBufferSize = kMaxWrite + kPage;

using Buffer = std::unique_ptr<char[]>;

// A process that is killed while the kernel copies a request to a page that is not there yet makes
// that request fail (fs/fuse/dev.c, fuse_copy_fill: get_user_pages fails with a fatal signal
// pending), where it should be sent again. Requests other than WRITE fit in two pages.
Buffer make_buffer() {
  Buffer buffer(new (std::nothrow) char[kBufferSize]);
  for (std::size_t at = 0; buffer && at <= 2 * kPage; at += kPage)
    static_cast<volatile char*>(buffer.get())[at] = 0;
  return buffer;
}

}  // namespace

RequestLoop::RequestLoop(fuse_session* session, unsigned threads, Receive receive)
    : session_(session), limit_(threads), receive_(std::move(receive)) {}

Result<void> RequestLoop::run() {
  if (!start_thread()) {
    const Buffer buffer = make_buffer();
    if (!buffer) return fail_errno("FUSE session", "cannot go on", ENOMEM);
    ++threads_;
    ++idle_;
    answer_requests(buffer.get());
  }
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return threads_ == 0 || failure_ != 0; });
  if (failure_ != 0) return fail_errno("FUSE session", "cannot go on", failure_);
  return {};
}

/// False: there are enough, or there is no memory for another, and those that are there go on.
bool RequestLoop::start_thread() {
  {
    const std::lock_guard lock(mutex_);
    if (threads_ == limit_) return false;
    ++threads_;
  }
  ++idle_;
  try {
    if (Buffer buffer = make_buffer()) {
      std::thread([self = shared_from_this(), own = std::move(buffer)] {
        self->answer_requests(own.get());
      }).detach();
      return true;
    }
  } catch (const std::exception&) {
    // It is tried again when all are busy the next time.
  }
  --idle_;
  const std::lock_guard lock(mutex_);
  --threads_;
  return false;
}

void RequestLoop::answer_requests(char* buffer) {
  const int failure = answer_until_it_ends(buffer);
  const std::lock_guard lock(mutex_);
  --threads_;
  if (failure_ == 0) failure_ = failure;
  ended_.notify_one();
}

/// 0: the connection has ended; else the errno.
int RequestLoop::answer_until_it_ends(char* buffer) {
  for (;;) {
    const ssize_t n = receive_(buffer, kBufferSize);
    if (n < 0) {
      // ENOENT: the request was taken back before we had it (fuse_dev_do_read).
      if (errno == EINTR || errno == ENOENT) continue;
      if (errno != EAGAIN) return errno == ENODEV ? 0 : errno;
      wait_for_request();
      continue;
    }
    fuse_in_header header{};
    if (n < static_cast<ssize_t>(sizeof(header))) return EIO;
    std::memcpy(&header, buffer, sizeof(header));
    // Nobody waits for these; a burst of them needs no more threads.
    const bool is_forget = header.opcode == FUSE_FORGET || header.opcode == FUSE_BATCH_FORGET;
    if (!is_forget && idle_.fetch_sub(1) == 1) (void)start_thread();
    fuse_buf request{};
    request.mem = buffer;
    request.size = static_cast<std::size_t>(n);
    fuse_session_process_buf(session_, &request);
    if (!is_forget) ++idle_;
    if (fuse_session_exited(session_) != 0) return EPROTO;  // what init() agreed to does not do
  }
}

/// Of a device that whoever gave it to us reads without waiting (O_NONBLOCK).
void RequestLoop::wait_for_request() const {
  pollfd device{fuse_session_fd(session_), POLLIN, 0};
  (void)::poll(&device, 1, -1);
}

}  // namespace heddle
