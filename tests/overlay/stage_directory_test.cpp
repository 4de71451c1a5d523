// SPDX-License-Identifier: MIT
#include "fuseovl/files/stage_directory.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "tests/support/build_elf.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using Copied = StageDirectory::Copied;
using ::testing::HasSubstr;

class StageDirectoryTest : public ::testing::Test {
 protected:
  StageDirectoryTest() { fs::create_directory(dir_ / "node"); }
  StageDirectory open() { return value_or_throw(StageDirectory::open(dir_ / "node")); }
  std::string below(const std::string& name) const {
    return dir_ / ("node/heddle-" + std::to_string(::geteuid()) + "/" + name);
  }
  std::string copy_of(const std::string& content) const {
    return below("objects/" + hash_bytes(content).hex());
  }
  Fd source(const std::string& content) {
    return value_or_throw(open_file(
        write_text_file(dir_ / ("source" + std::to_string(sources_++)), content), O_RDONLY));
  }
  Copied copy(const StageDirectory& directory, const std::string& content) {
    return value_or_throw(
               directory.copy(source(content).get(), hash_bytes(content), content.size()))
        .how;
  }
  static bool is_right(const StageDirectory& directory, const std::string& content) {
    return directory.verify(hash_bytes(content), content.size()).has_value();
  }
  std::string refusal() {
    const auto directory = StageDirectory::open(dir_ / "node");
    return directory ? "none" : directory.error().message();
  }
  std::vector<std::string> names(const std::string& part) const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(below(part)))
      out.push_back(entry.path().filename());
    return out;
  }

  TestDir dir_;
  int sources_ = 0;
};

TEST_F(StageDirectoryTest, a_damaged_copy_is_removed) {
  const auto directory = open();
  const std::string content(100'000, 'c');
  for (const auto& damage :
       {std::string(99'999, 'c'), std::string(99'999, 'c') + "d", std::string(), content + "c"}) {
    ASSERT_EQ(copy(directory, content), Copied::done);
    write_text_file(copy_of(content), damage);
    EXPECT_FALSE(is_right(directory, content));
    EXPECT_FALSE(fs::exists(copy_of(content)));
  }
  fs::create_symlink("/etc/passwd", copy_of(content));
  EXPECT_FALSE(is_right(directory, content));
}

TEST_F(StageDirectoryTest, one_process_copies_and_what_a_dead_one_left_is_swept) {
  const auto directory = open();
  const auto half = write_text_file(below("copying/" + hash_bytes("content").hex()), "con");
  {
    const auto other = value_or_throw(open_file(half, O_RDWR));
    ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
    EXPECT_EQ(copy(directory, "content"), Copied::again);
    directory.sweep();
    EXPECT_TRUE(fs::exists(half));
  }
  directory.sweep();
  EXPECT_FALSE(fs::exists(half));
  write_text_file(half, "a dead one's, and far longer than the content");
  EXPECT_EQ(copy(directory, "content"), Copied::done);
  EXPECT_EQ(copy(directory, "content"), Copied::again) << "it is there";
}

TEST_F(StageDirectoryTest, the_least_recently_used_goes_first_and_what_is_announced_stays) {
  const auto directory = open();
  const std::string a(1000, 'a'), b(1000, 'b'), c(1000, 'c');
  for (const auto& content : {a, b, c}) ASSERT_EQ(copy(directory, content), Copied::done);
  const auto used_at = [&](const std::string& content, time_t seconds) {
    const timespec times[] = {{seconds, 0}, {0, UTIME_OMIT}};
    ASSERT_EQ(::utimensat(AT_FDCWD, copy_of(content).c_str(), times, 0), 0);
  };
  used_at(a, 1000);
  used_at(b, 2000);
  used_at(c, 3000);
  {
    const ContentHash hashes[] = {hash_bytes(a)};
    const auto announced = value_or_throw(directory.announce(hashes));
    EXPECT_EQ(directory.used(), 3000U);
    EXPECT_TRUE(directory.trim(3000, 0));
    EXPECT_TRUE(directory.trim(3000, 1));
    EXPECT_FALSE(fs::exists(copy_of(b)));
    EXPECT_TRUE(is_right(directory, c));
    EXPECT_FALSE(directory.trim(500, 0));
    EXPECT_EQ(names("objects").size(), 1U);
  }
  EXPECT_TRUE(directory.trim(500, 0));
  EXPECT_TRUE(names("objects").empty());
  EXPECT_TRUE(names("users").empty());
}

TEST_F(StageDirectoryTest, room_that_one_process_has_set_aside_is_not_another_s) {
  using Got = StageRoom::Got;
  const auto directory = open();
  StageRoom a(directory, 1000), b(directory, 1000), c(directory, 1000);
  EXPECT_EQ(a.take(400).value(), Got::yes);
  EXPECT_EQ(b.take(400).value(), Got::yes);
  EXPECT_EQ(directory.set_aside(), 800U);
  EXPECT_EQ(c.take(400).value(), Got::later);
  // What has become a copy is not set aside any more.
  ASSERT_EQ(copy(directory, std::string(400, 'a')), Copied::done);
  a.used(400);
  EXPECT_EQ(directory.set_aside(), 400U);
  b.release();
  const ContentHash hashes[] = {hash_bytes(std::string(400, 'a'))};
  const auto announced = value_or_throw(directory.announce(hashes));
  EXPECT_EQ(c.take(400).value(), Got::yes);
  EXPECT_EQ(b.take(700).value(), Got::no);
  EXPECT_TRUE(is_right(directory, std::string(400, 'a')));
  EXPECT_EQ(names("rooms").size(), 3U);
}

TEST_F(StageDirectoryTest, what_cannot_fit_drives_no_copy_out) {
  const auto directory = open();
  const std::string a(600, 'a'), b(300, 'b');
  for (const auto& content : {a, b}) ASSERT_EQ(copy(directory, content), Copied::done);
  const ContentHash hashes[] = {hash_bytes(a)};
  const auto announced = value_or_throw(directory.announce(hashes));
  EXPECT_FALSE(directory.trim(1000, 500));
  EXPECT_TRUE(is_right(directory, b));
  EXPECT_TRUE(directory.trim(1000, 400));
  EXPECT_FALSE(is_right(directory, b));
}

TEST_F(StageDirectoryTest, directories_that_others_can_change_are_refused) {
  EXPECT_EQ(refusal(), "none");
  ::chmod(below("").c_str(), 0755);
  EXPECT_THAT(refusal(), HasSubstr("others may use it"));
  ::chmod(below("").c_str(), 0700);
  ::chmod((dir_ / "node").c_str(), 0777);
  EXPECT_THAT(refusal(), HasSubstr("others may rename what is in it"));
  ::chmod((dir_ / "node").c_str(), 01777);
  EXPECT_EQ(refusal(), "none");
  fs::rename(below(""), dir_ / "elsewhere");
  fs::create_directory_symlink(dir_ / "elsewhere", below("").substr(0, below("").size() - 1));
  EXPECT_THAT(refusal(), HasSubstr("cannot stage there"));
  fs::remove_all(dir_ / "node");
  EXPECT_THAT(refusal(), HasSubstr("No such file"));
  write_text_file(dir_ / "node", "");
  EXPECT_THAT(refusal(), HasSubstr("Not a directory"));
}

TEST_F(StageDirectoryTest, a_directory_of_another_user_is_refused) {
  if (::geteuid() != 0) HEDDLE_SKIP("not root");
  (void)open();
  ASSERT_EQ(::chown(below("").c_str(), 12345, 12345), 0);
  EXPECT_THAT(refusal(), HasSubstr("belongs to another user"));
}

}  // namespace
}  // namespace heddle::test
