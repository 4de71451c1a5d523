// SPDX-License-Identifier: MIT
// How mounts begin: for whom, and what is refused and said.

#include <unistd.h>

#include <algorithm>

#include "base/sandbox/sanitized.hpp"
#include "tests/overlay/lifecycle_support.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST_F(Lifecycle, a_missing_map_is_refused) {
  expect_refused(fs_mount_run({dir_ / "none", mnt()}), "none: ");
}

TEST_F(Lifecycle, what_is_no_map_is_refused) {
  write_text_file(dir_ / "text", "no map at all");
  expect_refused(fs_mount_run({dir_ / "text", mnt()}), "text: ");
  write_text_file(dir_ / "empty", "");
  expect_refused(fs_mount_run({dir_ / "empty", mnt()}), "empty: ");
  expect_refused(fs_mount_run({dir_.path(), mnt()}), dir_.path());
}

TEST_F(Lifecycle, a_damaged_map_is_refused) {
  auto bytes = value_or_throw(read_file(map_));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_text_file(dir_ / "damaged", bytes);
  expect_refused(fs_mount_run({dir_ / "damaged", mnt()}), "damaged: ");
  write_text_file(dir_ / "cut", bytes.substr(0, bytes.size() - 4096));
  expect_refused(fs_mount_run({dir_ / "cut", mnt()}), "cut: ");
}

TEST_F(Lifecycle, a_mount_point_that_is_missing_or_no_directory_is_refused) {
  expect_refused(fs_mount_run({map_, dir_ / "none"}), "No such file or directory");
  expect_refused(fs_mount_run({map_, map_}), "Not a directory");
}

TEST_F(Lifecycle, a_second_mount_on_the_same_directory_is_refused_by_name) {
  const Mount first(map_, mnt());
  const auto second = fs_mount_run({map_, mnt()});
  EXPECT_EQ(second.status, 3);
  EXPECT_THAT(second.err, HasSubstr("it is already a heddle mount"));
  EXPECT_EQ(mounts_with(" " + mnt() + " "), 1U);
  EXPECT_EQ(value_or_throw(read_file(first / "a.so")), "content of a.so");
}

TEST_F(Lifecycle, wrong_command_lines_are_usage_errors) {
  for (const auto& line : std::vector<std::vector<std::string>>{
           {},
           {map_},
           {map_, mnt(), "more"},
           {"--on-drift", "maybe", map_, mnt()},
           {"--prefetch", "much", map_, mnt()},
           {"--lazy", map_, mnt()},
           {"-u", mnt(), map_, mnt()},
           {"--fuse-fd", "3", map_},
           {"--ready-fd", "3", map_, mnt()},
           {"--fuse-fd", "3", "--mount-point", "/x", "--cleanup", "/", map_}})
    EXPECT_EQ(fs_mount_run(line).status, 2) << to_shell(line);
}

TEST_F(Lifecycle, no_dev_fuse_is_said_with_a_hint) {
  const auto result =
      run({"unshare", "-m", "sh", "-c", "mount -t tmpfs none /dev && exec \"$0\" \"$@\"",
           fs_mount(), map_, mnt()});
  expect_refused(result, "/dev/fuse: cannot open: No such file or directory");
  EXPECT_THAT(result.err, HasSubstr("hint: load the module"));
}

/// Runs `script` as user 65534 in a mount namespace of its own where /dev/fuse is open to all; $1
/// is fs-mount, $2 the map, $3 a mount point of the user's.
RunResult run_as_user(const TestDir& dir, const std::string& map, const std::string& before,
                      const std::string& script) {
  fs::permissions(dir.path(), fs::perms::all);
  fs::copy_file(fs_mount(), dir / "fs-mount", fs::copy_options::skip_existing);
  const std::string mnt = dir / "user";
  fs::create_directories(mnt);
  if (::chown(mnt.c_str(), 65534, 65534) != 0) throw Error::from_errno(mnt, "cannot chown");
  const std::string set_up =
      "set -e; mknod -m 666 \"$4/fuse\" c 10 229; mount --bind \"$4/fuse\" /dev/fuse; " + before +
      " exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c \"$0\" sh \"$@\"";
  return run({"unshare", "-m", "sh", "-c", set_up, script, dir / "fs-mount", map, mnt, dir.path()});
}

TEST_F(Lifecycle, a_user_mounts_by_fusermount3_and_unmounts_again) {
  const auto result = run_as_user(dir_, map_, "",
                                  "\"$1\" \"$2\" \"$3\" && cat \"$3/a.so\" && "
                                  "grep -c \"$3 .*fuse.heddle heddle\" /proc/self/mountinfo && "
                                  "\"$1\" -u \"$3\" && ls -A \"$3\"");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "content of a.so1\n");
}

TEST_F(Lifecycle, little_address_space_is_enough) {
  if (kSanitized) HEDDLE_SKIP("a sanitizer takes terabytes of it");
  const auto started =
      run({"sh", "-c", "ulimit -v 65536; exec \"$0\" \"$@\"", fs_mount(), map_, mnt()});
  ASSERT_EQ(started.status, 0) << started.err;
  EXPECT_EQ(value_or_throw(read_file(mnt() + "/b.so")), "content of b.so");
  EXPECT_EQ(fs_mount_run({"-u", mnt()}).status, 0);
}

TEST_F(Lifecycle, a_user_without_fusermount3_gets_a_hint) {
  const auto result = run_as_user(
      dir_, map_, "mount --bind /dev/null \"$(command -v fusermount3)\";", "\"$1\" \"$2\" \"$3\"");
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(result.err, HasSubstr("the program is not installed\nhint: install it"));
}

TEST_F(Lifecycle, fusermount3s_own_reason_is_told_on_one_line) {
  const auto result = run_as_user(dir_, map_, "chown 0 \"$3\";", "\"$1\" \"$2\" \"$3\"");
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(result.err, HasSubstr("cannot mount: user has no write access to mountpoint"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

}  // namespace
}  // namespace heddle::test
