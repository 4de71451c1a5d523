// SPDX-License-Identifier: MIT
// Outputs of reports and maps: only regular files are replaced.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>

#include "base/child.hpp"
#include "base/open_regular.hpp"
#include "base/output_file.hpp"
#include "base/temp_dir.hpp"
#include "base/trusted_path.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

class OutputFile : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(dir_.path()), fs::directory_iterator()));
  }
  const TempDir dir_ = value_or_throw(TempDir::create("heddle-output-test"));
};

TEST_F(OutputFile, reports_a_full_device) {
  if (::mknod(path("full").c_str(), S_IFCHR | 0666, makedev(1, 7)) != 0 ||
      !open_file(path("full"), O_WRONLY))
    GTEST_SKIP() << "device nodes need root";
  const auto written = write_output(path("full"), "text");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ENOSPC);
}

TEST_F(OutputFile, replaces_the_target_of_a_link) {
  ASSERT_TRUE(write_output(path("file"), "old"));
  fs::create_symlink("file", path("link"));
  ASSERT_TRUE(write_output(path("link"), "new"));
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read_file(path("file")).value_or(""), "new");
}

TEST_F(OutputFile, appends_to_a_descriptor_named_in_proc) {
  auto out = open_file(path("out"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(write_all(out->get(), "of the program\n", "out"));
  ASSERT_TRUE(write_output("/proc/self/fd/" + std::to_string(out->get()), "report\n"));
  EXPECT_EQ(read_file(path("out")).value_or(""), "of the program\nreport\n");
  EXPECT_EQ(named_descriptor("/dev/stdout"), 1);
  EXPECT_EQ(named_descriptor("/dev/fd/63"), 63);
  EXPECT_EQ(named_descriptor("/dev/fd/6x"), std::nullopt);
  EXPECT_EQ(named_descriptor("/dev/null"), std::nullopt);
}

TEST_F(OutputFile, refuses_directories_and_dangling_links) {
  fs::create_symlink("nothing", path("dangling"));
  EXPECT_FALSE(write_output(path("dangling"), "x"));
  EXPECT_FALSE(write_output(dir_.path(), "x"));
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFile, replaces_an_atomic_file_whole_or_not_at_all) {
  const auto file_path = path("f");
  for (const char* text : {"one", "two"}) {
    auto file = value_or_throw(AtomicFile::create(file_path));
    value_or_throw(file.write(text));
    if (text == std::string("two")) {
      EXPECT_EQ(read_file(file_path).value_or(""), "one");
    }
    value_or_throw(file.commit());
    EXPECT_EQ(read_file(file_path).value_or(""), text);
  }
  { value_or_throw(value_or_throw(AtomicFile::create(file_path)).write("three")); }
  EXPECT_EQ(read_file(file_path).value_or(""), "two");
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFile, private_file_stays_private) {
  const auto file_path = path("f");
  for (const int mode : {0600, 0640, 0400}) {
    value_or_throw(write_output(file_path, "text"));
    fs::permissions(file_path, fs::perms(mode));
    value_or_throw(write_output(file_path, "text"));
    EXPECT_EQ(fs::status(file_path).permissions(), fs::perms(mode));
    fs::remove(file_path);
  }
}

TEST_F(OutputFile, stays_in_the_directory_that_it_was_created_in) {
  for (const char* name : {"a", "b"}) {
    fs::create_directory(path(name));
    value_or_throw(write_output(path(name) + "/f", name));
  }
  auto file = value_or_throw(AtomicFile::create(path("a/f")));
  value_or_throw(file.write("new"));
  fs::rename(path("a"), path("c"));
  fs::create_directory_symlink("b", path("a"));
  value_or_throw(file.commit());
  EXPECT_EQ(read_file(path("c/f")).value_or(""), "new");
  EXPECT_EQ(read_file(path("b/f")).value_or(""), "b");
  EXPECT_EQ(files(), 3U);
}

TEST_F(OutputFile, new_file_replaces_none) {
  value_or_throw(write_output(path("one"), "old"));
  auto file = value_or_throw(AtomicFile::create(path("one")));
  value_or_throw(file.write("new"));
  EXPECT_FALSE(value_or_throw(file.commit_new("one")));
  EXPECT_TRUE(value_or_throw(file.commit_new("two")));
  EXPECT_EQ(read_file(path("one")).value_or(""), "old");
  EXPECT_EQ(read_file(path("two")).value_or(""), "new");
  EXPECT_EQ(files(), 2U);
}

TEST_F(OutputFile, published_file_is_written_on) {
  for (int i = 0; i < 2; ++i) {  // new, and in the place of the first
    auto file = value_or_throw(AtomicFile::create(path("trace")));
    value_or_throw(file.write("a"));
    const auto open = value_or_throw(file.commit_open());
    EXPECT_EQ(read_file(path("trace")).value_or(""), "a");
    value_or_throw(write_all(open.get(), "b", "trace"));
    EXPECT_EQ(read_file(path("trace")).value_or(""), "ab");
    EXPECT_EQ(files(), 1U);
  }
  value_or_throw(write_all(value_or_throw(open_in_place(path("trace"))).get(), "c", "trace"));
  EXPECT_EQ(read_file(path("trace")).value_or(""), "c");
  EXPECT_FALSE(open_in_place(path("none")));
}

TEST_F(OutputFile, has_no_name_before_its_commit_so_a_killed_program_leaves_nothing) {
  if (!Fd(::open(dir_.path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)))
    GTEST_SKIP() << "the file system has no nameless files";
  ::umask(022);
  for (const bool by_link : {true, false}) {
    for (const char* text : {"one", "two"}) {
      auto file = value_or_throw(AtomicFile::create(path("f")));
      value_or_throw(file.write(text));
      EXPECT_EQ(files(), text == std::string("one") ? 0U : 1U);
      const auto commit = [&] { return file.commit() ? 0 : 1; };
      if (by_link) {
        EXPECT_EQ(commit(), 0);
      } else {
        auto child = value_or_throw(fork_child({}, [&] {
          // Without /proc it cannot be linked.
          if (::unshare(CLONE_NEWNS) != 0 ||
              ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
              ::mount("none", "/proc", "tmpfs", 0, nullptr) != 0)
            return 2;
          return commit();
        }));
        const auto status = value_or_throw(child.wait());
        if (status == 2) GTEST_SKIP() << "mounts need root";
        EXPECT_EQ(status, 0);
      }
      EXPECT_EQ(read_file(path("f")).value_or(""), text);
      struct stat there {};
      EXPECT_EQ(::stat(path("f").c_str(), &there), 0);
      EXPECT_EQ(there.st_mode & 0777U, 0644U);
      EXPECT_EQ(files(), 1U);
    }
    fs::remove(path("f"));
  }
}

TEST_F(OutputFile, links_to_devices_and_descriptors_lead_there) {
  fs::create_symlink("/dev/null", path("null"));
  EXPECT_TRUE(write_output(path("null"), "x"));
  EXPECT_EQ(AtomicFile::create(path("null")).error().code(), EINVAL);
  fs::create_symlink("loop", path("loop"));
  EXPECT_EQ(AtomicFile::create(path("loop")).error().code(), ELOOP);
  EXPECT_EQ(files(), 2U);
}

TEST_F(OutputFile, root_writes_through_no_link_that_another_user_can_have_put_there) {
  if (!is_systems_root()) GTEST_SKIP() << "needs root to make another user's links";
  fs::create_directories(path("victim/sub"));
  value_or_throw(write_output(path("victim/f"), "kept"));
  value_or_throw(write_output(path("victim/sub/f"), "kept"));
  for (const char* owner : {"mine", "theirs", "both"}) {
    fs::create_directories(path(owner));
    const auto at = path(owner);
    fs::create_directory_symlink("../victim", at + "/dir");
    fs::create_symlink("../victim/f", at + "/file");
    fs::create_symlink("dir/f", at + "/twice");
  }
  for (const char* name : {"theirs/dir", "theirs/file"})
    ASSERT_EQ(::lchown(path(name).c_str(), 1511, 1511), 0);
  // Where another user may rename, root's link may be that user's choice.
  ASSERT_EQ(::chown(path("theirs").c_str(), 1511, 1511), 0);
  ASSERT_EQ(::chmod(path("both").c_str(), 0775), 0);
  for (const char* name :
       {"theirs/dir/f", "theirs/dir/new", "theirs/file", "theirs/twice", "theirs/../theirs/dir/f",
        "theirs//dir//f", "both/dir/f", "both/file", "both/twice"}) {
    EXPECT_FALSE(write_output(path(name), "x")) << name;
    EXPECT_FALSE(open_in_place(path(name))) << name;
    EXPECT_FALSE(open_log(path(name))) << name;
  }
  const auto root = "/proc/self/root" + path("victim");
  EXPECT_EQ(open_log(root + "/log").error().code(), ELOOP);
  EXPECT_FALSE(remove_tree(root + "/sub"));
  EXPECT_FALSE(remove_tree(path("theirs/dir/sub")));
  EXPECT_FALSE(make_directory_to_write(path("theirs/dir/new"), 0777));
  EXPECT_FALSE(TempDir::create("t", path("theirs/dir")));
  EXPECT_EQ(write_output(path("theirs/dir/f"), "x").error().code(), EPERM);
  // The link goes, not what it leads to.
  EXPECT_TRUE(remove_tree(path("theirs/dir/")));
  EXPECT_FALSE(fs::exists(fs::symlink_status(path("theirs/dir"))));
  for (const char* name : {"victim/f", "victim/sub/f"})
    EXPECT_EQ(read_file(path(name)).value_or(""), "kept");
  // Root's own lead where they lead; the file itself may be in the other user's directory.
  ASSERT_EQ(::chmod(path("both").c_str(), 01777), 0);
  for (const char* name : {"mine/dir/f", "mine/file", "mine/twice", "theirs/new", "both/file"}) {
    const auto written = write_output(path(name), name);
    EXPECT_TRUE(written) << written.error().message();
    EXPECT_EQ(read_file(path(name)).value_or(""), name);
  }
  EXPECT_TRUE(remove_tree(path("mine/dir/sub")));
  EXPECT_FALSE(fs::exists(path("victim/sub")));
  for (const char* odd : {"", "/", ".", "..", "mine/.."}) EXPECT_FALSE(remove_tree(odd)) << odd;
}

/// sudo may keep a user's TMPDIR, who could exchange a directory there.
TEST_F(OutputFile, temporary_directory_of_root_is_not_below_another_users) {
  if (!is_systems_root()) GTEST_SKIP() << "needs root to make another user's directory";
  fs::create_directory(path("theirs"));
  ASSERT_EQ(::chown(path("theirs").c_str(), 1511, 1511), 0);
  const std::string before = std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "";
  ::setenv("TMPDIR", path("theirs").c_str(), 1);
  const auto made = value_or_throw(TempDir::create("heddle-output-test"));
  before.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before.c_str(), 1);
  EXPECT_TRUE(made.path().starts_with("/tmp/")) << made.path();
  EXPECT_TRUE(fs::is_empty(path("theirs")));
}

TEST_F(OutputFile, replaces_only_regular_files_atomically) {
  const auto pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  // AtomicFile opens none of these, so the machine's devices are safe.
  for (const std::string& name : {pipe, std::string("/dev/null"), std::string("/dev/fd/1"),
                                  std::string("/proc/self/comm"), std::string("-")})
    EXPECT_EQ(AtomicFile::create(name).error().code(), EINVAL) << name;
  EXPECT_EQ(AtomicFile::create(dir_.path()).error().code(), EISDIR);
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFile, appends_to_a_log) {
  for (const char* line : {"one\n", "two\n"})
    EXPECT_TRUE(write_all(value_or_throw(open_log(path("log"))).get(), line, "log"));
  EXPECT_EQ(read_file(path("log")).value_or(""), "one\ntwo\n");
}

TEST_F(OutputFile, refuses_a_log_that_is_a_link) {
  value_or_throw(open_file(path("victim"), O_WRONLY | O_CREAT));
  ASSERT_EQ(::symlink(path("victim").c_str(), path("link").c_str()), 0);
  ASSERT_EQ(::symlink(path("none").c_str(), path("dangling").c_str()), 0);
  EXPECT_FALSE(open_log(path("link")));
  EXPECT_FALSE(open_log(path("dangling")));
  EXPECT_FALSE(open_file(path("none"), O_RDONLY)) << "the log was created through the link";
}

/// With a reader too: root's log must not go to the FIFO's owner.
TEST_F(OutputFile, refuses_a_log_that_is_a_fifo_or_a_device) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_FALSE(open_log(path("fifo")));
  const auto reader = value_or_throw(open_file(path("fifo"), O_RDONLY | O_NONBLOCK));
  EXPECT_FALSE(open_log(path("fifo")));
  EXPECT_FALSE(open_log("/dev/null"));
  EXPECT_FALSE(open_log(dir_.path()));
}

}  // namespace
}  // namespace heddle
