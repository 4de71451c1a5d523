// SPDX-License-Identifier: MIT
#include "fuseovl/files/reader_pool.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "base/result.hpp"
#include "fuseovl/files/origins.hpp"

namespace heddle {
namespace {

using std::chrono::milliseconds;

constexpr auto kIdleLife = std::chrono::seconds(5);
// When nobody is answered in its stead, somebody should know all the same.
constexpr milliseconds kSaidAfter{30'000};

/// `buffer` grows as needed.
tl::expected<std::string_view, int> done(const ReaderPool::Read& read, std::vector<char>& buffer) {
  try {
    if (buffer.size() < read.size) buffer.resize(read.size);
    const auto size = read.work({buffer.data(), read.size});
    if (!size) return tl::unexpected(size.error());
    return std::string_view(buffer.data(), *size);
  } catch (const std::bad_alloc&) {
    return tl::unexpected(ENOMEM);
  }
}

}  // namespace

ReaderPool::ReaderPool(std::size_t lanes, milliseconds limit, const std::atomic<bool>& giving_up)
    : limit_(limit), giving_up_(giving_up), lanes_(lanes) {}

ReaderPool::~ReaderPool() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  watch_.notify_all();
  for (auto& lane : lanes_) lane.wake.notify_all();
  ended_.wait(lock, [this] { return threads_ == 0; });
}

void ReaderPool::submit(Read read) {
  Jobs made;
  const auto now = Clock::now();
  made.push_back({std::move(read), now});
  const Read& mine = made.front().read;
  const std::size_t number = mine.lane;
  bool refused = false;
  {
    const std::lock_guard lock(mutex_);
    Lane& lane = lanes_[number];
    refused = is_silent(lane) && (now < lane.next_try || lane.stuck >= kThreadsPerLane);
    if (!refused) {
      lane.next_try = now + limit_;
      if (!watched_) watched_ = start_thread(lanes_.size());
      if (lane.waiting >= lane.idle && lane.threads < kThreadsPerLane) (void)start_thread(number);
      if (lane.threads > 0) {
        if (jobs_.empty()) watch_.notify_one();
        jobs_.splice(jobs_.end(), made);
        ++lane.waiting;
        lane.wake.notify_one();
        return;
      }
    }
  }
  std::vector<char> buffer;
  if (refused)
    mine.answer(tl::unexpected(EIO));
  else
    mine.answer(done(mine, buffer));
}

/// `number` one past the lanes: the watchdog. False: no thread to be had.
bool ReaderPool::start_thread(std::size_t number) {
  const bool is_watch = number == lanes_.size();
  try {
    std::thread([this, number, is_watch] {
      is_watch ? watch() : run_lane(number);
      const std::lock_guard lock(mutex_);
      if (--threads_ == 0) ended_.notify_all();
    }).detach();
  } catch (const std::exception&) {  // std::system_error, std::bad_alloc
    return false;
  }
  ++threads_;
  if (!is_watch) ++lanes_[number].threads;
  return true;
}

ReaderPool::Jobs::iterator ReaderPool::next_of(std::size_t number) {
  return std::find_if(jobs_.begin(), jobs_.end(),
                      [number](const Job& job) { return job.read.lane == number && !job.running; });
}

void ReaderPool::run_lane(std::size_t number) {
  std::vector<char> buffer;
  std::unique_lock lock(mutex_);
  Lane& lane = lanes_[number];
  for (;;) {
    const auto job = next_of(number);
    if (job == jobs_.end()) {
      if (ending_) break;
      ++lane.idle;
      const auto woken = lane.wake.wait_for(lock, kIdleLife);
      --lane.idle;
      if (woken == std::cv_status::timeout && next_of(number) == jobs_.end()) break;
      continue;
    }
    job->running = true;
    job->since = Clock::now();
    --lane.waiting;
    lock.unlock();
    const auto result = done(job->read, buffer);
    lock.lock();
    const bool back = std::exchange(lane.said, false);
    lane.last_done = Clock::now();
    if (job->answered) --lane.stuck;
    Jobs mine;
    mine.splice(mine.end(), jobs_, job);
    lock.unlock();
    if (!job->answered) job->read.answer(result);
    if (back) say(Error(job->read.path, "its file system answers again").message());
    mine.clear();
    lock.lock();
  }
  --lane.threads;
}

void ReaderPool::watch() {
  const milliseconds limit = limit_.count() > 0 ? limit_ : kSaidAfter;
  const milliseconds pace = std::clamp(limit / 10, milliseconds(10), milliseconds(100));
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (jobs_.empty()) {
      watch_.wait(lock);
      continue;
    }
    watch_.wait_for(lock, pace, [this] { return ending_; });
    std::vector<std::function<void()>> to_do;
    try {
      expire(giving_up_ ? Clock::now() : Clock::now() - limit, to_do);
    } catch (const std::bad_alloc&) {
      // What was not expired is so at the next round.
    }
    lock.unlock();
    for (const auto& act : to_do) act();
    to_do.clear();
    lock.lock();
  }
}

/// Finds what has had no answer since `begin`; `out`: what to do about it without the lock.
void ReaderPool::expire(Clock::time_point begin, std::vector<std::function<void()>>& out) {
  for (auto& job : jobs_) {
    Lane& lane = lanes_[job.read.lane];
    if (job.answered || job.since > begin || (!job.running && lane.last_done > begin)) continue;
    if (lane.last_done <= job.since && !lane.said) {
      const bool ends = limit_.count() > 0;
      out.push_back([message = Error(job.read.path, not_answered_for(ends ? limit_ : kSaidAfter),
                                     ends ? "its files answer with an error, until it does"
                                          : "waiting")] { warn(message); });
      lane.said = true;
      lane.next_try = begin + 2 * limit_;
    }
    if (!ends_waiting() || !job.running) continue;
    out.push_back([answer = job.read.answer] { answer(tl::unexpected(EIO)); });
    job.answered = true;
    ++lane.stuck;
  }
  if (!ends_waiting()) return;
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    Lane& lane = lanes_[job->read.lane];
    const bool over = job->since <= begin && lane.last_done <= begin;
    if (job->running || !(is_silent(lane) || over)) {
      ++job;
      continue;
    }
    out.push_back([answer = job->read.answer] { answer(tl::unexpected(EIO)); });
    --lane.waiting;
    job = jobs_.erase(job);
  }
}

}  // namespace heddle
