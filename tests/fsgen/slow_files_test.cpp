// SPDX-License-Identifier: MIT
// Which file systems are slow, and what the report says where heddle saves less than it costs.

#include <sys/mount.h>

#include "fsgen/run_report.hpp"
#include "fsgen/slow_files.hpp"
#include "tests/support/prelude.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::test {
namespace {

TEST(SlowFiles, network_file_systems_are_slow_by_their_type) {
  const std::map<std::uint64_t, std::string> types = {
      {0x6969, "nfs"},       {0x0BD00BD0, "lustre"}, {0x47504653, "gpfs"}, {0x19830326, "beegfs"},
      {0x00C36400, "ceph"},  {0x5346414F, "afs"},    {0x01021997, "9p"},   {0xFE534D42, "smb"},
      {0xAAD7AAEA, "panfs"}, {0x7461636F, "ocfs2"},  {0x01161970, "gfs2"}};
  for (const auto& [magic, name] : types) {
    const auto speed = speed_of_type(magic, "any");
    ASSERT_TRUE(speed) << name;
    EXPECT_TRUE(speed->slow && speed->remote_type) << name;
    EXPECT_EQ(speed->why, name);
  }
  for (const auto magic :
       {0xEF53U, 0x58465342U, 0x9123683EU, 0x794C7630U})  // ext4 xfs btrfs overlay
    EXPECT_FALSE(speed_of_type(magic, "any")) << "it is measured: " << magic;
  const auto memory = speed_of_type(0x01021994, "tmpfs");
  EXPECT_TRUE(memory && !memory->slow);
}

TEST(SlowFiles, fuse_is_slow_unless_its_subtype_is_one_of_the_local_ones) {
  constexpr std::uint64_t kFuse = 0x65735546;
  for (const char* name : {"fuse", "fuse.sshfs", "fuse.cvmfs2", "fuse.s3fs", "fuse.heddle"}) {
    const auto speed = speed_of_type(kFuse, name);
    ASSERT_TRUE(speed) << name;
    EXPECT_TRUE(speed->slow && speed->remote_type) << name;
    EXPECT_EQ(speed->why, name);
  }
  for (const char* name : {"fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs"})
    EXPECT_FALSE(speed_of_type(kFuse, name)) << name;
}

TEST(SlowFiles, the_lowest_layer_of_an_overlay_is_the_last_of_its_list) {
  EXPECT_EQ(lowest_layer("rw,lowerdir=/a,upperdir=/b:c,workdir=/d"), "/a");
  EXPECT_EQ(lowest_layer("rw,lowerdir=/a:/b:/c,upperdir=/u"), "/c");
  EXPECT_EQ(lowest_layer("lowerdir=/a:/b::/data"), "/data");
  EXPECT_EQ(lowest_layer("ro,lowerdir+=/a,lowerdir+=/b,index=off"), "/b");
  EXPECT_EQ(lowest_layer("ro,lowerdir+=/a,datadir+=/d,nouserxattr"), "/d");
  EXPECT_EQ(lowest_layer("rw,upperdir=/x,notlowerdir=/y"), "");
  EXPECT_EQ(lowest_layer(""), "");
}

TEST(SlowFiles, links_to_named_directories_are_followed) {
  const TestDir dir;
  fs::create_directories(dir / "usr/lib/a");
  fs::create_symlink("usr/lib", dir / "lib");
  const auto is_slow = [&](const std::string& slow, const std::string& path) {
    return SlowFiles({dir / slow}, {}).speed_of(dir / path).why == "--slow " + dir / slow;
  };
  EXPECT_TRUE(is_slow("usr/lib", "usr/lib/a"));
  EXPECT_TRUE(is_slow("usr/lib", "lib/a"));
  EXPECT_TRUE(is_slow("lib", "lib/a"));
  EXPECT_FALSE(is_slow("usr/lib/a", "lib"));
  EXPECT_FALSE(is_slow("none", "lib/a"));
  SlowFiles files({dir / "usr"}, {dir / "lib"});
  EXPECT_EQ(files.speed_of(dir / "lib/a").why, "--fast " + dir / "lib") << "by its own name";
}

TEST(SlowFiles, an_overlay_is_judged_by_its_lowest_layer) {
  if (::geteuid() != 0) HEDDLE_SKIP("only root mounts overlays");
  const TestDir dir;
  for (const char* name : {"source", "upper", "work", "quick", "on_slow", "on_quick"})
    fs::create_directory(dir / name);
  SlowMount slow(dir / "source", dir / "slow", dir / "counts", {.delay_us = 0});
  const auto stack = [&](const std::string& lower, const std::string& at) {
    ASSERT_EQ(::mount("overlay", at.c_str(), "overlay", 0,
                      ("lowerdir=" + dir / "quick" + ":" + lower).c_str()),
              0)
        << std::strerror(errno);
  };
  stack(slow.directory(), dir / "on_slow");
  fs::create_directory(dir / "upper/a");
  stack(dir / "upper", dir / "on_quick");
  SlowFiles files({}, {});
  const auto on_slow = files.speed_of(dir / "on_slow"), on_quick = files.speed_of(dir / "on_quick");
  ::umount2((dir / "on_slow").c_str(), MNT_DETACH);
  ::umount2((dir / "on_quick").c_str(), MNT_DETACH);
  EXPECT_TRUE(on_slow.slow);
  EXPECT_FALSE(on_slow.remote_type) << "fs-mount knows an overlay by its own type";
  EXPECT_THAT(on_slow.why, StartsWith("overlay on fuse"));
  EXPECT_THAT(on_quick.why, AllOf(StartsWith("overlay on "), Not(HasSubstr("fuse"))));
}

TEST(ReportText, balance_line_is_there_where_heddle_costs_more_than_it_saves) {
  RunReport run;
  run.app = "app";
  run.guided = true;
  run.loader = "audit";
  run.via = "direct";
  run.fast_files = true;
  run.resolve_ns = 3'000'000;
  run.mount_ns = 1'000'000;
  const std::string line = "HEDDLE=off runs it without heddle";
  EXPECT_THAT(to_text(run), HasSubstr(line)) << "/bin/true";
  run.probes_without = 1000;
  EXPECT_THAT(to_text(run), HasSubstr(line));
  run.counters.guided_processes = 2;
  EXPECT_THAT(to_text(run), Not(HasSubstr(line))) << "what children would have cost is unknown";
  run.counters.guided_processes = 1;
  run.probes_without = 100 * 99 / 2;  // of a hundred libraries in a hundred directories
  EXPECT_THAT(to_text(run), Not(HasSubstr(line)));
  run.probes_without = 0;
  run.fast_files = false;
  EXPECT_THAT(to_text(run), Not(HasSubstr(line))) << "a failed look-up costs more there";
  run.fast_files = true;
  run.guided = false;
  EXPECT_THAT(to_text(run), Not(HasSubstr(line)));
}

}  // namespace
}  // namespace heddle::test
