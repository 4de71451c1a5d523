// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>

#include "base/result.hpp"

struct fuse_session;

namespace heddle {

/// The most that a WRITE request may carry, in bytes: what a file system's init() must set, because
/// the kernel reads into no buffer that could not hold it.
inline constexpr unsigned kMaxWrite = 1U << 20;

/// The threads that read a session's requests and have libfuse answer them: one more than are busy,
/// up to a limit. They end with the connection, which wakes all that read.
///
/// fuse_session_loop_mt(3) does not do: it ends its threads by pthread_cancel(3), so by a real-time
/// signal, and where the user has none left (RLIMIT_SIGPENDING) glibc's read(2) waits for it for
/// ever; and a thread that it has no memory for ends the session.
class RequestLoop : public std::enable_shared_from_this<RequestLoop> {
 public:
  /// Reads one request; as read(2).
  using Receive = std::function<ssize_t(void* buffer, std::size_t size)>;

  /// `session` stays the caller's; `threads` is the limit, 1 at least.
  RequestLoop(fuse_session* session, unsigned threads, Receive receive);

  /// Until the connection has ended and every request that was read is done with; blocks. Fails
  /// with the errno of a read that fails though the connection stands: other threads may still wait
  /// in theirs, so that the process has to end. To be called once, on an object in a shared_ptr.
  Result<void> run();

 private:
  bool start_thread();
  void answer_requests(char* buffer);
  int answer_until_it_ends(char* buffer);
  void wait_for_request() const;

  fuse_session* session_;
  const unsigned limit_;
  const Receive receive_;
  std::atomic<unsigned> idle_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  unsigned threads_ = 0;  ///< under mutex_
  int failure_ = 0;       ///< errno; under mutex_
};

}  // namespace heddle
