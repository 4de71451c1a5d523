// SPDX-License-Identifier: MIT
#include "base/mountinfo.hpp"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

namespace heddle {
namespace {

TEST(Mountinfo, fields_are_found_whatever_optional_fields_there_are) {
  const auto mounts = parse_mountinfo(
      R"(36 35 98:1 /root\040x /a\040b\134 rw,noatime shared:7 master:1 - ext4 /dev/sd\040a rw,x=1
40 36 0:52 / /m ro,nosuid - fuse.heddle heddle ro,user_id=0,group_id=5
)");
  ASSERT_EQ(mounts.size(), 2U);
  EXPECT_EQ(mounts[0].id, 36);
  EXPECT_EQ(mounts[0].device, makedev(98, 1));
  EXPECT_EQ(mounts[0].root, "/root x");
  EXPECT_EQ(mounts[0].point, "/a b\\");
  EXPECT_TRUE(mounts[0].shared);
  EXPECT_EQ(mounts[0].source, "/dev/sd a");
  EXPECT_EQ(mounts[1].type, "fuse.heddle");
  EXPECT_FALSE(mounts[1].shared);
  EXPECT_TRUE(mounts[1].has_option("user_id=0"));
  EXPECT_FALSE(mounts[1].has_option("group_id=50"));
}

TEST(Mountinfo, damaged_lines_are_entries_without_a_type) {
  for (const char* text : {"\n", "1", "1 2 3", "1 2 3:4 /", "1 2 3:4 / /m rw shared:1", "- - -"})
    for (const auto& mount : parse_mountinfo(text)) EXPECT_EQ(mount.type, "") << text;
}

TEST(Mountinfo, of_this_process_has_the_mount_of_proc) {
  const auto proc = value_or_throw(find_mount("/proc"));
  ASSERT_TRUE(proc.has_value());
  EXPECT_EQ(proc->type, "proc");
  EXPECT_FALSE(value_or_throw(find_mount("/no/such/mount")).has_value());
}

}  // namespace
}  // namespace heddle
