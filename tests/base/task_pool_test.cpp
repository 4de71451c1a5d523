// SPDX-License-Identifier: MIT
#include "base/task_pool.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>

#include "base/child.hpp"

namespace heddle {
namespace {

TEST(TaskPool, runs_tasks_that_tasks_add) {
  TaskPool pool;
  std::atomic<int> done = 0;
  const std::function<void(int)> branch = [&](int depth) {
    ++done;
    for (int i = 0; depth > 0 && i < 3; ++i) pool.add([&, depth] { branch(depth - 1); });
  };
  pool.add([&] { branch(7); });
  pool.wait();
  EXPECT_EQ(done, 3280);
  pool.add([&] { ++done; });
  pool.wait();
  EXPECT_EQ(done, 3281);
}

TEST(TaskPool, has_64_tasks_in_flight) {
  std::atomic<int> waiting = 0;
  for_each_at_once(66, [&](std::size_t i) {
    if (i < 2) return std::this_thread::sleep_for(std::chrono::milliseconds(1));  // slow
    ++waiting;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (waiting < 64 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  });
  EXPECT_EQ(waiting, 64);
}

TEST(TaskPool, throws_what_a_task_throws_and_starts_no_other) {
  TaskPool pool;
  std::atomic<int> done = 0;
  pool.add([&] {
    for (int i = 0; i < 1000; ++i)
      pool.add([&] {
        ++done;
        throw std::runtime_error("one");
      });
  });
  EXPECT_THROW(pool.wait(), std::runtime_error);
  EXPECT_LT(done, 1000);
  pool.wait();
}

TEST(TaskPool, visits_each_index_once) {
  for (const std::size_t count : {0U, 1U, 2U, 63U, 64U, 65U, 10000U}) {
    std::vector<std::atomic<int>> visits(count);
    for_each_at_once(count, [&](std::size_t i) { ++visits[i]; });
    for (const auto& one : visits) EXPECT_EQ(one, 1);
  }
}

TEST(TaskPool, works_without_threads) {
  auto child = value_or_throw(fork_child({}, [] {
    ::free(::malloc(100'000));  // what the pool itself needs
    const rlimit no_room_for_stacks{1, 1};
    ::setrlimit(RLIMIT_AS, &no_room_for_stacks);
    std::atomic<int> done = 0;
    for_each_at_once(10, [&](std::size_t) { ++done; });
    return done == 10 ? 0 : 1;
  }));
  EXPECT_EQ(value_or_throw(child.wait()), 0);
}

}  // namespace
}  // namespace heddle
