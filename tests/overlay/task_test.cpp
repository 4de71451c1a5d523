// SPDX-License-Identifier: MIT
#include "fuseovl/mount/task.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <stdexcept>

#include "base/monotonic.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

using namespace std::chrono_literals;

bool ends(const Task& task, std::chrono::milliseconds limit = 10s) {
  pollfd entry{task.ended(), POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(limit.count())) > 0;
}

Result<void> result_of(const std::function<Result<void>()>& work) {
  auto task = value_or_throw(Task::start(work));
  EXPECT_TRUE(ends(task));
  return task.result();
}

TEST(Tasks, say_what_their_work_says) {
  EXPECT_TRUE(result_of([]() -> Result<void> { return {}; }));
  const auto failed = result_of([] { return fail_errno("/x", "cannot open", ESTALE, "try"); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ESTALE);
  EXPECT_EQ(failed.error().message(), "/x: cannot open: Stale file handle");
  EXPECT_EQ(failed.error().hint(), "try");
}

TEST(Tasks, what_is_thrown_or_ends_them_is_an_error_here) {
  const pid_t ours = ::getpid();
  const auto thrown = result_of([]() -> Result<void> { throw std::runtime_error("no room"); });
  EXPECT_EQ(::getpid(), ours);
  ASSERT_FALSE(thrown);
  EXPECT_EQ(thrown.error().message(), "no room");
  const auto killed = result_of([]() -> Result<void> {
    ::kill(::getpid(), SIGKILL);
    return {};
  });
  ASSERT_FALSE(killed);
  EXPECT_EQ(killed.error().message(), "fs-mount: it ended without a word");
}

TEST(Tasks, that_are_late_are_left_behind) {
  auto task = value_or_throw(Task::start(
      [] {
        for (;;) ::pause();
        return Result<void>();
      },
      50ms));
  ASSERT_NE(task.late_at(), 0);
  EXPECT_TRUE(wait_until(10s, [&] { return monotonic_ms() >= task.late_at(); }));
  const auto late = task.result();
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ETIMEDOUT);
  EXPECT_TRUE(ends(task)) << "it is killed";
}

}  // namespace
}  // namespace heddle::test
