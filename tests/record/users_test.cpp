// SPDX-License-Identifier: MIT
// Those who are not root, and who may not do all that the recorder would like to.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "tests/record/recorded.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

/// fs-record and the probe where a user reaches them, and what runs there as user 1500.
struct UserWorld {
  UserWorld() {
    run_checked({"mkdir", dir / "native", dir / "recorded", dir / "closed"});
    run_checked({"chmod", "0777", dir.path()});
    // The user's own: a mount in a user namespace, without fusermount3, cannot write to others'.
    run_checked({"chown", "1500:1500", dir / "native", dir / "recorded"});
    run_checked({"cp", staged_program("fs-record"), HEDDLE_FS_PROBE, dir.path()});
  }
  RunResult run_as_user(const std::vector<std::string>& argv, const std::string& tmp,
                        const std::vector<std::string>& where = {}) const {
    std::vector<std::string> all{HEDDLE_IN_WORLD, "--uid", "1500"};
    all.insert(all.end(), where.begin(), where.end());
    all.emplace_back("--");
    all.insert(all.end(), argv.begin(), argv.end());
    RunOptions options;
    options.env = {"HOME=/nonexistent", "TMPDIR=" + tmp};
    return run(all, options);
  }
  TestDir dir;
};

TEST(Recorder, files_behave_as_natively_for_a_user) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to become another user");
  const UserWorld world;
  const auto& dir = world.dir;
  expect_same(world.run_as_user({dir / "fs_probe", dir / "native"}, dir.path()),
              world.run_as_user({dir / "fs-record", "-q", "--out", dir / "run.txt",
                                 dir / "fs_probe", dir / "recorded"},
                                dir.path()));
  EXPECT_TRUE(read_seen(dir / "run.txt").complete());
  EXPECT_EQ(mounts_with("heddle-record"), 0U);
}

TEST(Recorder, a_TMPDIR_that_the_user_cannot_write_to_changes_nothing) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to become another user");
  const UserWorld world;
  const auto& dir = world.dir;
  std::string method;
  for (const auto& tmp : {dir.path(), dir / "closed", std::string("/nowhere")}) {
    const auto recorded = world.run_as_user(
        {dir / "fs-record", "--quiet", "--out", dir / "run.txt", "/bin/true"}, tmp);
    EXPECT_EQ(recorded.status, 0) << recorded.err;
    const auto seen = read_seen(dir / "run.txt");
    if (method.empty()) method = seen.header.method;
    EXPECT_EQ(seen.header.method, method) << tmp;
  }
}

TEST(Recorder, a_user_without_dev_fuse_is_told_what_to_do) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to become another user");
  const UserWorld world;
  const auto& dir = world.dir;
  const auto told = world.run_as_user({dir / "fs-record", "--out", dir / "run.txt", "/bin/true"},
                                      dir.path(), {"--fuse", "absent"});
  EXPECT_EQ(told.status, 3);
  EXPECT_NE(told.err.find("/dev/fuse: cannot open"), std::string::npos) << told.err;
  EXPECT_NE(told.err.find("hint: "), std::string::npos) << told.err;
}

TEST(Recorder, a_user_who_may_not_unshare_records_under_proot) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to become another user");
  if (run({"sh", "-c", "command -v proot"}).status != 0) HEDDLE_SKIP("proot is not installed");
  const UserWorld world;
  const auto& dir = world.dir;
  const std::vector<std::string> app = {"sh", "-c", "cat /etc/debian_version /no/such; exit 7"};
  std::vector<std::string> recorded_app = {dir / "fs-record", "--out", dir / "run.txt", "-q"};
  recorded_app.insert(recorded_app.end(), app.begin(), app.end());
  expect_same(world.run_as_user(app, dir.path()),
              world.run_as_user(recorded_app, dir.path(), {"--forbid", "unshare"}));
  const auto seen = read_seen(dir / "run.txt");
  EXPECT_TRUE(seen.complete());
  EXPECT_EQ(seen.header.method, "proot");
  EXPECT_TRUE(std::any_of(
      seen.header.notes.begin(), seen.header.notes.end(),
      [](const std::string& note) { return note.find("no namespaces") != std::string::npos; }));
}

TEST(Recorder, another_user_below_root_has_his_own_rights) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to become another user");
  TestDir dir;
  run_checked({"chmod", "0755", dir.path()});
  write_text_file(dir / "secret", "s", 0600);
  write_text_file(dir / "shared", "g", 0640);
  run_checked({"chgrp", "12345", dir / "shared"});
  const std::string script = "cat " + dir.path() + "/secret; cat " + dir.path() + "/shared; id -G";
  expect_same_run(
      {"setpriv", "--reuid=65534", "--regid=65534", "--groups=12345", "sh", "-c", script});
}

}  // namespace
}  // namespace heddle::test
