// SPDX-License-Identifier: MIT
//
// An MPI that comes into an image, in a folder of its own, after the image was decided on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <filesystem>

#include "base/fd.hpp"
#include "tests/hook/real_mpi.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class LateCopy : public RealMpiTest {
 protected:
  void SetUp() override {
    prepare("runc", "bullseye");
    if (IsSkipped() || HasFatalFailure()) return;
    for (const char* name : {"up", "work", "image"}) fs::create_directory(dir_ / name);
    run_checked({"mount", "-t", "overlay", "-o",
                 "lowerdir=" + rootfs_ + ",upperdir=" + dir_ / "up" + ",workdir=" + dir_ / "work",
                 "none", dir_ / "image"});
    is_mounted_ = true;
  }
  void TearDown() override {
    if (is_mounted_) ::umount2((dir_ / "image").c_str(), MNT_DETACH);
  }
  /// What `program` of the image prints, where another one was named.
  std::string run_unnamed(const std::string& program) {
    auto asked = config({"/bin/sh", "-c", program});
    asked["root"]["path"] = dir_ / "image";
    asked["annotations"]["heddle.program"] = "/mnt/hello";
    const auto ran = start(asked);
    EXPECT_EQ(ran.status, 0) << ran.err << log();
    return ran.out;
  }

  bool is_mounted_ = false;
};

TEST_F(LateCopy, is_seen_by_the_next_container) {
  EXPECT_THAT(run_unnamed("/mnt/hello"), HasSubstr("4.0.2"));
  copy_mpi("image/opt/late/lib");
  compile("late", "-Wl,--disable-new-dtags,-rpath,/opt/late/lib");
  EXPECT_THAT(run_unnamed("/mnt/late"), HasSubstr("4.0.2")) << log();
}

}  // namespace
}  // namespace heddle::test
