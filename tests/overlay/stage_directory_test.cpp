// SPDX-License-Identifier: MIT
#include "fuseovl/files/stage_directory.hpp"
#include "tests/support/prelude.hpp"

#include <sys/file.h>

namespace heddle::test {
namespace {

using Copied = StageDirectory::Copied;

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
  static StageDirectory::Item item(const std::string& content) {
    return {hash_bytes(content), content.size()};
  }
  Copied copy(const StageDirectory& directory, const std::string& content) {
    return value_or_throw(directory.copy(source(content).get(), item(content))).how;
  }
  static bool is_right(const StageDirectory& directory, const std::string& content) {
    return directory.verify(item(content)).has_value();
  }
  /// How many of `contents` the budget of 1000 bytes allows `user`.
  static std::size_t claim(const StageDirectory& directory, const Fd& user,
                           std::initializer_list<std::string> contents) {
    std::vector<StageDirectory::Item> items;
    for (const auto& content : contents) items.push_back(item(content));
    return value_or_throw(directory.claim(user, items, 1000));
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

TEST_F(StageDirectoryTest, least_recently_used_copies_go_first_and_claimed_ones_stay) {
  const auto directory = open();
  const std::string a(300, 'a'), b(300, 'b'), c(300, 'c'), d(400, 'd'), e(301, 'e');
  const auto used_at = [&](const std::string& content, time_t seconds) {
    ASSERT_EQ(copy(directory, content), Copied::done);
    const timespec times[] = {{seconds, 0}, {0, UTIME_OMIT}};
    ASSERT_EQ(::utimensat(AT_FDCWD, copy_of(content).c_str(), times, 0), 0);
  };
  used_at(a, 1000);
  used_at(b, 2000);
  used_at(c, 3000);
  auto one = value_or_throw(directory.join());
  EXPECT_EQ(claim(directory, one, {a}), 1U);
  EXPECT_EQ(names("objects").size(), 3U);
  const auto other = value_or_throw(directory.join());
  // A copy that two mounts claim counts once; e exceeds the budget and is omitted.
  EXPECT_EQ(claim(directory, other, {a, d, e}), 2U);
  EXPECT_TRUE(fs::exists(copy_of(a)));
  EXPECT_FALSE(fs::exists(copy_of(b)));
  EXPECT_TRUE(fs::exists(copy_of(c)));
  // The disk is full: unclaimed copies are removed.
  EXPECT_TRUE(directory.make_room(1));
  EXPECT_FALSE(fs::exists(copy_of(c)));
  EXPECT_FALSE(directory.make_room(1));
  EXPECT_EQ(claim(directory, other, {}), 0U);
  EXPECT_TRUE(fs::exists(copy_of(a)));
  one.reset();
  EXPECT_TRUE(directory.make_room(1));
  EXPECT_TRUE(names("objects").empty());
  EXPECT_EQ(names("users").size(), 1U);
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
  EXPECT_THAT(refusal(), HasSubstr("cannot use for staging"));
  fs::remove_all(dir_ / "node");
  const auto mask = ::umask(0);
  EXPECT_EQ(refusal(), "none") << "it is made";
  ::umask(mask);
  fs::remove_all(dir_ / "node");
  write_text_file(dir_ / "node", "");
  EXPECT_THAT(refusal(), HasSubstr("Not a directory"));
}

TEST_F(StageDirectoryTest, directory_is_made_with_its_parents) {
  for (const mode_t mask : {mode_t{0}, mode_t{002}, mode_t{077}}) {
    SCOPED_TRACE(mask);
    const auto top = dir_ / ("of" + std::to_string(mask));
    const auto before = ::umask(mask);
    const auto made = StageDirectory::open(top + "/a//b/");
    ::umask(before);
    ASSERT_TRUE(made) << made.error().message();
    for (const std::string part : {"", "/a", "/a/b"})
      EXPECT_EQ(fs::status(top + part).permissions() & fs::perms(0022), fs::perms::none) << part;
  }
  const auto below_file = StageDirectory::open(write_text_file(dir_ / "file", "") + "/a/b");
  ASSERT_FALSE(below_file);
  EXPECT_THAT(below_file.error().message(), HasSubstr("Not a directory"));
  const auto nowhere = StageDirectory::open("/proc/none/a/b");
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().message(), HasSubstr("/proc/none/a/b: cannot use for staging"));
}

}  // namespace
}  // namespace heddle::test
