// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>

#include "base/fd.hpp"
#include "container-hooks/cache/decision_cache.hpp"
#include "container-hooks/cache/image_contents.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

using namespace hook;

using namespace std::literals;
using ::testing::ElementsAre;
namespace fs = std::filesystem;

class PruneDecisions : public ::testing::Test {
 protected:
  static std::string key(char letter) { return std::string(64, letter); }
  std::string file(char letter, const std::string& kind) const {
    return dir_ / (key(letter) + "." + kind);
  }
  /// An entry of `size` bytes that was used `days` ago.
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

TEST_F(PruneDecisions, what_is_unused_longest_goes_until_the_rest_fits) {
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

TEST_F(PruneDecisions, what_is_unused_for_too_long_goes_in_any_case) {
  add('a', 10, 91);
  add('b', 10, 89);
  prune_decisions(dir_.path(), {});
  EXPECT_EQ(left(), "b");
}

TEST_F(PruneDecisions, what_is_in_use_stays) {
  for (const char letter : "abc"s) add(letter, 10, 91);
  const auto map = value_or_throw(open_file(file('a', "map"), O_RDONLY));
  EXPECT_TRUE(hold_map(map));
  auto deciding = value_or_throw(open_file(file('b', "lock"), O_RDONLY));
  ASSERT_EQ(::flock(deciding.get(), LOCK_EX | LOCK_NB), 0);
  prune_decisions(dir_.path(), {0, 0h});
  EXPECT_EQ(left(), "ab");
  deciding.reset();
  prune_decisions(dir_.path(), {0, 0h});
  EXPECT_EQ(left(), "a");
}

TEST_F(PruneDecisions, a_use_is_marked_once_a_day) {
  add('a', 10, 91);
  const auto decision = value_or_throw(open_file(file('a', "json"), O_RDONLY));
  mark_used(decision.get(), std::time(nullptr) - 91 * 24 * 60 * 60);
  prune_decisions(dir_.path(), {});
  EXPECT_EQ(left(), "a");
  struct stat before {};
  struct stat after {};
  ::fstat(decision.get(), &before);
  mark_used(decision.get(), before.st_mtim.tv_sec);
  ::fstat(decision.get(), &after);
  EXPECT_EQ(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
}

/// A copy of a known image leaves what it remembers, and decides nothing.
TEST_F(PruneDecisions, a_new_copy_of_an_image_is_reason_enough) {
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

}  // namespace
}  // namespace heddle::test
