// SPDX-License-Identifier: MIT
#include "fuseovl/files/file_work.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "fuseovl/session/shared.hpp"

namespace heddle::test {
namespace {

using namespace std::chrono_literals;
using State = WorkResult::State;

/// Pieces below 20 are on procfs, the others on the root.
std::string_view path_of(std::size_t piece) { return piece < 20 ? "/proc/x" : "/x"; }

TEST(FileWork, hung_file_system_costs_only_its_own_pieces) {
  const auto results = work_on_files(40, {.limit = 300ms,
                                          .work =
                                              [](std::size_t piece, WorkPlace& place) {
                                                if (piece == 5)
                                                  for (;;) ::pause();
                                                for (int i = 0; i < 60 && piece == 30; ++i) {
                                                  std::this_thread::sleep_for(10ms);
                                                  place.moves_on();
                                                }
                                              },
                                          .path_of = path_of});
  for (std::size_t piece = 20; piece < 40; ++piece)
    EXPECT_EQ(results[piece].state, State::done) << piece;
  EXPECT_EQ(results[4].state, State::done);
  EXPECT_EQ(results[5].state, State::late);
  EXPECT_EQ(results[19].state, State::not_begun) << "the same file system is hung";
}

TEST(FileWork, slow_answers_are_awaited_in_parallel) {
  const auto begin = std::chrono::steady_clock::now();
  const auto results = work_on_files(
      100, {.limit = 10s,
            .work = [](std::size_t, WorkPlace&) { std::this_thread::sleep_for(20ms); },
            .path_of = path_of});
  for (const auto& result : results) EXPECT_EQ(result.state, State::done);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1500ms);
}

TEST(FileWork, killed_process_is_an_error) {
  EXPECT_THROW(work_on_files(5, {.limit = 60s,
                                 .work =
                                     [](std::size_t piece, WorkPlace&) {
                                       if (piece == 3) ::raise(SIGKILL);
                                     },
                                 .path_of = path_of}),
               Error);
}

TEST(FileWork, all_files_arrive_when_one_packet_cannot_hold_them) {
  const auto before = std::filesystem::current_path();
  auto results = work_on_files(
      600, {.limit = 60s,
            .work = [](std::size_t, WorkPlace& place) { place.give(open_file(".", 0).value()); },
            .path_of = path_of});
  for (const auto& result : results)
    EXPECT_EQ(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(result.file.get())),
              "/");
  EXPECT_EQ(std::filesystem::current_path(), before);
}

}  // namespace
}  // namespace heddle::test
