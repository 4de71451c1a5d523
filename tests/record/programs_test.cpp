// SPDX-License-Identifier: MIT
// Programs do under the recorder what they do without it.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sandbox/sanitized.hpp"
#include "tests/record/recorded.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

TEST(Recorder, files_behave_as_natively) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  run_checked({"mkdir", dir / "native", dir / "recorded"});
  const auto native = run({HEDDLE_FS_PROBE, dir / "native"});
  const auto recorded = record(dir / "run.txt", {HEDDLE_FS_PROBE, dir / "recorded"});
  expect_same(native, recorded);
  EXPECT_EQ(native.status, 0);
  EXPECT_GT(native.out.size(), 3000U);
  EXPECT_EQ(run({"diff", "-r", "--no-dereference", "--exclude=sock", "--exclude=fifo",
                 "--exclude=node", dir / "native", dir / "recorded"})
                .status,
            0);
}

TEST(Recorder, arguments_arrive_as_they_are) {
  expect_same_run({"printf", "[%s]", "a b", "", "$x", "tab\tnl\n", "\xff"});
}

TEST(Recorder, exit_codes_are_the_programs_own) {
  expect_same_run({"sh", "-c", "exit 7"});
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  EXPECT_EQ(record(dir / "r", {"/no/such/program"}).status, 127);
  EXPECT_EQ(record(dir / "r", {dir.path()}).status, 126);
  EXPECT_EQ(run({program, "--append", dir / "r", "true"}).status, 2);
  EXPECT_EQ(run({program, "--trace", dir / "missing", "--summary"}).status, 3);
  write_text_file(dir / "bad", "no trace\n");
  EXPECT_EQ(run({program, "--trace", dir / "bad", "--summary"}).status, 2);
  EXPECT_EQ(run({program, "true"}).status, 2);
  EXPECT_EQ(record("/no/such/directory/run.txt", {"true"}).status, 3);
}

TEST(Recorder, few_descriptors_suffice) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  const auto done =
      record(dir / "run.txt", {"bash", "-c",
                               "ulimit -n 256; exec /usr/bin/python3 -c \"\nfor i in range(20000): "
                               "open('/etc/passwd').close()\n"
                               "f=[open('/etc/passwd') for i in range(240)]\nprint('ok')\""});
  EXPECT_EQ(done.out, "ok\n") << done.err;
}

/// A small tmpfs, gone with it.
class SmallDisk {
 public:
  explicit SmallDisk(std::string path) : path_(std::move(path)) {
    run_checked({"mkdir", path_});
    if (::mount("small", path_.c_str(), "tmpfs", 0, "size=1m") != 0)
      throw Error::from_errno(path_, "cannot mount");
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() { ::umount2(path_.c_str(), MNT_DETACH); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// elf/dl-load.c, _dl_map_object_from_fd(): of equal (dev, ino) the second is taken for the first.
TEST(Recorder, little_address_space_is_enough) {
  HEDDLE_STAGED(program, "fs-record");
  if (kSanitized) HEDDLE_SKIP("a sanitizer takes terabytes of it");
  const TestDir dir;
  const auto limited = run({"sh", "-c", "ulimit -v 1000000; exec \"$0\" \"$@\"", program, "--quiet",
                            "--out", dir / "run.txt", "/bin/echo", "ran"});
  EXPECT_EQ(limited.status, 0) << limited.err;
  EXPECT_EQ(limited.out, "ran\n");
  EXPECT_TRUE(read_seen(dir / "run.txt").complete());
}

TEST(Recorder, libraries_of_two_devices_with_one_inode_number_stay_two) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount two disks");
  TestDir dir;
  const SmallDisk one(dir / "one"), two(dir / "two");
  write_text_file(dir / "one.c", "int which(void) { return 1; }\n");
  write_text_file(dir / "two.c", "int which(void) { return 2; }\n");
  run_checked({"gcc", "-shared", "-fPIC", "-o", dir / "one.so", dir / "one.c"});
  run_checked({"gcc", "-shared", "-fPIC", "-o", dir / "two.so", dir / "two.c"});
  run_checked({"cp", dir / "one.so", one / "lib.so"});
  run_checked({"cp", dir / "two.so", two / "lib.so"});
  struct stat a {
  }, b{};
  ASSERT_EQ(::stat((one / "lib.so").c_str(), &a), 0);
  ASSERT_EQ(::stat((two / "lib.so").c_str(), &b), 0);
  ASSERT_EQ(a.st_ino, b.st_ino) << "tmpfs counts from the same number";
  expect_same_run({"/usr/bin/python3", "-c",
                   "import ctypes, sys; print([ctypes.CDLL(l).which() for l in sys.argv[1:]])",
                   one / "lib.so", two / "lib.so"});
}

}  // namespace
}  // namespace heddle::test
