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
  Copied copy(const StageDirectory& folder, const std::string& content) {
    return value_or_throw(folder.copy(source(content).get(), hash_bytes(content), content.size()))
        .how;
  }
  static bool is_right(const StageDirectory& folder, const std::string& content) {
    return folder.verify(hash_bytes(content), content.size()).has_value();
  }
  std::string refusal() {
    const auto folder = StageDirectory::open(dir_ / "node");
    return folder ? "none" : folder.error().message();
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

TEST_F(StageDirectoryTest, a_copy_has_its_hash_as_name_and_nothing_is_left_beside_it) {
  const auto folder = open();
  EXPECT_FALSE(is_right(folder, "content"));
  EXPECT_EQ(copy(folder, "content"), Copied::done);
  EXPECT_EQ(read_file(copy_of("content")).value(), "content");
  EXPECT_TRUE(is_right(folder, "content"));
  EXPECT_TRUE(is_right(open(), "content"));
  EXPECT_TRUE(names("copying").empty());
}

TEST_F(StageDirectoryTest, a_damaged_copy_is_removed) {
  const auto folder = open();
  const std::string content(100'000, 'c');
  for (const auto& damage :
       {std::string(99'999, 'c'), std::string(99'999, 'c') + "d", std::string(), content + "c"}) {
    ASSERT_EQ(copy(folder, content), Copied::done);
    write_text_file(copy_of(content), damage);
    EXPECT_FALSE(is_right(folder, content));
    EXPECT_FALSE(fs::exists(copy_of(content)));
  }
  fs::create_symlink("/etc/passwd", copy_of(content));
  EXPECT_FALSE(is_right(folder, content));
}

TEST_F(StageDirectoryTest, a_source_that_is_not_what_it_was_is_not_copied) {
  const auto folder = open();
  for (const std::string now : {"other!!", "short", "longer than it was"}) {
    const auto made = folder.copy(source(now).get(), hash_bytes("content"), 7);
    EXPECT_EQ(made.value().how, Copied::no) << now;
  }
  EXPECT_TRUE(names("objects").empty());
  EXPECT_TRUE(names("copying").empty());
}

TEST_F(StageDirectoryTest, one_process_copies_and_what_a_dead_one_left_is_swept) {
  const auto folder = open();
  const auto half = write_text_file(below("copying/" + hash_bytes("content").hex()), "con");
  {
    const auto other = value_or_throw(open_file(half, O_RDWR));
    ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
    EXPECT_EQ(copy(folder, "content"), Copied::again);
    folder.sweep();
    EXPECT_TRUE(fs::exists(half));
  }
  folder.sweep();
  EXPECT_FALSE(fs::exists(half));
  write_text_file(half, "a dead one's, and far longer than the content");
  EXPECT_EQ(copy(folder, "content"), Copied::done);
  EXPECT_EQ(copy(folder, "content"), Copied::again) << "it is there";
}

TEST_F(StageDirectoryTest, the_least_recently_used_goes_first_and_what_is_announced_stays) {
  const auto folder = open();
  const std::string a(1000, 'a'), b(1000, 'b'), c(1000, 'c');
  for (const auto& content : {a, b, c}) ASSERT_EQ(copy(folder, content), Copied::done);
  const auto used_at = [&](const std::string& content, time_t seconds) {
    const timespec times[] = {{seconds, 0}, {0, UTIME_OMIT}};
    ASSERT_EQ(::utimensat(AT_FDCWD, copy_of(content).c_str(), times, 0), 0);
  };
  used_at(a, 1000);
  used_at(b, 2000);
  used_at(c, 3000);
  {
    const ContentHash hashes[] = {hash_bytes(a)};
    const auto announced = value_or_throw(folder.announce(hashes));
    EXPECT_EQ(folder.used(), 3000U);
    EXPECT_TRUE(folder.trim(3000, 0));
    EXPECT_TRUE(folder.trim(3000, 1));
    EXPECT_FALSE(fs::exists(copy_of(b)));
    EXPECT_TRUE(is_right(folder, c));
    EXPECT_FALSE(folder.trim(500, 0));
    EXPECT_EQ(names("objects").size(), 1U);
  }
  EXPECT_TRUE(folder.trim(500, 0));
  EXPECT_TRUE(names("objects").empty());
  EXPECT_TRUE(names("users").empty());
}

TEST_F(StageDirectoryTest, room_that_one_process_has_set_aside_is_not_another_s) {
  using Got = StageRoom::Got;
  const auto folder = open();
  StageRoom a(folder, 1000), b(folder, 1000), c(folder, 1000);
  EXPECT_EQ(a.take(400).value(), Got::yes);
  EXPECT_EQ(b.take(400).value(), Got::yes);
  EXPECT_EQ(folder.set_aside(), 800U);
  EXPECT_EQ(c.take(400).value(), Got::later);
  // What has become a copy is not set aside any more.
  ASSERT_EQ(copy(folder, std::string(400, 'a')), Copied::done);
  a.used(400);
  EXPECT_EQ(folder.set_aside(), 400U);
  b.release();
  const ContentHash hashes[] = {hash_bytes(std::string(400, 'a'))};
  const auto announced = value_or_throw(folder.announce(hashes));
  EXPECT_EQ(c.take(400).value(), Got::yes);
  EXPECT_EQ(b.take(700).value(), Got::no);
  EXPECT_TRUE(is_right(folder, std::string(400, 'a')));
  EXPECT_EQ(names("rooms").size(), 3U);
}

TEST_F(StageDirectoryTest, room_of_a_dead_process_is_free) {
  const auto folder = open();
  const pid_t child = ::fork();
  if (child == 0) {
    StageRoom room(folder, 1000);
    ::_exit(room.take(900).value() == StageRoom::Got::yes ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(names("rooms").size(), 1U);
  StageRoom room(folder, 1000);
  EXPECT_EQ(room.take(900).value(), StageRoom::Got::yes);
}

TEST_F(StageDirectoryTest, what_cannot_fit_drives_no_copy_out) {
  const auto folder = open();
  const std::string a(600, 'a'), b(300, 'b');
  for (const auto& content : {a, b}) ASSERT_EQ(copy(folder, content), Copied::done);
  const ContentHash hashes[] = {hash_bytes(a)};
  const auto announced = value_or_throw(folder.announce(hashes));
  EXPECT_FALSE(folder.trim(1000, 500));
  EXPECT_TRUE(is_right(folder, b));
  EXPECT_TRUE(folder.trim(1000, 400));
  EXPECT_FALSE(is_right(folder, b));
}

TEST_F(StageDirectoryTest, folders_that_others_can_change_are_refused) {
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

TEST_F(StageDirectoryTest, a_folder_of_another_user_is_refused) {
  if (::geteuid() != 0) HEDDLE_SKIP("not root");
  (void)open();
  ASSERT_EQ(::chown(below("").c_str(), 12345, 12345), 0);
  EXPECT_THAT(refusal(), HasSubstr("belongs to another user"));
}

TEST_F(StageDirectoryTest, holds_no_partial_copy_after_a_kill_at_any_point) {
  constexpr int kFiles = 12;
  std::vector<std::string> contents;
  std::vector<Fd> sources;
  for (int i = 0; i < kFiles; ++i) {
    contents.emplace_back(static_cast<std::size_t>(700'000 + i), static_cast<char>('a' + i));
    sources.push_back(source(contents.back()));
  }
  const auto folder = open();
  std::mt19937 random(7);
  int half_made = 0;
  for (int round = 0; round < 200; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int i = 0; i < kFiles; ++i)
        (void)folder.copy(sources[static_cast<std::size_t>(i)].get(),
                          hash_bytes(contents[static_cast<std::size_t>(i)]),
                          contents[static_cast<std::size_t>(i)].size());
      ::_exit(0);
    }
    ::usleep(std::uniform_int_distribution<useconds_t>(200, 8000)(random));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    half_made += !names("copying").empty();
    for (const auto& name : names("objects")) {
      const auto content = value_or_throw(read_file(below("objects/" + name)));
      ASSERT_EQ(hash_bytes(content).hex(), name) << "round " << round;
    }
    folder.sweep();
    ASSERT_TRUE(names("copying").empty());
    (void)folder.trim(0, 0);
  }
  EXPECT_GT(half_made, 20) << "the kills came too early or too late";
}

}  // namespace
}  // namespace heddle::test
