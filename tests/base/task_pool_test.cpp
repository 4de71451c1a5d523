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
