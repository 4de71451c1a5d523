// SPDX-License-Identifier: MIT
#include "fuseovl/files/reader_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <thread>

#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

using namespace std::chrono_literals;

/// Reads that block until released, and counts of their answers.
class ReaderPoolTest : public ::testing::Test {
 protected:
  ~ReaderPoolTest() override { release(); }
  void release() {
    if (!free_.exchange(true)) gate_.set_value();
  }
  void submit(std::size_t lane, ReaderPool::Work work) {
    pool_.submit({lane, 100, "/far/file", std::move(work), [this](auto got) {
                    if (!got) {
                      ++errors_;
                      error_ = got.error();
                    } else {
                      ++answers_;
                    }
                  }});
  }
  void submit_blocking(std::size_t lane) {
    submit(lane, [this](std::span<char>) {
      open_.wait();
      return std::size_t{0};
    });
  }
  void submit_ready(std::size_t lane) {
    submit(lane, [](std::span<char> into) {
      std::memset(into.data(), 'x', into.size());
      return into.size();
    });
  }
  /// Waits until a read of the first lane succeeds.
  bool lane_answers() {
    return wait_until(10s, [&] {
      const int before = answers_;
      submit_ready(0);
      return wait_until(50ms, [&] { return answers_ > before; });
    });
  }
  bool reached(const std::atomic<int>& count, int n) {
    return wait_until(10s, [&] { return count >= n; });
  }

  std::promise<void> gate_;
  std::shared_future<void> open_ = gate_.get_future().share();
  std::atomic<bool> free_ = false;
  std::atomic<int> answers_ = 0, errors_ = 0, error_ = 0;
  std::atomic<bool> giving_up_ = false;
  ReaderPool pool_{2, 600ms, giving_up_};
};

TEST_F(ReaderPoolTest, blocked_lane_delays_no_other) {
  for (std::size_t i = 0; i < 3 * ReaderPool::kThreadsPerLane; ++i) submit_blocking(0);
  for (int i = 0; i < 50; ++i) submit_ready(1);
  EXPECT_TRUE(reached(answers_, 50));
}

TEST_F(ReaderPoolTest, timed_out_reads_fail_once_and_later_reads_fail_at_once) {
  for (int i = 0; i < 20; ++i) submit_blocking(0);
  EXPECT_TRUE(reached(errors_, 20));
  EXPECT_EQ(error_, EIO);
  submit_ready(0);
  EXPECT_EQ(errors_, 21);
  release();
  EXPECT_TRUE(lane_answers());
}

TEST_F(ReaderPoolTest, lane_with_one_blocked_read_is_retried) {
  submit_blocking(0);
  ASSERT_TRUE(reached(errors_, 1));
  EXPECT_TRUE(lane_answers());
}

TEST_F(ReaderPoolTest, slow_lane_does_not_time_out) {
  // Together far longer than the timeout, each far shorter.
  std::vector<std::promise<void>> gates(20);
  for (auto& gate : gates)
    submit(0, [&gate](std::span<char>) {
      (void)gate.get_future().wait_for(50ms);
      return std::size_t{0};
    });
  for (int i = 0; i < 80; ++i)
    submit(0, [](std::span<char>) {
      std::promise<void> never;
      (void)never.get_future().wait_for(40ms);
      return std::size_t{0};
    });
  EXPECT_TRUE(reached(answers_, 100));
  EXPECT_EQ(errors_, 0);
}

TEST_F(ReaderPoolTest, reads_from_many_threads_are_all_answered) {
  std::vector<std::jthread> users;
  for (int t = 0; t < 8; ++t)
    users.emplace_back([&] {
      for (std::size_t i = 0; i < 500; ++i) submit_ready(i % 2);
    });
  EXPECT_TRUE(reached(answers_, 4000));
  EXPECT_EQ(errors_, 0);
}

TEST(ReaderPool, pool_without_a_timeout_waits_until_shutdown) {
  std::promise<void> gate;
  std::atomic<int> answers = 0, errors = 0;
  std::atomic<bool> giving_up = false;
  ReaderPool pool(1, 0ms, giving_up);
  const auto submit = [&](std::future<void> open) {
    pool.submit({0, 1, "/f",
                 [shared = open.share()](std::span<char>) {
                   shared.wait();
                   return std::size_t{1};
                 },
                 [&](auto got) { ++(got ? answers : errors); }});
  };
  std::promise<void> soon;
  submit(soon.get_future());
  soon.set_value();
  EXPECT_TRUE(wait_until(10s, [&] { return answers == 1; }));
  submit(gate.get_future());
  giving_up = true;
  EXPECT_TRUE(wait_until(10s, [&] { return errors == 1; }));
  gate.set_value();
}

}  // namespace
}  // namespace heddle::test
