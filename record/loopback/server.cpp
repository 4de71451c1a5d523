// SPDX-License-Identifier: MIT
#include "record/loopback/server.hpp"

#include <memory>
#include <new>
#include <system_error>

#include "base/insist.hpp"
#include "fuseovl/session/kernel_order.hpp"
#include "record/loopback/core_follower.hpp"

namespace heddle::loopback {
namespace {

constexpr std::chrono::milliseconds kStuck{20};
constexpr std::size_t kBufferSize = kMaxData + 4096;

}  // namespace

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

}  // namespace heddle::loopback
