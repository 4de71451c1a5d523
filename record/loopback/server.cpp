// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>

#include <algorithm>
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

bool set_policy(std::int32_t thread, int policy) {
  constexpr sched_param kNone{};
  return ::sched_setscheduler(thread, policy, &kNone) == 0;
}

/// Makes the leader SCHED_IDLE while it follows a program. The kernel counts a core that runs only
/// SCHED_IDLE threads as idle (kernel/sched/fair.c, sched_idle_cpu()), so that the program which
/// the leader wakes stays on the core of both instead of moving to an idle one. The leader
/// continues when the program sleeps in its next request. Beside other threads it would starve: the
/// thread that watches it then calls end(). Thread-safe.
class IdlePolicy {
 public:
  /// Finds out whether the policy can be left again (CAP_SYS_NICE). If not, the calling thread has
  /// it from here on.
  void probe() {
    allowed_ = ::sched_getscheduler(0) == SCHED_OTHER && set_policy(0, SCHED_IDLE) &&
               set_policy(0, SCHED_OTHER);
  }
  /// Gives the calling thread the policy, unless another thread has it or it starved recently.
  /// `cores`: how many the run may use.
  void begin(unsigned cores) {
    const auto thread = static_cast<std::int32_t>(::syscall(SYS_gettid));
    const auto now = monotonic_ms();
    if (!allowed_ || thread_ != 0 || now < not_before_ms_) return;
    if (all_run(cores)) {
      not_before_ms_ = now + kFirstPauseMs;
      return;
    }
    // Registered first: the thread that watches must be able to end it from then on.
    std::int32_t expected = 0;
    if (!thread_.compare_exchange_strong(expected, thread)) return;
    if (set_policy(thread, SCHED_IDLE) && thread_ == thread) return;
    expected = thread;
    thread_.compare_exchange_strong(expected, 0);
    set_policy(thread, SCHED_OTHER);
  }
  /// Whether a thread has the policy.
  bool is_on() const { return thread_ != 0; }
  /// Takes it from `thread`, 0: from any.
  void end(std::int32_t thread = 0) {
    if (thread == 0) thread = thread_;
    if (thread != 0 && thread_.compare_exchange_strong(thread, 0)) set_policy(thread, SCHED_OTHER);
  }
  /// As end(), and permits no other thread to begin() for a while: longer each time.
  void starved() {
    const auto now = monotonic_ms();
    pause_ms_ = now > not_before_ms_ + 10 * kLongestPauseMs
                    ? kFirstPauseMs
                    : std::min(2 * pause_ms_, kLongestPauseMs);
    not_before_ms_ = now + pause_ms_;
    end();
  }

 private:
  static constexpr std::int64_t kFirstPauseMs = 50, kLongestPauseMs = 2000;
  /// Whether more threads than the calling one and one for each other core are runnable (proc(5)).
  static bool all_run(unsigned cores) {
    char text[128] = {};
    unsigned runnable = 0;
    const Fd fd(::open("/proc/loadavg", O_RDONLY | O_CLOEXEC));
    return fd && ::read(fd.get(), text, sizeof(text) - 1) > 0 &&
           std::sscanf(text, "%*f %*f %*f %u/", &runnable) == 1 && runnable > cores;
  }
  std::atomic<bool> allowed_ = false;
  std::atomic<std::int32_t> thread_ = 0;
  std::atomic<std::int64_t> not_before_ms_ = 0;
  std::int64_t pause_ms_ = kFirstPauseMs;  ///< of the watching thread
};

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

/// Keeps the leading thread on the core of the program that it serves, because a wake-up across
/// cores may take longer than a request (in a VM, a request takes 50 us instead of 12: measured).
/// With many callers the scheduler chooses. One object a thread.
class CoreFollower {
 public:
  explicit CoreFollower(IdlePolicy& policy) : policy_(policy) {
    CPU_ZERO(&all_);
    usable_ = ::sched_getaffinity(0, sizeof(all_), &all_) == 0 && CPU_COUNT(&all_) > 1;
  }
  ~CoreFollower() { release(); }
  void on_request(std::int32_t tid) {
    if (tid == 0) return;
    if (tid != last_tid_) {
      last_tid_ = tid;
      ++changes_;
    }
    if (++in_window_ < kWindow && (core_ >= 0 || !usable_)) return;
    few_callers_ = changes_ <= kFewChanges;
    if (few_callers_ && usable_) {
      sample(tid);
    } else {
      release();
    }
    in_window_ = 0;
    changes_ = 0;
  }
  bool few_callers() const { return few_callers_; }
  /// Leaves the choice of the core to the scheduler.
  void release() {
    if (core_ < 0) return;
    policy_.end(thread_);
    ::sched_setaffinity(0, sizeof(all_), &all_);
    core_ = -1;
  }

 private:
  void sample(std::int32_t tid) {
    if (tid != stat_tid_) {
      stat_.reset(::open(ProcPath(tid, "stat").text, O_RDONLY | O_CLOEXEC));
      stat_tid_ = tid;
    }
    const int core = stat_ ? core_of(stat_.get()) : -1;
    if (core < 0 || !CPU_ISSET(core, &all_)) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (core != core_ && ::sched_setaffinity(0, sizeof(one), &one) == 0) core_ = core;
    if (core == core_) policy_.begin(static_cast<unsigned>(CPU_COUNT(&all_)));
  }
  IdlePolicy& policy_;
  const std::int32_t thread_ = static_cast<std::int32_t>(::syscall(SYS_gettid));
  cpu_set_t all_;
  bool usable_ = false;
  int core_ = -1;  ///< -1: any
  bool few_callers_ = true;
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
  static constexpr std::chrono::milliseconds kStuck{20}, kStarving{5};
  static constexpr std::size_t kBufferSize = kMaxData + 4096;

  void start_thread();
  void run_thread();
  bool become_leader(std::unique_lock<std::mutex>& lock, ServingThread& thread);
  void lead(ServingThread& thread, CoreFollower& core, char* in);
  void handle(Request& request);
  bool has_request() const;

  Loopback& loopback_;
  int device_;
  std::mutex mutex_;
  std::condition_variable free_;
  IdlePolicy policy_;
  bool ended_ = false;
  std::size_t waiting_ = 0;
  std::atomic<ServingThread*> leader_ = nullptr;
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
  std::thread prober;  // serves nothing, since it may be unable to leave SCHED_IDLE
  try {
    prober = std::thread([this] { policy_.probe(); });
  } catch (const std::system_error&) {  // no thread will be SCHED_IDLE
  }
  started_ = 1;
  run_thread();
  if (prober.joinable()) prober.join();
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
  CoreFollower core(policy_);
  ServingThread thread{{}, out.get(), [&] {
                         if (leader_ != &thread) return;
                         core.release();
                         const std::lock_guard lock(mutex_);
                         if (leader_ == &thread) leader_ = nullptr;
                         free_.notify_one();
                       }};
  std::unique_lock lock(mutex_);
  while (become_leader(lock, thread)) {
    lock.unlock();
    lead(thread, core, in.get());
    core.release();
    lock.lock();
  }
}

bool Server::has_request() const {
  pollfd entry{device_, POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

/// Waits until there is no leader, or it is stuck. False: the mount is gone.
bool Server::become_leader(std::unique_lock<std::mutex>& lock, ServingThread& thread) {
  ++waiting_;
  std::uint64_t seen = ~0ULL;
  auto now = std::chrono::steady_clock::now(), since = now, active = now;
  while (leader_ && !ended_) {
    const bool is_active = policy_.is_on() && now - active < std::chrono::seconds(1);
    if (free_.wait_for(lock, is_active ? kStarving : kStuck) != std::cv_status::timeout ||
        !leader_ || ended_)
      continue;
    now = std::chrono::steady_clock::now();
    const auto steps = leader_.load()->steps.load();
    const bool is_answering = steps % 2 != 0;
    if (steps != seen) active = now;
    if (steps != seen || (!is_answering && !(policy_.is_on() && has_request()))) {
      seen = steps;
      since = now;
      continue;
    }
    if (policy_.is_on()) policy_.starved();
    if (is_answering && now - since >= kStuck) break;  // it finishes that request without leading
  }
  --waiting_;
  if (ended_) return false;
  leader_ = &thread;
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

void Server::lead(ServingThread& thread, CoreFollower& core, char* in) {
  while (leader_ == &thread) {
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
    thread.few_callers = core.few_callers();
    ++thread.steps;
    handle(request);
    thread.answered();  // FORGET has no answer
  }
}

}  // namespace

void serve(Loopback& loopback, int device) { Server(loopback, device).run(); }

}  // namespace heddle::loopback
