// SPDX-License-Identifier: MIT
#include "record/loopback/server.hpp"

#include <new>

#include "base/insist.hpp"
#include "fuseovl/session/kernel_order.hpp"
#include "fuseovl/session/succession.hpp"
#include "record/loopback/core_follower.hpp"

namespace heddle::loopback {
namespace {

constexpr std::chrono::milliseconds kStuck{20};

}  // namespace

Result<void> Server::take_over() {
  slots_.take_over([this](std::size_t slot) {
    auto* bytes = slots_.buffer(slot);
    const auto size = reinterpret_cast<const fuse_in_header*>(bytes)->len;
    Request request(device_, bytes, size, slots_.progress(slot));
    loopback_.take_over(request);
  });
  auto asked = ask_to_resend(device_);
  if (!asked && asked.error().code() == ENODEV) return {};  // run() sees it too
  return asked;
}

void Server::start_thread() {
  threads_.emplace_back([this, slot = started_++] { thread_main(slot); });
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
  if (waiting_ == 0 && started_ < RequestSlots::kSlots) start_thread();
  return true;
}

void Server::handle(Request& request, CallerRights& rights, ReplyBuffer& buffer) {
  if (request.progress().stage == RequestProgress::Stage::done) return request.reply_as_noted();
  try {
    loopback_.handle(request, rights, buffer);
  } catch (const std::bad_alloc&) {
    request.reply_error(ENOMEM);
  }
}

void Server::lead(std::uint64_t term, std::size_t slot, CallerRights& rights, ReplyBuffer& buffer) {
  CoreFollower core;
  for (;;) {
    slots_.before_read(slot);
    const ssize_t n =
        insist([&] { return ::read(device_, slots_.buffer(slot), RequestSlots::kBufferSize); },
               [](int error) { return may_pass(error) && error != EINTR && error != EAGAIN; });
    if (n < 0) {
      // ENOENT: the request was taken back before we had it (fuse.ko, fuse_dev_do_read).
      if (errno == EINTR || errno == EAGAIN || errno == ENOENT) continue;
      if (errno != ENODEV) leave_to_next_worker();
      const std::lock_guard lock(mutex_);
      ended_ = true;  // ENODEV: unmounted everywhere
      free_.notify_all();
      return;
    }
    if (n < static_cast<ssize_t>(sizeof(fuse_in_header))) continue;
    after_request();
    slots_.after_read(slot);
    Request request(device_, slots_.buffer(slot), static_cast<std::size_t>(n),
                    slots_.progress(slot));
    if (Loopback::is_slow(request)) {
      {
        const std::lock_guard lock(mutex_);
        if (term_ == term) has_leader_ = false;
        free_.notify_one();
      }
      handle(request, rights, buffer);
      return;
    }
    if (Loopback::may_ask_about_caller(request)) core.on_request(request.tid());
    ++begun_;
    handle(request, rights, buffer);
    if (term_.load() != term) return;  // replaced meanwhile
    ++done_;
  }
}

void Server::thread_main(std::size_t slot) {
  CallerRights rights;
  ReplyBuffer buffer;
  // A process that is killed while the kernel waits for a page to copy a request to makes that
  // request fail (fs/fuse/dev.c, fuse_copy_fill()), where it should be sent again.
  make_present(slots_.buffer(slot), RequestSlots::kBufferSize);
  std::uint64_t term = 0;
  std::unique_lock lock(mutex_);
  while (become_leader(lock, term)) {
    lock.unlock();
    lead(term, slot, rights, buffer);
    lock.lock();
  }
}

}  // namespace heddle::loopback
