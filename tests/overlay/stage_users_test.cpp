// SPDX-License-Identifier: MIT
// fs-mount --stage by plain users, in one directory of the node: nobody reads what another has put
// there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/content_hash.hpp"
#include "base/fd.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr unsigned kUser = 1500;
constexpr unsigned kOtherUser = 1501;

class StageUsers : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    fs::permissions(dir_.path(), fs::perms(0755));
    write_text_file(dir_ / "src/file", text_);
    MapMaker maker;
    maker.add_directory("v", dir_ / "src");
    maker.write(dir_ / "map");
    fs::create_directory(dir_ / "node");
    ::chmod((dir_ / "node").c_str(), 01777);
  }
  /// What a user sees who mounts, waits for the copies and reads: the state of staging, a line with
  /// the file, and the daemon's words.
  std::string visit(unsigned uid) {
    const auto mount_point = dir_ / ("m" + std::to_string(++visits_));
    fs::create_directory(mount_point);
    EXPECT_EQ(::chown(mount_point.c_str(), uid, uid), 0);
    const std::string script =
        "\"$0\" --prefetch 0 --stage \"$3\" \"$1\" \"$2\" 2>&1 || exit\n"
        "n=0; while \"$0\" --stats \"$2\" --json | grep -q '\"staging\": \"running\"' && [ $n -lt "
        "1000 ]\n"
        "do n=$((n+1)); sleep 0.01; done\n"
        "\"$0\" --stats \"$2\" --json | grep -o '\"staging\": \"[a-z]*\"'\n"
        "cat \"$2/v/file\"; echo; \"$0\" -u \"$2\"";
    return run_checked({HEDDLE_IN_WORLD, "--uid", std::to_string(uid), "--", "sh", "-c", script,
                        fs_mount(), dir_ / "map", mount_point, dir_ / "node"})
        .out;
  }
  std::string directory(unsigned uid) const { return dir_ / "node/heddle-" + std::to_string(uid); }
  std::string copy(unsigned uid) const {
    return directory(uid) + "/objects/" + hash_bytes(text_).hex();
  }
  static unsigned owner(const std::string& path) {
    struct stat st {};
    return ::lstat(path.c_str(), &st) == 0 ? st.st_uid : 0;
  }
  static void give(const std::string& path, unsigned uid) {
    for (const auto& entry : fs::recursive_directory_iterator(path))
      ASSERT_EQ(::lchown(entry.path().c_str(), uid, uid), 0);
    ASSERT_EQ(::lchown(path.c_str(), uid, uid), 0);
  }
  void make_directory(unsigned name, unsigned owner, const std::string& content) {
    for (const char* part : {"objects", "copying", "users", "rooms"}) {
      fs::create_directories(directory(name) + "/" + part);
      ::chmod((directory(name) + "/" + part).c_str(), 0700);
    }
    ::chmod(directory(name).c_str(), 0700);
    write_text_file(copy(name), content);
    give(directory(name), owner);
  }

  TestDir dir_;
  const std::string text_ = std::string(50'000, 't') + "\n";
  int visits_ = 0;
};

TEST_F(StageUsers, each_has_copies_of_their_own) {
  for (const unsigned uid : {kUser, kOtherUser}) {
    SCOPED_TRACE(uid);
    const auto seen = visit(uid);
    EXPECT_THAT(seen, HasSubstr("\"staging\": \"done\""));
    EXPECT_THAT(seen, HasSubstr(text_));
    EXPECT_EQ(owner(directory(uid)), uid);
    EXPECT_EQ(owner(copy(uid)), uid);
    EXPECT_EQ(fs::status(directory(uid)).permissions(), fs::perms(0700));
    EXPECT_EQ(value_or_throw(read_file(copy(uid))), text_);
  }
}

TEST_F(StageUsers, a_directory_that_another_has_made_in_their_name_is_not_used) {
  make_directory(kUser, kOtherUser, std::string(text_.size(), 'E'));
  const auto seen = visit(kUser);
  EXPECT_THAT(seen, HasSubstr("cannot stage there"));
  EXPECT_THAT(seen, HasSubstr("\"staging\": \"none\""));
  EXPECT_THAT(seen, HasSubstr(text_));
  EXPECT_THAT(seen, Not(HasSubstr("EEE")));
}

TEST_F(StageUsers, nor_is_a_link_to_one) {
  make_directory(kOtherUser, kOtherUser, std::string(text_.size(), 'E'));
  fs::create_directory_symlink(directory(kOtherUser), directory(kUser));
  ASSERT_EQ(::lchown(directory(kUser).c_str(), kUser, kUser), 0);
  const auto seen = visit(kUser);
  EXPECT_THAT(seen, HasSubstr("cannot stage there"));
  EXPECT_THAT(seen, HasSubstr(text_));
}

TEST_F(StageUsers, a_copy_of_another_owner_is_made_anew_whatever_it_holds) {
  for (const auto& content : {text_, std::string(text_.size(), 'E')}) {
    make_directory(kUser, kUser, content);
    ASSERT_EQ(::chown(copy(kUser).c_str(), kOtherUser, kOtherUser), 0);
    const auto seen = visit(kUser);
    EXPECT_THAT(seen, HasSubstr("\"staging\": \"done\""));
    EXPECT_THAT(seen, HasSubstr(text_));
    EXPECT_EQ(owner(copy(kUser)), kUser);
    EXPECT_EQ(value_or_throw(read_file(copy(kUser))), text_);
  }
}

TEST_F(StageUsers, root_reads_none_of_theirs) {
  make_directory(0, kUser, std::string(text_.size(), 'E'));
  const auto seen = visit(0);
  EXPECT_THAT(seen, HasSubstr("belongs to another user"));
  EXPECT_THAT(seen, HasSubstr(text_));
}

}  // namespace
}  // namespace heddle::test
