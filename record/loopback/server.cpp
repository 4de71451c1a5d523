// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "base/backoff.hpp"
#include "base/fd.hpp"
#include "fuseovl/session/kernel_order.hpp"
#include "record/loopback/loopback.hpp"

namespace heddle::loopback {

namespace {

constexpr unsigned kWindow = 64;
// One program and its short-lived children look like this: few changes in a window.
constexpr unsigned kFewChanges = 8;

/// Field 39 of /proc/TID/stat, the core it last ran on (proc(5)); -1 when it has gone.
int core_of(int stat_fd) {
  char text[1024];
  const ssize_t n = ::pread(stat_fd, text, sizeof(text) - 1, 0);
  if (n <= 0) return -1;
  text[n] = '\0';
  const char* at = std::strrchr(text, ')');  // the name before it may hold anything
  for (int field = 2; at && field < 39; ++field) at = std::strchr(at + 1, ' ');
  return at ? std::atoi(at + 1) : -1;
}

/// Keeps the thread that uses it on the core of the program it serves: a request then costs 14 us
/// instead of 30 (measured), since nothing must be woken across cores. While many threads ask, it
/// lets the scheduler choose. One object a thread.
class CoreFollower {
 public:
  CoreFollower() {
    CPU_ZERO(&all_);
    usable_ = ::sched_getaffinity(0, sizeof(all_), &all_) == 0 && CPU_COUNT(&all_) > 1;
  }
  ~CoreFollower() { release(); }
  void on_request(std::int32_t tid) {
    if (!usable_ || tid == 0) return;
    if (tid != last_tid_) {
      last_tid_ = tid;
      ++changes_;
    }
    if (++in_window_ < kWindow && core_ >= 0) return;
    if (changes_ <= kFewChanges) {
      sample(tid);
    } else {
      release();
    }
    in_window_ = 0;
    changes_ = 0;
  }

 private:
  void sample(std::int32_t tid) {
    if (tid != stat_tid_) {
      stat_.reset(::open(ProcPath(tid, "stat").text, O_RDONLY | O_CLOEXEC));
      stat_tid_ = tid;
    }
    const int core = stat_ ? core_of(stat_.get()) : -1;
    if (core < 0 || core == core_ || !CPU_ISSET(core, &all_)) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (::sched_setaffinity(0, sizeof(one), &one) == 0) core_ = core;
  }
  void release() {
    if (core_ < 0) return;
    ::sched_setaffinity(0, sizeof(all_), &all_);
    core_ = -1;
  }
  cpu_set_t all_;
  bool usable_ = false;
  int core_ = -1;  ///< -1: any
  std::int32_t last_tid_ = 0;
  unsigned in_window_ = 0;
  unsigned changes_ = 0;
  std::int32_t stat_tid_ = 0;
  Fd stat_;
};

// One thread at a time, the leader, reads requests and answers quick ones itself: a second reader
// would only take turns with it, on another core. Before something slow (disk, large data, a lock
// that others have) the leader hands the reading on; a leader that got stuck in a quick one (a dead
// NFS server) is replaced after kStuck. Threads are made as needed.

class Server {
 public:
  Server(Loopback& loopback, int device) : loopback_(loopback), device_(device) {}
  /// Blocks until the mount has gone.
  void run();

 private:
  class Thread;
  static constexpr std::size_t kMostThreads = 192;  // a third of them may wait for locks
  void start_thread();
  bool become_leader(std::unique_lock<std::mutex>& lock, std::uint64_t& term);
  void hand_on(std::uint64_t term);

  Loopback& loopback_;
  int device_;
  std::mutex mutex_;
  std::condition_variable free_;
  bool has_leader_ = false;
  bool ended_ = false;
  std::size_t waiting_ = 0;
  std::atomic<std::uint64_t> term_{0};   ///< raised when the leader changes
  std::atomic<std::uint64_t> begun_{0};  ///< requests the leader has begun, and
  std::atomic<std::uint64_t> done_{0};   ///< answered
  std::size_t started_ = 0;
  std::list<std::thread> threads_;
};

constexpr std::chrono::milliseconds kStuck{20};
constexpr std::size_t kBufferSize = kMaxData + 4096;

/// One of the threads, and what it works with.
class Server::Thread final : public ServingThread {
 public:
  explicit Thread(Server& server)
      : server_(server), in_(new char[kBufferSize]), out_(new char[kBufferSize]) {
    out = out_.get();
  }
  void run();
  void go_slow() override {
    if (leads_) server_.hand_on(term_);
    leads_ = false;
  }

 private:
  void lead();
  void handle(Request& request);
  Server& server_;
  std::unique_ptr<char[]> in_, out_;
  std::uint64_t term_ = 0;
  bool leads_ = false;
};

void Server::start_thread() {
  try {
    threads_.emplace_back([this] { Thread(*this).run(); });
    ++started_;
  } catch (const std::system_error&) {
    // There is none to be had: those that are there go on. Without any, nobody answers.
    if (started_ == 0) give_up();
  }
}

void Server::run() {
  {
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < 2; ++i) start_thread();
  }
  for (;;) {
    std::thread next;
    {
      const std::lock_guard lock(mutex_);
      if (threads_.empty()) return;
      next = std::move(threads_.front());
      threads_.pop_front();
    }
    next.join();
  }
}

/// Waits until nobody leads. False: the mount has gone.
bool Server::become_leader(std::unique_lock<std::mutex>& lock, std::uint64_t& term) {
  ++waiting_;
  std::uint64_t stuck_at = ~0ULL;
  while (has_leader_ && !ended_) {
    if (free_.wait_for(lock, kStuck) != std::cv_status::timeout) continue;
    const auto begun = begun_.load();
    if (begun == done_.load()) {
      stuck_at = ~0ULL;
    } else if (begun == stuck_at) {
      break;  // still at the request it was at a while ago: it may go on without leading
    } else {
      stuck_at = begun;
    }
  }
  --waiting_;
  if (ended_) return false;
  has_leader_ = true;
  term = ++term_;
  begun_ = done_ = 0;
  if (waiting_ == 0 && started_ < kMostThreads) start_thread();
  return true;
}

void Server::hand_on(std::uint64_t term) {
  const std::lock_guard lock(mutex_);
  if (term_ == term) has_leader_ = false;
  free_.notify_one();
}

void Server::Thread::handle(Request& request) {
  try {
    server_.loopback_.handle(request);
  } catch (const std::bad_alloc&) {
    request.reply_error(ENOMEM);
  }
}

void Server::Thread::lead() {
  CoreFollower core;
  leads_ = true;
  for (;;) {
    const ssize_t n =
        insist([&] { return ::read(server_.device_, in_.get(), kBufferSize); },
               [](int error) { return is_shortage(error) && error != EINTR && error != EAGAIN; });
    if (n < 0) {
      // ENOENT: the request was taken back before we had it; ECONNABORTED: it came with the
      // unmount, of which the next read tells (fs/fuse/dev.c, fuse_dev_do_read()).
      if (errno == EINTR || errno == EAGAIN || errno == ENOENT || errno == ECONNABORTED) continue;
      if (errno != ENODEV) give_up();
      const std::lock_guard lock(server_.mutex_);
      server_.ended_ = true;  // ENODEV: unmounted everywhere
      server_.free_.notify_all();
      return;
    }
    if (n < static_cast<ssize_t>(sizeof(fuse_in_header))) continue;
    after_request();
    Request request(server_.device_, in_.get(), static_cast<std::size_t>(n), *this);
    if (Loopback::may_ask_about_caller(request)) core.on_request(request.tid());
    ++server_.begun_;
    handle(request);
    if (!leads_ || server_.term_.load() != term_) return;  // handed on, or replaced meanwhile
    ++server_.done_;
  }
}

void Server::Thread::run() {
  std::unique_lock lock(server_.mutex_);
  while (server_.become_leader(lock, term_)) {
    lock.unlock();
    lead();
    lock.lock();
  }
}

}  // namespace

void serve(Loopback& loopback, int device) { Server(loopback, device).run(); }

}  // namespace heddle::loopback
