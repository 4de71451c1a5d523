// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <string>

#include "record/loopback/locks.hpp"
#include "record/native_paths.hpp"
#include "record/recorder.hpp"

namespace heddle {
namespace {

using loopback::LockedRanges;

std::string text_of(const LockedRanges& ranges) {
  std::string out;
  for (const auto& r : ranges)
    out += std::to_string(r.owner) + (r.type == F_WRLCK ? "w" : "r") + std::to_string(r.start) +
           "-" + std::to_string(r.end) + " ";
  return out;
}

TEST(LockedRanges, new_lock_replaces_earlier_ones_of_its_owner) {
  LockedRanges ranges;
  set_range(ranges, {1, 0, 99, F_RDLCK, 10});
  set_range(ranges, {2, 0, 99, F_RDLCK, 20});
  set_range(ranges, {1, 40, 49, F_WRLCK, 10});
  EXPECT_EQ(text_of(ranges), "1r0-39 1r50-99 2r0-99 1w40-49 ");
  set_range(ranges, {1, 30, 200, F_UNLCK, 10});
  EXPECT_EQ(text_of(ranges), "1r0-29 2r0-99 ");
}

TEST(LockedRanges, conflict_only_with_writers_of_other_owners) {
  const LockedRanges ranges{{1, 10, 19, F_RDLCK, 10}};
  EXPECT_FALSE(find_conflict(ranges, {2, 0, 99, F_RDLCK, 20}));
  EXPECT_FALSE(find_conflict(ranges, {1, 0, 99, F_WRLCK, 10}));
  EXPECT_FALSE(find_conflict(ranges, {2, 20, 99, F_WRLCK, 20}));
  EXPECT_EQ(find_conflict(ranges, {2, 19, 19, F_WRLCK, 20}), &ranges[0]);
}

TEST(Walks, destinations_are_absolute_and_normalised) {
  EXPECT_EQ(Walks::destination("/lib", "usr/lib"), "/usr/lib");
  EXPECT_EQ(Walks::destination("/a/b/c", "../x/./y"), "/a/x/y");
  EXPECT_EQ(Walks::destination("/a/b", "/c//d/"), "/c/d");
  EXPECT_EQ(Walks::destination("/a", "../.."), "/");
}

TEST(NativePaths, include_listening_sockets_only) {
  const std::string text =
      "Num       RefCount Protocol Flags    Type St Inode Path\n"
      "0000: 00000002 00000000 00010000 0001 01 100 /run/dbus/socket\n"
      "0000: 00000003 00000000 00000000 0001 03 101 /run/dbus/client\n"
      "0000: 00000002 00000000 00000000 0002 01 102 /dev/log with space\n"
      "0000: 00000002 00000000 00010000 0001 01 103 @/abstract/name\n"
      "0000: 00000002 00000000 00010000 0001 01 104\n";
  EXPECT_EQ(served_sockets(text),
            (std::vector<std::string>{"/run/dbus/socket", "/dev/log with space"}));
}

}  // namespace
}  // namespace heddle
