// SPDX-License-Identifier: MIT
// fs-mount --reload over and over, and with few descriptors: nothing is left of the maps before.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <iostream>

#include "tests/overlay/reload_support.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

TEST_F(Reload, files_are_given_up_when_nobody_has_them_any_more) {
  const auto a = write_big_map('a'), b = write_big_map('b');
  Mount m(a, dir_ / "mnt");
  auto held = value_or_throw(open_file(m / "file1", O_RDONLY));
  ASSERT_EQ(reload({b, m.path()}).status, 0);
  EXPECT_TRUE(wait_until(10s, [&] { return m.stat_number("retired") == 1; }))
      << m.stat_number("retired");
  ::posix_fadvise(held.get(), 0, 0, POSIX_FADV_DONTNEED);
  EXPECT_EQ(value_or_throw(read_all(held.get(), "file1")), std::string(300000, 'a'));
  held.reset();
  EXPECT_TRUE(wait_until(20s, [&] { return m.stat_number("retired") == 0; }));
  EXPECT_EQ(m.stat_number("workers_lost"), 0U);
  EXPECT_EQ(text_of(m / "file1"), std::string(300000, 'b'));
}

TEST_F(Reload, memory_and_descriptors_stay_what_they_are_over_many_reloads) {
  const std::string maps[] = {write_big_map('a'), write_big_map('b')};
  Mount m(maps[0], dir_ / "mnt", {"--prefetch", "0"});
  const auto settle = [&] {
    EXPECT_TRUE(wait_until(20s, [&] { return m.stat_number("retired") == 0; }));
  };
  ASSERT_EQ(reload({maps[1], m.path()}).status, 0);
  settle();
  const auto supervisor = footprint(m.pid()), worker = footprint(m.worker());
  int rounds = 0;
  for (const auto end = std::chrono::steady_clock::now() + time_to_spend() / 2;
       std::chrono::steady_clock::now() < end; ++rounds)
    ASSERT_EQ(reload({maps[rounds % 2], m.path(), "--prefetch", "0"}).status, 0) << rounds;
  ASSERT_EQ(reload({maps[rounds++ % 2], m.path()}).status, 0);  // asks for all names
  settle();
  std::cout << rounds << " reloads\n";
  EXPECT_GT(rounds, 3);
  EXPECT_EQ(footprint(m.pid()).fds, supervisor.fds);
  EXPECT_EQ(footprint(m.worker()).fds, worker.fds);
  // A few pages more or less are the allocator's; a reload that left something would show sooner.
  EXPECT_LT(footprint(m.pid()).kib, supervisor.kib + 2048);
  // Each of its four threads keeps a buffer as large as the largest read it answered, 1 MiB at
  // most; which of them answered is chance.
  EXPECT_LT(footprint(m.worker()).kib, worker.kib + 4 * 1024 + 2048);
  EXPECT_EQ(m.stat_number("reloads"), static_cast<std::uint64_t>(rounds + 1));
  EXPECT_TRUE(wait_until(5s, [&] { return children_of(m.pid()).size() == 1; }));
}

TEST_F(Reload, few_descriptors_are_enough_for_what_stays_the_same) {
  MapMaker maker;
  for (int i = 0; i < 50; ++i)
    maker.add_name("v", "f" + std::to_string(i),
                   write_text_file(dir_ / "many/f" + std::to_string(i), "x"));
  maker.write(dir_ / "fifty");
  maker.add_name("v", "new", dir_ / "two/new");
  maker.write(dir_ / "fifty-one");
  fs::create_directories(dir_ / "mnt");
  run_checked({"sh", "-c", "ulimit -n 128; exec \"$0\" \"$1\" \"$2\"", fs_mount(), dir_ / "fifty",
               dir_ / "mnt"});
  const std::string stats = dir_ / "mnt/.heddle/stats";
  EXPECT_THAT(text_of(stats), ::testing::ContainsRegex("\"pinned\": +50,"));
  const auto done = reload({dir_ / "fifty-one", dir_ / "mnt"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(text_of(stats), ::testing::ContainsRegex("\"pinned\": +5[01],"));
  EXPECT_EQ(text_of(dir_ / "mnt/new"), "two new\n");
  EXPECT_EQ(run({fs_mount(), "-u", dir_ / "mnt"}).status, 0);
}

}  // namespace
}  // namespace heddle::test
