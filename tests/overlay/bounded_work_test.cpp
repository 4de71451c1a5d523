// SPDX-License-Identifier: MIT
#include "fuseovl/files/bounded_work.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "fuseovl/session/shared.hpp"

namespace heddle::test {
namespace {

using namespace std::chrono_literals;
using State = WorkResult::State;

TEST(DoWithin, what_others_are_at_is_not_late_with_the_one_that_hangs) {
  constexpr std::size_t kHangs = 20;
  const auto results = do_within(300ms, 40, [](std::size_t piece, WorkPlace& place) {
    if (piece < 16) std::this_thread::sleep_for(1ms);  // so that many are begun at once
    if (piece == kHangs)
      for (;;) ::pause();
    if (piece >= 16) {
      for (int i = 0; i < 200; ++i) {
        std::this_thread::sleep_for(10ms);
        place.moves_on();
      }
    }
  });
  std::size_t late = 0;
  for (const auto& result : results) late += result.state == State::late;
  EXPECT_EQ(results[kHangs].state, State::late);
  EXPECT_EQ(late, 1U);
  EXPECT_EQ(results[3].state, State::done);
  EXPECT_EQ(results[21].state, State::not_begun) << "it had 2 s to do";
}

TEST(DoWithin, a_process_that_is_killed_is_followed_by_another) {
  Shared<std::atomic<int>> killed;
  const auto results = do_within(60s, 5, [&](std::size_t piece, WorkPlace&) {
    if (piece == 3 && (*killed)++ == 0) ::raise(SIGKILL);
  });
  for (const auto& result : results) EXPECT_EQ(result.state, State::done);
  EXPECT_EQ(*killed, 2);
}

TEST(DoWithin, a_piece_that_ends_each_process_is_never_done_in_ours) {
  const pid_t ours = ::getpid();
  Shared<std::atomic<bool>> here;
  const auto results = do_within(60s, 5, [&](std::size_t piece, WorkPlace&) {
    if (piece != 3) return;
    *here = ::getpid() == ours;
    if (!*here) ::raise(SIGKILL);
  });
  EXPECT_FALSE(*here);
  EXPECT_EQ(results[3].state, State::late);
  for (const int piece : {0, 1, 2, 4}) EXPECT_EQ(results[piece].state, State::done) << piece;
}

TEST(DoWithin, leaves_our_folder_alone_and_stands_in_none) {
  const auto before = std::filesystem::current_path();
  Shared<std::atomic<bool>> at_root;
  (void)do_within(
      60s, 1, [&](std::size_t, WorkPlace&) { *at_root = std::filesystem::current_path() == "/"; });
  EXPECT_TRUE(*at_root);
  EXPECT_EQ(std::filesystem::current_path(), before);
}

}  // namespace
}  // namespace heddle::test
