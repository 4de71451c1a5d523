// SPDX-License-Identifier: MIT
// Users other than root, and users without the rights that the recorder prefers to have.

#include "tests/record/recorded.hpp"

namespace heddle::test {
namespace {

/// fs-record and the probe in a directory that user 1500 may enter, run as that user.
class RecorderOfUser : public Recorder {
 protected:
  void SetUp() override {
    Recorder::SetUp();
    if (IsSkipped()) return;
    if (::geteuid() != 0) HEDDLE_SKIP("needs root to become another user");
    run_checked({"mkdir", dir_ / "native", dir_ / "recorded", dir_ / "closed"});
    run_checked({"chmod", "0777", dir_.path()});
    // Without fusermount3 the mount is in a user namespace and cannot write to other users' files.
    run_checked({"chown", "1500:1500", dir_ / "native", dir_ / "recorded"});
    run_checked({"cp", program_, HEDDLE_FS_PROBE, dir_.path()});
  }
  /// `world`: options of in-world.
  RunResult run_as_user(const std::vector<std::string>& argv,
                        const std::vector<std::string>& world = {},
                        const std::string& tmp = {}) const {
    std::vector<std::string> all{HEDDLE_IN_WORLD, "--uid", "1500"};
    all.insert(all.end(), world.begin(), world.end());
    all.emplace_back("--");
    all.insert(all.end(), argv.begin(), argv.end());
    return run(all, {.env = {"HOME=/nonexistent", "TMPDIR=" + (tmp.empty() ? dir_.path() : tmp)}});
  }
  RunResult record_as_user(const std::vector<std::string>& argv,
                           const std::vector<std::string>& world = {},
                           const std::string& tmp = {}) const {
    std::vector<std::string> all{dir_ / "fs-record", "-q", "--out", trace_};
    all.insert(all.end(), argv.begin(), argv.end());
    return run_as_user(all, world, tmp);
  }
};

TEST_F(RecorderOfUser, serves_file_operations_as_natively) {
  expect_same(run_as_user({dir_ / "fs_probe", dir_ / "native"}),
              record_as_user({dir_ / "fs_probe", dir_ / "recorded"}));
  EXPECT_TRUE(read_seen(trace_).complete());
  EXPECT_EQ(mounts_with("heddle-record"), 0U);
}

TEST_F(RecorderOfUser, works_without_a_writable_TMPDIR) {
  std::string method;
  for (const auto& tmp : {dir_.path(), dir_ / "closed", std::string("/nowhere")}) {
    const auto recorded = record_as_user({"/bin/true"}, {}, tmp);
    EXPECT_EQ(recorded.status, 0) << recorded.err;
    const auto seen = read_seen(trace_);
    if (method.empty()) method = seen.header.method;
    EXPECT_EQ(seen.header.method, method) << tmp;
  }
}

TEST_F(RecorderOfUser, reports_a_missing_dev_fuse_with_a_hint) {
  const auto refused = record_as_user({"/bin/true"}, {"--fuse", "absent"});
  EXPECT_EQ(refused.status, 3);
  EXPECT_NE(refused.err.find("/dev/fuse: "), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("hint: "), std::string::npos) << refused.err;
}

TEST_F(RecorderOfUser, without_a_name_is_recorded_in_a_user_namespace_with_the_right_hint) {
  if (!is_installed("fusermount3")) HEDDLE_SKIP("fusermount3 is not installed");
  const auto recorded =
      run_as_user({dir_ / "fs-record", "--out", trace_, "/bin/true"}, {"--name", "no"});
  EXPECT_EQ(recorded.status, 0) << recorded.err;
  EXPECT_EQ(read_seen(trace_).header.method, "namespace");
  EXPECT_NE(recorded.err.find("fusermount3 refuses uid 1500, which has no name\nhint: give it an "
                              "entry in passwd (getent passwd 1500"),
            std::string::npos)
      << recorded.err;
}

TEST_F(RecorderOfUser, records_under_proot_when_unshare_is_forbidden) {
  if (!is_installed("proot")) HEDDLE_SKIP("proot is not installed");
  const std::vector<std::string> app = {"sh", "-c", "cat /etc/debian_version /no/such; exit 7"};
  expect_same(run_as_user(app), record_as_user(app, {"--forbid", "unshare"}));
  const auto seen = read_seen(trace_);
  EXPECT_TRUE(seen.complete());
  EXPECT_EQ(seen.header.method, "proot");
  EXPECT_TRUE(std::any_of(
      seen.header.notes.begin(), seen.header.notes.end(),
      [](const std::string& note) { return note.find("no namespaces") != std::string::npos; }));
}

}  // namespace
}  // namespace heddle::test
