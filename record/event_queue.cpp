// SPDX-License-Identifier: MIT
#include "record/event_queue.hpp"

#include <cstring>

namespace heddle {
namespace {

constexpr std::size_t kBatchBytes = 256 * 1024;
constexpr std::size_t kBatchEvents = 2048;
constexpr std::size_t kMostBatches = 16;
// The writer takes what there is this often at most: it must not be woken for each event, on the
// core where the program runs.
constexpr std::chrono::milliseconds kPause{30};

}  // namespace

EventQueue::Batch::Batch() : bytes(new char[kBatchBytes]) { events.reserve(kBatchEvents); }

bool EventQueue::Batch::fits(std::size_t size) const {
  return events.size() < kBatchEvents && used + size <= kBatchBytes;
}

std::string_view EventQueue::Batch::keep(std::string_view text) {
  if (text.empty()) return {};
  char* to = bytes.get() + used;
  std::memcpy(to, text.data(), text.size());
  used += text.size();
  return {to, text.size()};
}

EventQueue::EventQueue(trace::TraceWriter writer)
    : writer_(std::move(writer)), current_(std::make_unique<Batch>()) {
  thread_ = std::thread([this] { writer_main(); });
}

EventQueue::~EventQueue() { stop(); }

void EventQueue::add(const trace::Event& event) {
  // A path is PATH_MAX long at most in practice, deeper trees a few times that.
  const std::size_t limit = kBatchBytes / 4;
  const auto cut = [&](std::string_view text) { return text.substr(0, limit); };
  const std::size_t size =
      cut(event.path).size() + cut(event.resolved).size() + cut(event.target).size();
  std::unique_lock lock(mutex_);
  if (stopping_) return;
  if (!current_->fits(size)) {
    room_.wait(lock, [&] { return full_.size() < kMostBatches || stopping_; });
    if (!current_->fits(size)) {  // nobody else did it meanwhile
      full_.push_back(std::move(current_));
      if (spare_.empty()) {
        current_ = std::make_unique<Batch>();
      } else {
        current_ = std::move(spare_.back());
        spare_.pop_back();
      }
      work_.notify_one();
    }
  }
  trace::Event copy = event;
  copy.path = current_->keep(cut(event.path));
  copy.resolved = current_->keep(cut(event.resolved));
  copy.target = current_->keep(cut(event.target));
  current_->events.push_back(copy);
  if (idle_) {
    idle_ = false;
    work_.notify_one();
  }
}

void EventQueue::write_batch(Batch& batch) {
  for (const auto& event : batch.events) writer_.append(event);
  batch.events.clear();
  batch.used = 0;
}

void EventQueue::writer_main() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (full_.empty() && current_->events.empty() && !stopping_) {
      idle_ = true;
      work_.wait(lock, [&] { return !idle_ || stopping_; });
      idle_ = false;
    }
    if (full_.empty() && !stopping_)
      work_.wait_for(lock, kPause, [&] { return !full_.empty() || stopping_; });
    std::unique_ptr<Batch> batch;
    if (!full_.empty()) {
      batch = std::move(full_.front());
      full_.pop_front();
    } else if (!current_->events.empty()) {
      batch = std::move(current_);
      current_ = std::make_unique<Batch>();
    } else if (stopping_) {
      return;
    }
    if (!batch) continue;
    lock.unlock();
    room_.notify_all();
    write_batch(*batch);
    lock.lock();
    const bool dry = full_.empty();
    if (dry) {
      lock.unlock();
      writer_.flush();
      lock.lock();
    }
    if (spare_.size() < 4) spare_.push_back(std::move(batch));
  }
}

void EventQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    work_.notify_one();
    room_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Result<void> EventQueue::finish(bool complete, std::optional<int> exit_status,
                                std::uint64_t end_ns) {
  stop();
  return writer_.finish(complete, exit_status, end_ns);
}

}  // namespace heddle
