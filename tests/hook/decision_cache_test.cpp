// SPDX-License-Identifier: MIT
#include <sys/file.h>

#include <ctime>

#include "base/content_hash.hpp"
#include "base/mount_calls.hpp"
#include "container-hooks/cache/decision_cache.hpp"
#include "container-hooks/cache/image_contents.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using hook::DecisionCache;
using hook::ImageContents;
using hook::ImageQuestion;
using hook::prune_decisions;

class PruneDecisions : public ::testing::Test {
 protected:
  static std::string key(char letter) { return std::string(64, letter); }
  std::string file(char letter, const std::string& kind) const {
    return dir_ / (key(letter) + "." + kind);
  }
  /// Adds an entry of `size` bytes that was used `days` ago.
  void add(char letter, std::size_t size, int days) const {
    for (const char* kind : {"map", "json", "lock"}) {
      write_text_file(file(letter, kind), std::string(kind == "map"s ? size : 0, 'x'));
      const timespec used{std::time(nullptr) - days * 24 * 60 * 60, 0};
      const timespec times[2] = {used, used};
      ::utimensat(AT_FDCWD, file(letter, kind).c_str(), times, 0);
    }
  }
  std::string left() const {
    std::string out;
    for (const char letter : "abcdef"s)
      if (fs::exists(file(letter, "map"))) out += letter;
    return out;
  }
  TestDir dir_;
};

TEST_F(PruneDecisions, least_recently_used_entries_go_until_the_rest_fits) {
  add('a', 1000, 1);
  add('b', 1000, 30);
  add('c', 1000, 5);
  write_text_file(dir_ / "heddle", std::string(5000, 'x'));
  write_text_file(dir_ / "somebody's.map", std::string(5000, 'x'));
  prune_decisions(dir_.path(), {3000, 24h * 90});
  EXPECT_EQ(left(), "abc");
  prune_decisions(dir_.path(), {2999, 24h * 90});
  EXPECT_EQ(left(), "ac");
  EXPECT_FALSE(fs::exists(file('b', "lock")));
  prune_decisions(dir_.path(), {1, 24h * 90});
  EXPECT_EQ(left(), "");
  EXPECT_TRUE(fs::exists(dir_ / "heddle") && fs::exists(dir_ / "somebody's.map"));
}

TEST_F(PruneDecisions, expired_entries_go) {
  add('a', 10, 91);
  add('b', 10, 89);
  prune_decisions(dir_.path(), {});
  EXPECT_EQ(left(), "b");
}

TEST_F(PruneDecisions, entries_in_use_stay) {
  for (const char letter : "abc"s) add(letter, 10, 91);
  const auto map = value_or_throw(open_file(file('a', "map"), O_RDONLY));
  ASSERT_EQ(::flock(map.get(), LOCK_SH | LOCK_NB), 0);
  auto deciding = value_or_throw(open_file(file('b', "lock"), O_RDONLY));
  ASSERT_EQ(::flock(deciding.get(), LOCK_EX | LOCK_NB), 0);
  prune_decisions(dir_.path(), {0, 0h});
  EXPECT_EQ(left(), "ab");
  deciding.reset();
  prune_decisions(dir_.path(), {0, 0h});
  EXPECT_EQ(left(), "a");
}

/// A copy of a known image stores its remembered contents without a new decision.
TEST_F(PruneDecisions, new_image_copy_triggers_pruning) {
  const auto root = value_or_throw(open_file("/", O_PATH | O_DIRECTORY));
  const std::string program = fs::canonical("/proc/self/exe");
  if (ImageContents(root).copy_id(program).empty())
    HEDDLE_SKIP("the file system keeps no times of its own");
  ImageQuestion question;
  question.rootfs = "/";
  question.program = program;
  const auto cache = value_or_throw(DecisionCache::open(dir_.path()));
  for (const char* expected : {"", "a"}) {
    add('a', 10, 91);
    EXPECT_FALSE(cache.decide(question)) << "there is no fs-resolve beside this program";
    EXPECT_EQ(left(), expected);
  }
}

/// Without a cache a hook decides in a temporary directory, which a killed one leaves.
TEST(DecideImage, removes_the_scratch_of_killed_hooks) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs a cache and a directory of another user");
  const TestDir dir;
  ASSERT_EQ(::chown(dir.path().c_str(), 65534, 65534), 0);
  for (const std::string parent : {"/run/", "/dev/shm/", "/tmp/"}) {
    SCOPED_TRACE(parent);
    const auto make = [&](const std::string& name, int minutes) {
      const auto path =
          parent + name + "-test" + std::to_string(::getpid()) + std::to_string(minutes);
      fs::create_directory(path);
      write_text_file(path + "/map", "x");
      const timespec time{std::time(nullptr) - minutes * 60, 0};
      const timespec times[2] = {time, time};
      EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
      return path;
    };
    const auto old = make("heddle-hook", 61), recent = make("heddle-hook", 59),
               foreign = make("heddle-hook", 62), other = make("heddle-other", 61);
    EXPECT_EQ(::chown(foreign.c_str(), 65534, 65534), 0);
    ImageQuestion question;
    question.rootfs = "/";
    question.program = fs::canonical("/proc/self/exe");
    EXPECT_FALSE(hook::decide_image(dir.path(), {}, question)) << "there is no fs-resolve";
    EXPECT_FALSE(fs::exists(old));
    for (const auto& path : {recent, foreign, other}) {
      EXPECT_TRUE(fs::exists(path + "/map")) << path;
      fs::remove_all(path);
    }
  }
}

class ImageContentsTest : public ::testing::Test {
 protected:
  std::string of(const std::string& path) const { return ImageContents(root_).of({path}); }
  void write(const std::string& path, const std::string& text) const {
    write_text_file(dir_ / path, text);
  }
  TestDir dir_;
  Fd root_ = value_or_throw(open_file(dir_.path(), O_PATH | O_DIRECTORY));
};

/// The image chooses the paths; reading the kernel's log would take it from others or block
/// forever.
TEST_F(ImageContentsTest, kernel_files_are_not_read) {
  const auto root = value_or_throw(open_file("/", O_PATH | O_DIRECTORY));
  for (const char* path : {"/proc/version", "/proc/kmsg", "/proc/kcore"})
    if (fs::exists(path)) {
      EXPECT_EQ(ImageContents(root).of({path}), std::string(path) + "\t\tother\n");
    }
}

TEST_F(ImageContentsTest, huge_file_is_not_read) {
  write("a", "");
  ASSERT_EQ(::truncate((dir_ / "a").c_str(), off_t{5} << 30), 0);
  EXPECT_THAT(of("/a"), HasSubstr("\tunread "));
}

TEST_F(ImageContentsTest, contents_do_not_change_once_read) {
  write("a", "one");
  ImageContents contents(root_);
  const auto before = contents.of({"/a"});
  write("a", "two");
  EXPECT_EQ(contents.of({"/a"}), before) << "a decision may depend on either content";
  EXPECT_NE(of("/a"), before);
}

/// As above EROFS (composefs), whose files have one time with nanoseconds.
TEST_F(ImageContentsTest, uniform_times_below_an_overlay_are_not_trusted) {
  if (::geteuid() != 0) HEDDLE_SKIP("only root can mount");
  for (const char* directory : {"lower", "memory/upper", "memory/work"})
    fs::create_directories(dir_ / directory);
  write("lower/a", "text");
  const auto lower = value_or_throw(open_file(dir_ / "lower", O_PATH | O_DIRECTORY));
  const auto memory = value_or_throw(open_file(dir_ / "memory", O_PATH | O_DIRECTORY));
  const auto overlay = new_overlay(lower.get(), memory.get());
  if (!overlay) HEDDLE_SKIP(overlay.error().message());
  const auto is_trusted = [&] { return !ImageContents(*overlay).copy_id("/a").empty(); };
  EXPECT_FALSE(is_trusted());
  const timespec times[2] = {{1, 5}, {1, 5}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (dir_ / "lower/a").c_str(), times, 0), 0);
  EXPECT_TRUE(is_trusted()) << "unpacked here, with the archive's mtime";
}

/// Reads this program, which has not changed for seconds.
TEST(RememberedContents, remembered_file_is_not_read_again) {
  const auto program = fs::read_symlink("/proc/self/exe");
  const auto root = value_or_throw(open_file(program.parent_path(), O_PATH | O_DIRECTORY));
  const auto path = "/" + program.filename().string();
  ImageContents first(root);
  const auto content = first.of({path});
  if (first.copy_id(path).empty()) GTEST_SKIP() << "the file system keeps no times of its own";
  const auto memory = first.remembered();
  ASSERT_FALSE(memory.empty());
  ImageContents second(root);
  second.recall(memory);
  EXPECT_EQ(second.of({path}), content);
  EXPECT_EQ(second.remembered(), "") << "no news";

  // A fake hash is returned, so it came from memory; with a wrong checksum the memory is ignored.
  auto lines = memory.substr(memory.find('\n') + 1);
  lines.replace(lines.find(' ') + 1, 4, "fake");
  ImageContents third(root);
  third.recall(hash_bytes(lines).hex() + "\n" + lines);
  EXPECT_THAT(third.of({path}), HasSubstr("\tfake"));
  ImageContents fourth(root);
  fourth.recall(memory.substr(0, memory.find('\n') + 1) + lines);
  EXPECT_EQ(fourth.of({path}), content);
}

TEST_F(ImageContentsTest, recently_written_file_is_not_remembered) {
  write("a", "text");
  ImageContents contents(root_);
  (void)contents.of({"/a"});
  EXPECT_EQ(contents.remembered(), "");
}

}  // namespace
}  // namespace heddle::test
