// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>

#include "base/fd.hpp"
#include "container-hooks/decision_cache.hpp"
#include "container-hooks/entry_lock.hpp"
#include "container-hooks/image_contents.hpp"
#include "container-hooks/packed_decision.hpp"
#include "container-hooks/prune_decisions.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
using ::testing::ElementsAre;
namespace fs = std::filesystem;

PackedDecision example() {
  PackedDecision packed;
  auto& decision = packed.decision;
  decision.outcome = Outcome::swap;
  decision.reason = "a reason: with\nlines, \xff bytes and 12:numbers";
  decision.mount_point = "/dev/heddle";
  decision.host_mpi = "mpich 4.0.2";
  decision.binds = {{"libmpi.so.12", "/usr/lib/libmpi.so.12", "it is found there"},
                    {"a", "/b", ""}};
  decision.kept = {{".heddle/ld.so.cache", ""}, {"libc.so.6", "/lib/libc.so.6"}};
  decision.directories = {{"ucx", "/usr/lib/ucx", "plugins"}};
  decision.unreachable = {"/usr/lib/openmpi"};
  decision.environment = {{"OPAL_PREFIX", "/usr"}};
  decision.verdicts = {{"libmpi.so.12", true, "the host's MPI"}, {"libc.so.6", false, ""}};
  decision.warnings = {"", std::string("a\0b", 3)};
  decision.image_files = {"/etc/ld.so.cache"};
  packed.contents = "/etc/ld.so.cache\t1\t2\t-\n";
  packed.map_id = "0123";
  return packed;
}

TEST(PackedDecision, comes_back_as_it_went) {
  const auto before = example();
  const auto after = value_or_throw(unpack(pack(before), "x"));
  EXPECT_EQ(pack(after), pack(before));
  EXPECT_EQ(after.decision.outcome, Outcome::swap);
  EXPECT_EQ(after.decision.reason, before.decision.reason);
  EXPECT_EQ(after.decision.warnings, before.decision.warnings);
  ASSERT_EQ(after.decision.binds.size(), 2U);
  EXPECT_EQ(after.decision.binds[0].target, "/usr/lib/libmpi.so.12");
  ASSERT_EQ(after.decision.verdicts.size(), 2U);
  EXPECT_TRUE(after.decision.verdicts[0].from_host);
  EXPECT_FALSE(after.decision.verdicts[1].from_host);
  EXPECT_EQ(after.contents, before.contents);
}

TEST(PackedDecision, a_damaged_one_is_refused) {
  const auto whole = pack(example());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(unpack(whole.substr(0, size), "x")) << size;
  EXPECT_FALSE(unpack(whole + "1", "x"));
  EXPECT_FALSE(unpack("99999999999999999999999:" + whole, "x"));
  // A number of entries that are not there.
  auto many = whole;
  many.replace(many.find("2:12:libmpi"), 1, "9999999999");
  EXPECT_FALSE(unpack(many, "x"));
}

class PruneDecisions : public ::testing::Test {
 protected:
  static std::string key(char letter) { return std::string(64, letter); }
  std::string file(char letter, const std::string& kind) const {
    return dir_ / (key(letter) + "." + kind);
  }
  /// An entry of `size` bytes that was used `days` ago.
  void add(char letter, std::size_t size, int days) const {
    for (const char* kind : {"map", "json", "decision", "lock"}) {
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
  hold_entry(map);
  auto deciding = value_or_throw(lock_entry(file('b', "lock"), Access::look, Wait::no));
  prune_decisions(dir_.path(), {0, 0h});
  EXPECT_EQ(left(), "ab");
  deciding.reset();
  prune_decisions(dir_.path(), {0, 0h});
  EXPECT_EQ(left(), "a");
}

TEST_F(PruneDecisions, a_use_is_marked_once_a_day) {
  add('a', 10, 91);
  const auto decision = value_or_throw(open_file(file('a', "decision"), O_RDONLY));
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

TEST_F(PruneDecisions, older_maps_of_an_entry_go_when_nobody_uses_them) {
  const auto map = [&](const std::string& id) { return file('a', id + ".map"); };
  for (const char* id : {"1", "2", "3"}) write_text_file(map(id), id);
  write_text_file(file('b', "1.map"), "");
  auto used = value_or_throw(open_file(map("2"), O_RDONLY));
  hold_entry(used);
  remove_other_maps(map("3"));
  EXPECT_FALSE(fs::exists(map("1")));
  EXPECT_TRUE(fs::exists(map("2")) && fs::exists(map("3")) && fs::exists(file('b', "1.map")));
  prune_decisions(dir_.path(), {0, 0h});
  EXPECT_TRUE(fs::exists(map("2")) && fs::exists(map("3"))) << "the entry is in use";
  used.reset();
  prune_decisions(dir_.path(), {0, 0h});
  EXPECT_FALSE(fs::exists(map("3")));
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

TEST(EntryLock, is_for_many_who_look_or_one_who_changes) {
  const TestDir dir;
  const auto path = dir / "lock";
  const auto one = value_or_throw(lock_entry(path, Access::look, Wait::no));
  auto other = value_or_throw(lock_entry(path, Access::look, Wait::no));
  EXPECT_EQ(lock_entry(path, Access::change, Wait::no).error().code(), EWOULDBLOCK);
}

TEST(EntryLock, is_not_waited_for_when_nobody_asks_any_more) {
  const TestDir dir;
  const auto held = value_or_throw(lock_entry(dir / "lock", Access::change, Wait::no));
  auto asker = value_or_throw(make_pipe());
  asker.read_end.reset();
  for (const auto access : {Access::look, Access::change})
    EXPECT_FALSE(lock_entry(dir / "lock", access, Wait::yes, asker.write_end.get()));
}

}  // namespace
}  // namespace heddle::test
