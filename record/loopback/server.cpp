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
// At most as many changes of the caller as one program and its short-lived children cause.
constexpr unsigned kFewChanges = 8;

/// Field 39 of /proc/TID/stat (proc(5)): the core the thread last ran on; -1: it has ended.
int core_of(int stat_fd) {
  char text[1024];
  const ssize_t n = ::pread(stat_fd, text, sizeof(text) - 1, 0);
  if (n <= 0) return -1;
  text[n] = '\0';
  const char* at = std::strrchr(text, ')');  // the command's name may contain spaces
  for (int field = 2; at && field < 39; ++field) at = std::strchr(at + 1, ' ');
  return at ? std::atoi(at + 1) : -1;
}

/// Keeps the thread that uses it on the core of the program it serves: without wake-ups across
/// cores a request takes 14 us instead of 30 (measured). With many callers the scheduler chooses.
/// One object a thread.
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

// One thread at a time, the leader, reads requests and answers quick ones; a second reader would
// only alternate with it, on another core. Before a slow operation (disk, large data, a held lock)
// the leader lets another thread lead. A leader stuck in a quick one (a dead NFS server) is
// replaced after kStuck. Threads are made as needed.

class Server {
 public:
  Server(Loopback& loopback, int device) : loopback_(loopback), device_(device) {}
  /// Blocks until the mount is gone.
  void run();

 private:
  static constexpr std::size_t kMostThreads = 192;  // a third of them may wait for locks
  static constexpr std::chrono::milliseconds kStuck{20};
  static constexpr std::size_t kBufferSize = kMaxData + 4096;

  void start_thread();
  void run_thread();
  bool become_leader(std::unique_lock<std::mutex>& lock, std::uint64_t& term);
  void lead(ServingThread& thread, char* in, std::uint64_t term, const bool& leads);
  void handle(Request& request);

  Loopback& loopback_;
  int device_;
  std::mutex mutex_;
  std::condition_variable free_;
  bool has_leader_ = false;
  bool ended_ = false;
  std::size_t waiting_ = 0;
  std::atomic<std::uint64_t> term_{0};   ///< raised when the leader changes
  std::atomic<std::uint64_t> begun_{0};  ///< requests read by the leader
  std::atomic<std::uint64_t> done_{0};   ///< and answered
  std::size_t started_ = 0;
  std::list<std::thread> threads_;
};

void Server::start_thread() {
  try {
    threads_.emplace_back([this] { run_thread(); });
    ++started_;
  } catch (const std::system_error&) {
    // The existing threads continue. Without any, requests would wait forever.
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

void Server::run_thread() {
  const std::unique_ptr<char[]> in(new char[kBufferSize]), out(new char[kBufferSize]);
  std::uint64_t term = 0;
  bool leads = false;
  ServingThread thread{{}, out.get(), [&] {
                         if (!leads) return;
                         leads = false;
                         const std::lock_guard lock(mutex_);
                         if (term_ == term) has_leader_ = false;
                         free_.notify_one();
                       }};
  std::unique_lock lock(mutex_);
  while (become_leader(lock, term)) {
    lock.unlock();
    leads = true;
    lead(thread, in.get(), term, leads);
    lock.lock();
  }
}

/// Waits until there is no leader, or it is stuck. False: the mount is gone.
bool Server::become_leader(std::unique_lock<std::mutex>& lock, std::uint64_t& term) {
  ++waiting_;
  std::uint64_t stuck_at = ~0ULL;
  while (has_leader_ && !ended_) {
    if (free_.wait_for(lock, kStuck) != std::cv_status::timeout) continue;
    const auto begun = begun_.load();
    if (begun == done_.load()) {
      stuck_at = ~0ULL;
    } else if (begun == stuck_at) {
      break;  // at the same request as kStuck ago; it finishes that without leading
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

void Server::handle(Request& request) {
  try {
    loopback_.handle(request);
  } catch (const std::bad_alloc&) {
    request.reply_error(ENOMEM);
  }
}

/// `leads` becomes false when the reading is handed on.
void Server::lead(ServingThread& thread, char* in, std::uint64_t term, const bool& leads) {
  CoreFollower core;
  while (leads && term_.load() == term) {
    const ssize_t n =
        insist([&] { return ::read(device_, in, kBufferSize); },
               [](int error) { return is_shortage(error) && error != EINTR && error != EAGAIN; });
    if (n < 0) {
      // ENOENT: the request was interrupted. ECONNABORTED: it came with the unmount, and the next
      // read gives ENODEV (fs/fuse/dev.c, fuse_dev_do_read()).
      if (errno == EINTR || errno == EAGAIN || errno == ENOENT || errno == ECONNABORTED) continue;
      if (errno != ENODEV) give_up();
      const std::lock_guard lock(mutex_);
      ended_ = true;  // ENODEV: unmounted everywhere
      free_.notify_all();
      return;
    }
    if (n < static_cast<ssize_t>(sizeof(fuse_in_header))) continue;
    after_request();
    Request request(device_, in, static_cast<std::size_t>(n), thread);
    if (Loopback::may_ask_about_caller(request)) core.on_request(request.tid());
    ++begun_;
    handle(request);
    if (leads && term_.load() == term) ++done_;
  }
}

}  // namespace

void serve(Loopback& loopback, int device) { Server(loopback, device).run(); }

}  // namespace heddle::loopback
