// SPDX-License-Identifier: MIT
#include "base/child.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <stdexcept>

#include "base/try.hpp"

namespace heddle {
namespace {

using std::chrono::seconds;

TEST(ForkedChild, exits_with_the_result_of_its_body) {
  auto seven = value_or_throw(fork_child({}, [] { return 7; }));
  EXPECT_EQ(seven.wait(), 7);
  ForkOptions quiet;
  quiet.null_stdio = true;
  auto thrown = value_or_throw(fork_child(quiet, []() -> int { throw Error("a", "b"); }));
  EXPECT_EQ(thrown.wait(), 3);
}

TEST(ForkedChild, keeps_only_the_descriptors_named) {
  const Fd kept(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Fd other(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ForkOptions options;
  options.keep = {{kept.get()}};
  auto child = value_or_throw(fork_child(options, [&] {
    return (::fcntl(kept.get(), F_GETFD) >= 0 ? 1 : 0) +
           (::fcntl(other.get(), F_GETFD) < 0 ? 2 : 0);
  }));
  EXPECT_EQ(child.wait(), 3);
}

TEST(WorkInAChild, returns_its_error_or_is_abandoned_at_the_deadline) {
  EXPECT_TRUE(run_in_child(seconds(10), {}, [] { return Result<void>(); }));
  const auto failed = run_in_child(seconds(10), {}, []() -> Result<void> {
    return fail(Error::with_code(ESTALE, "file", "cannot", "reason", "remedy"));
  });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message(), "file: cannot: reason");
  EXPECT_EQ(failed.error().hint(), "remedy");
  EXPECT_EQ(failed.error().code(), ESTALE);
  const auto code_of = [](std::chrono::milliseconds limit, void (*end)()) {
    const auto result = run_in_child(limit, {}, [&] { return end(), Result<void>(); });
    return result ? 0 : result.error().code();
  };
  EXPECT_EQ(code_of(std::chrono::milliseconds(20), [] { ::pause(); }), ETIMEDOUT);
  EXPECT_EQ(code_of(seconds(10), [] { ::_exit(9); }), ECHILD);
  const auto thrown =
      run_in_child(seconds(10), {}, []() -> Result<void> { throw std::runtime_error("no room"); });
  ASSERT_FALSE(thrown);
  EXPECT_EQ(thrown.error().message(), "no room");
}

Result<int> half(int n) {
  if (n % 2 != 0) return fail("", "odd");
  return n / 2;
}
Result<std::string> quarter(int n) {
  const int once = TRY(half(n));
  const int twice = TRY(half(once));
  return std::to_string(twice);
}

TEST(Try, gives_the_value_or_returns_the_error) {
  EXPECT_EQ(quarter(8), "2");
  ASSERT_FALSE(quarter(6));
  EXPECT_EQ(quarter(6).error().message(), "odd");
}

}  // namespace
}  // namespace heddle
