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
// Without a limit a wait this long is reported.
constexpr milliseconds kReportAfter{30'000};

tl::expected<std::string_view, int> done(const ReaderPool::Read& read, AnswerBuffer& buffer) {
  try {
    const auto room = buffer.at_least(read.size);
    const auto size = read.work(room);
    if (!size) return tl::unexpected(size.error());
    return std::string_view(room.data(), *size);
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

/// Whether at least `threads_had` threads are in reads that were answered already.
bool ReaderPool::Lane::is_stuck(std::size_t threads_had) const {
  return static_cast<std::size_t>(std::ranges::count_if(running, &Job::answered)) >= threads_had;
}

void ReaderPool::submit(Read read) {
  std::list<Job> made;
  made.push_back({std::move(read)});
  const Read& mine = made.front().read;
  bool refused = false;
  {
    const std::lock_guard lock(mutex_);
    Lane& lane = lanes_[mine.lane];
    const auto now = Clock::now();
    refused =
        lane.silent && ends_waiting() && (now < lane.next_try || lane.is_stuck(kThreadsPerLane));
    if (!refused) {
      lane.next_try = now + limit_;
      if (!watched_) watched_ = start_thread([this] { watch(); });
      if (lane.waiting.size() >= lane.idle && lane.threads < kThreadsPerLane &&
          start_thread([this, &lane] { run_lane(lane); }))
        ++lane.threads;
      if (lane.threads > 0) {
        if (jobs_++ == 0) watch_.notify_one();
        lane.waiting.splice(lane.waiting.end(), made);
        lane.wake.notify_one();
        return;
      }
    }
  }
  AnswerBuffer buffer;
  if (refused)
    mine.answer(tl::unexpected(EIO));
  else
    mine.answer(done(mine, buffer));
}

/// False: no thread can be started.
bool ReaderPool::start_thread(std::function<void()> work) {
  try {
    std::thread([this, work = std::move(work)] {
      work();
      const std::lock_guard lock(mutex_);
      if (--threads_ == 0) ended_.notify_all();
    }).detach();
  } catch (const std::exception&) {  // std::system_error, std::bad_alloc
    return false;
  }
  ++threads_;
  return true;
}

void ReaderPool::run_lane(Lane& lane) {
  AnswerBuffer buffer;
  std::unique_lock lock(mutex_);
  for (;;) {
    ++lane.idle;
    const bool woken =
        lane.wake.wait_for(lock, kIdleLife, [&] { return ending_ || !lane.waiting.empty(); });
    --lane.idle;
    if (!woken || lane.waiting.empty()) break;
    lane.running.splice(lane.running.end(), lane.waiting, lane.waiting.begin());
    const auto job = std::prev(lane.running.end());
    job->since = Clock::now();
    lock.unlock();
    const auto result = done(job->read, buffer);
    lock.lock();
    const bool back = std::exchange(lane.silent, false);
    lane.last_done = Clock::now();
    std::list<Job> mine;
    mine.splice(mine.end(), lane.running, job);
    --jobs_;
    lock.unlock();
    if (!job->answered) job->read.answer(result);
    if (back) say(Error(job->read.path, "its file system answers again").message());
    mine.clear();
    lock.lock();
  }
  --lane.threads;
}

void ReaderPool::watch() {
  const milliseconds limit = limit_.count() > 0 ? limit_ : kReportAfter;
  const milliseconds pace = std::clamp(limit / 10, milliseconds(10), milliseconds(100));
  std::unique_lock lock(mutex_);
  for (;;) {
    watch_.wait(lock, [this] { return ending_ || jobs_ > 0; });
    if (watch_.wait_for(lock, pace, [this] { return ending_; })) return;
    std::vector<std::function<void()>> to_do;
    try {
      expire(giving_up_ ? Clock::now() : Clock::now() - limit, to_do);
    } catch (const std::bad_alloc&) {
      // The next round expires the rest.
    }
    lock.unlock();
    for (const auto& act : to_do) act();
    to_do.clear();
    lock.lock();
  }
}

/// Finds reads that have run since `begin`; `out`: what to do for them without the lock.
void ReaderPool::expire(Clock::time_point begin, std::vector<std::function<void()>>& out) {
  const auto refuse = [&](const Job& job) {
    out.push_back([answer = job.read.answer] { answer(tl::unexpected(EIO)); });
  };
  for (Lane& lane : lanes_) {
    for (Job& job : lane.running) {
      if (job.answered || job.since > begin) continue;
      if (lane.last_done <= job.since && !lane.silent) {
        const bool ends = limit_.count() > 0;
        out.push_back(
            [message = Error(job.read.path, not_answered_for(ends ? limit_ : kReportAfter),
                             ends ? "reads fail until it answers" : "waiting")] { warn(message); });
        lane.silent = true;
        lane.next_try = begin + 2 * limit_;
      }
      if (!ends_waiting()) continue;
      refuse(job);
      job.answered = true;
    }
    if (!ends_waiting() || !(lane.silent || giving_up_ || lane.is_stuck(lane.threads))) continue;
    for (; !lane.waiting.empty(); lane.waiting.pop_front(), --jobs_) refuse(lane.waiting.front());
  }
}

}  // namespace heddle
