// SPDX-License-Identifier: MIT
#include "record/loopback/server.hpp"

#include "record/loopback/core_follower.hpp"

namespace heddle::loopback {
namespace {

constexpr std::chrono::milliseconds kStuck{20};

}  // namespace

void Server::run() {
  {
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { thread_main(); });
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
  if (waiting_ == 0 && threads_.size() < kMostThreads)
    threads_.emplace_back([this] { thread_main(); });
  return true;
}

void Server::lead(std::uint64_t term, CallerRights& rights, RequestBuffer& buffer) {
  CoreFollower core;
  for (;;) {
    const ssize_t n = ::read(device_.get(), buffer.in(), RequestBuffer::kSize);
    if (n < 0) {
      // ENOENT: the request was taken back before we had it (fuse.ko, fuse_dev_do_read).
      if (errno == EINTR || errno == EAGAIN || errno == ENOENT) continue;
      const std::lock_guard lock(mutex_);
      ended_ = true;  // ENODEV: unmounted everywhere
      free_.notify_all();
      return;
    }
    if (n < static_cast<ssize_t>(sizeof(fuse_in_header))) continue;
    Request request(device_.get(), buffer.in(), static_cast<std::size_t>(n));
    if (Loopback::is_slow(request)) {
      {
        const std::lock_guard lock(mutex_);
        if (term_ == term) has_leader_ = false;
        free_.notify_one();
      }
      loopback_.handle(request, rights, buffer);
      return;
    }
    if (Loopback::may_ask_about_caller(request)) core.on_request(request.tid());
    ++begun_;
    loopback_.handle(request, rights, buffer);
    if (term_.load() != term) return;  // replaced meanwhile
    ++done_;
  }
}

void Server::thread_main() {
  CallerRights rights;
  RequestBuffer buffer;
  std::uint64_t term = 0;
  std::unique_lock lock(mutex_);
  while (become_leader(lock, term)) {
    lock.unlock();
    lead(term, rights, buffer);
    lock.lock();
  }
}

}  // namespace heddle::loopback
