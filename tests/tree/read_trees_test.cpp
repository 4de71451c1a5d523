// SPDX-License-Identifier: MIT
#include "resolver/tree/read_trees.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/child.hpp"
#include "base/mounts.hpp"
#include "resolver/map/tree_index.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/slow_mount.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReadTreesTest : public ::testing::Test {
 protected:
  ReadTreesTest() { request_.never = {fs::current_path()}; }

  std::string put(const std::string& path, const std::string& text = "x") const {
    return write_text_file(dir_ / path, text);
  }
  Result<ReadTrees> read() const { return read_trees(request_); }
  Result<ReadTrees> read(const std::string& named) {
    request_.named = {named};
    return read();
  }
  std::vector<std::string> paths() const {
    std::vector<std::string> out;
    for (const auto& tree : value_or_throw(read()).trees)
      out.push_back(tree.path.substr(dir_.path().size() + 1));
    return out;
  }
  void find(const std::vector<std::string>& names) {
    request_.found.clear();
    for (const auto& name : names) request_.found.push_back({dir_ / name, "test", ""});
  }

  TestDir dir_;
  TreeRequest request_;
};

/// Compares each name below `path` with lstat(2).
void expect_same(const std::string& path, const TreeIndex& tree) {
  std::size_t names = 1;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    ++names;
    struct stat st {};
    ASSERT_EQ(::lstat(entry.path().c_str(), &st), 0);
    const auto id = tree.find_path(entry.path().string().substr(path.size() + 1));
    ASSERT_TRUE(id) << entry.path();
    const auto node = tree.node(*id);
    EXPECT_EQ(node.mode, st.st_mode);
    EXPECT_EQ(node.uid, st.st_uid);
    EXPECT_EQ(node.gid, st.st_gid);
    EXPECT_EQ(node.links, st.st_nlink);
    EXPECT_EQ(node.size, static_cast<std::uint64_t>(st.st_size));
    EXPECT_EQ(node.mtime_ns, file_stamp(st).mtime_ns);
    EXPECT_FALSE(node.hole);
    if (S_ISLNK(st.st_mode)) {
      EXPECT_EQ(node.target, fs::read_symlink(entry.path()).string());
    }
  }
  EXPECT_EQ(tree.size(), names);
}

TEST_F(ReadTreesTest, keep_every_name_as_lstat_says) {
  put("t/a/b/c/file", "some text");
  put("t/new\nline");
  put("t/not utf-8 \xff\xfe");
  put("t/" + std::string(255, 'n'));
  put("t/.hidden/x");
  fs::create_directory(dir_ / "t/empty");
  ASSERT_EQ(::chmod((dir_ / "t/a/b").c_str(), 02751), 0);
  ASSERT_EQ(::chmod((dir_ / "t/a/b/c/file").c_str(), 0741), 0);
  fs::create_symlink("../nowhere", dir_ / "t/dangling");
  fs::create_symlink(std::string(4000, 'l'), dir_ / "t/long");
  fs::create_hard_link(dir_ / "t/a/b/c/file", dir_ / "t/linked");
  for (int i = 0; i < 500; ++i) put("t/many/" + std::to_string(i));
  const auto read = value_or_throw(this->read(dir_ / "t"));
  ASSERT_EQ(read.trees.size(), 1U);
  EXPECT_EQ(read.trees[0].path, dir_ / "t");
  EXPECT_THAT(read.notes, ElementsAre());
  const auto tree = value_or_throw(TreeIndex::of(read.trees[0].index));
  expect_same(dir_ / "t", tree);
  EXPECT_EQ(tree.node(*tree.find_path("linked")).same_as,
            tree.node(*tree.find_path("a/b/c/file")).same_as);
}

TEST_F(ReadTreesTest, leave_excluded_directories_and_special_files_to_the_original) {
  put("t/kept");
  put("t/cache/deep/file");
  ASSERT_EQ(::mkfifo((dir_ / "t/fifo").c_str(), 0600), 0);
  request_.exclude = {dir_ / "t/cache"};
  const auto read = value_or_throw(this->read(dir_ / "t"));
  const auto tree = value_or_throw(TreeIndex::of(read.trees[0].index));
  const auto cache = tree.node(*tree.find_path("cache"));
  EXPECT_TRUE(cache.hole && S_ISDIR(cache.mode) && cache.child_count == 0);
  const auto fifo = tree.node(*tree.find_path("fifo"));
  EXPECT_TRUE(fifo.hole && S_ISREG(fifo.mode));
  EXPECT_FALSE(tree.node(*tree.find_path("kept")).hole);
  request_.exclude = {dir_ / "none"};
  EXPECT_EQ(this->read().error().code(), ENOENT);
}

TEST_F(ReadTreesTest, refuse_files_with_set_id_bits) {
  put("t/bin/su");
  ASSERT_EQ(::chmod((dir_ / "t/bin/su").c_str(), 04755), 0);
  const auto refused = read(dir_ / "t");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr(dir_ / "t/bin/su: a file with set-ID bits"));
  EXPECT_THAT(refused.error().hint(), HasSubstr("--tree-exclude"));
  request_.exclude = {dir_ / "t/bin"};
  EXPECT_TRUE(read());
}

TEST_F(ReadTreesTest, refuse_mount_points_and_never_leave_the_file_system) {
  fs::create_directories(dir_ / "t/a/mounted");
  auto child = value_or_throw(fork_child({}, [&] {
    value_or_throw(enter_private_namespace(usable_namespace_kind()));
    if (::mount("none", (dir_ / "t/a/mounted").c_str(), "tmpfs", 0, nullptr) != 0) return 9;
    const auto refused = read(dir_ / "t");
    if (refused || refused.error().message().find("t/a/mounted") == std::string::npos) return 1;
    request_.exclude = {dir_ / "t/a/mounted"};
    const auto read = this->read();
    if (!read) return 2;
    const auto tree = value_or_throw(TreeIndex::of(read->trees[0].index));
    return tree.node(*tree.find_path("a/mounted")).hole ? 0 : 3;
  }));
  EXPECT_EQ(value_or_throw(child.wait()), 0);
}

TEST_F(ReadTreesTest, refuse_directories_that_the_program_works_in) {
  fs::create_directories(dir_ / "project/run/deep");
  fs::create_symlink("run", dir_ / "project/link");
  request_.never = {dir_ / "project/link"};
  for (const auto& path :
       {std::string("/"), std::string("/usr"), std::string("/home"), std::string(::getenv("HOME")),
        dir_ / "project", dir_ / "project/run", dir_ / "project/link", dir_.path()}) {
    const auto refused = read(path);
    EXPECT_FALSE(refused) << path;
  }
  EXPECT_TRUE(read(dir_ / "project/run/deep"));
  find({"project"});
  request_.named = {};
  const auto found = value_or_throw(read());
  EXPECT_TRUE(found.trees.empty());
  ASSERT_EQ(found.notes.size(), 1U);
  EXPECT_THAT(found.notes[0], HasSubstr(dir_ / "project: no tree: it holds "));
}

TEST_F(ReadTreesTest, make_one_tree_of_directories_within_each_other) {
  put("venv/lib/site-packages/x.py");
  put("other/x.py");
  put("third");
  find({"venv/lib/site-packages", "other", "venv"});
  EXPECT_THAT(paths(), ElementsAre("other", "venv"));
}

TEST_F(ReadTreesTest, make_one_tree_of_a_common_directory_that_has_nothing_else) {
  for (const char* name : {"a", "b", "c"}) put("deep/down/pkgs/" + std::string(name) + "/lib/x.py");
  find({"deep/down/pkgs/a/lib", "deep/down/pkgs/b/lib", "deep/down/pkgs/c/lib"});
  put("beside");
  // Not what is above: the user works there.
  EXPECT_THAT(paths(), ElementsAre("deep/down/pkgs"));
  put("deep/down/pkgs/b/other");
  const auto each =
      ElementsAre("deep/down/pkgs/a/lib", "deep/down/pkgs/b/lib", "deep/down/pkgs/c/lib");
  EXPECT_THAT(paths(), each);
  // Where everybody may write, another name appears at any time.
  fs::remove(dir_ / "deep/down/pkgs/b/other");
  ASSERT_EQ(::chmod((dir_ / "deep/down/pkgs").c_str(), 01777), 0);
  EXPECT_THAT(paths(), each);
}

TEST_F(ReadTreesTest, notice_that_a_common_directory_got_something_else) {
  for (const char* name : {"a", "b"}) put("pkgs/" + std::string(name) + "/lib/x.py");
  find({"pkgs/a/lib", "pkgs/b/lib"});
  put("beside");
  auto earlier = value_or_throw(read()).trees;
  request_.earlier = &earlier;
  ASSERT_TRUE(wait_until(std::chrono::seconds(20), [&] {
    auto again = value_or_throw(read());
    earlier = std::move(again.trees);
    return again.listed == 0;
  }));
  EXPECT_THAT(paths(), ElementsAre("pkgs"));
  put("pkgs/b/other");
  EXPECT_THAT(paths(), ElementsAre("pkgs/a/lib", "pkgs/b/lib"));
}

TEST_F(ReadTreesTest, leave_what_is_above_a_lone_environment_to_the_user) {
  put("me/job42/env/lib/x.py");
  put("beside");
  find({"me/job42/env", "me/job42/env/lib"});
  EXPECT_THAT(paths(), ElementsAre("me/job42/env"));
  // Two pairs, which meet further up.
  for (const char* name : {"one/a", "one/b", "two/only/c"}) put("env/" + std::string(name) + "/x");
  find({"env/one/a", "env/one/b", "env/two/only/c"});
  EXPECT_THAT(paths(), ElementsAre("env"));
  put("env/file");
  EXPECT_THAT(paths(), ElementsAre("env/one", "env/two/only/c"));
}

TEST_F(ReadTreesTest, take_what_is_above_where_the_kernel_keeps_no_names) {
  for (const char* name : {"a", "b"}) put("origin/opt/site/" + std::string(name) + "/x.py");
  SlowMount slow(dir_ / "origin", dir_ / "slow", dir_ / "counts");
  find({"slow/opt/site/a", "slow/opt/site/b"});
  EXPECT_THAT(paths(), ElementsAre("slow"));
  // As far as it may be a tree.
  request_.never.push_back(dir_ / "slow");
  EXPECT_THAT(paths(), ElementsAre("slow/opt"));
  fs::remove_all(dir_ / "origin/opt/site/b");
  find({"slow/opt/site/a"});
  EXPECT_THAT(paths(), ElementsAre("slow/opt"));
  slow.stop();
}

TEST_F(ReadTreesTest, leave_directories_of_too_many_names_unless_they_are_named) {
  put("env/lib/x.py");
  for (int i = 0; i < 300; ++i) put("env/data/" + std::to_string(i));
  find({"env", "env/lib"});
  request_.most = 300;
  EXPECT_THAT(paths(), ElementsAre("env/lib"));
  EXPECT_THAT(value_or_throw(read()).notes,
              ElementsAre(dir_ / "env: no tree: more than 300 files and directories"));
  request_.most = 303;
  EXPECT_THAT(paths(), ElementsAre("env"));
  request_.most = 10;
  request_.named = {dir_ / "env"};
  EXPECT_THAT(paths(), ElementsAre("env"));
}

TEST_F(ReadTreesTest, keep_a_named_directory_as_it_was_named) {
  put("alone/t/x");
  request_.named = {dir_ / "alone/t"};
  EXPECT_THAT(paths(), ElementsAre("alone/t"));
}

TEST_F(ReadTreesTest, take_what_is_inside_a_found_directory_that_is_refused) {
  put("env/lib/x.py");
  put("env/bin/su");
  ASSERT_EQ(::chmod((dir_ / "env/bin/su").c_str(), 04755), 0);
  put("beside");
  find({"env", "env/lib"});
  EXPECT_THAT(paths(), ElementsAre("env/lib"));
  EXPECT_THAT(value_or_throw(read()).notes,
              ElementsAre(HasSubstr(dir_ / "env: no tree: " + dir_.path() + "/env/bin/su")));
}

TEST_F(ReadTreesTest, take_found_directories_on_slow_file_systems_only) {
  put("slow/x");
  put("fast/x");
  put("beside");
  find({"slow", "fast"});
  request_.is_slow = [&](const std::string& path) { return path == dir_ / "slow"; };
  EXPECT_THAT(paths(), ElementsAre("slow"));
  EXPECT_THAT(value_or_throw(read()).notes, ElementsAre());
  request_.named = {dir_ / "fast"};
  EXPECT_THAT(paths(), ElementsAre("fast", "slow"));
}

TEST_F(ReadTreesTest, list_no_directory_again_that_has_not_changed) {
  for (int i = 0; i < 20; ++i) put("t/d" + std::to_string(i) + "/file");
  request_.named = {dir_ / "t"};
  auto trees = value_or_throw(read()).trees;
  request_.earlier = &trees;
  const auto again = [&] {
    auto read = value_or_throw(this->read());
    trees = std::move(read.trees);
    return read.listed;
  };
  // A directory that has just changed may change again unnoticed.
  EXPECT_EQ(again(), 21U);
  ASSERT_TRUE(wait_until(std::chrono::seconds(20), [&] { return again() == 0; }));
  const auto before = trees[0].index;
  put("t/d7/new");
  put("t/d8/file", "another size");
  EXPECT_EQ(again(), 1U);
  const auto tree = value_or_throw(TreeIndex::of(trees[0].index));
  EXPECT_TRUE(tree.find_path("d7/new"));
  EXPECT_EQ(tree.node(*tree.find_path("d8/file")).size, 12U);
  fs::remove_all(dir_ / "t/d3");
  fs::create_symlink("d4", dir_ / "t/d3");
  again();
  expect_same(dir_ / "t", value_or_throw(TreeIndex::of(trees[0].index)));
}

TEST_F(ReadTreesTest, keep_32_requests_in_flight) {
  for (int i = 0; i < 40; ++i)
    for (int j = 0; j < 20; ++j)
      put("origin/p" + std::to_string(i) + "/m" + std::to_string(j) + ".py");
  SlowMount slow(dir_ / "origin", dir_ / "slow", dir_ / "counts", {.delay_us = 10'000});
  request_.named = {dir_ / "slow"};
  const auto read = value_or_throw(this->read());
  auto counts = slow.reset();
  EXPECT_GE(counts.most_in_flight, 32U);
  // Of each file its name is looked up; of each directory also the listing, and its times after it.
  EXPECT_LE(SlowCounts::most(counts.files).first, 2U);
  slow.stop();
  expect_same(dir_ / "origin", value_or_throw(TreeIndex::of(read.trees[0].index)));
}

TEST_F(ReadTreesTest, do_not_touch_access_times) {
  put("t/d/file");
  const timespec old[2] = {{1000, 0}, {2000, 0}};
  const auto atime = [&](const char* name) {
    struct stat st {};
    ::stat((dir_ / name).c_str(), &st);
    return st.st_atim.tv_sec;
  };
  for (const char* name : {"t/d", "t"})
    ASSERT_EQ(::utimensat(AT_FDCWD, (dir_ / name).c_str(), old, 0), 0);
  EXPECT_TRUE(read(dir_ / "t"));
  EXPECT_EQ(atime("t/d"), 1000);
  EXPECT_EQ(atime("t"), 1000);
}

TEST_F(ReadTreesTest, of_a_directory_that_changes_are_refused_or_consistent) {
  for (int i = 0; i < 50; ++i) put("t/d/" + std::to_string(i));
  std::atomic<bool> stop = false;
  // Pairs of names: a moment at which only one of them is there is never shown.
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) {
      fs::create_directories(dir_ / "t/d/sub/below");
      std::ofstream(dir_ / "t/d/sub/file") << i;
      fs::rename(dir_ / "t/d/sub", dir_ / "t/d/moved");
      fs::remove_all(dir_ / "t/d/moved");
    }
  });
  int refused = 0;
  for (int i = 0; i < 100; ++i) {
    const auto read = this->read(dir_ / "t");
    if (!read) {
      EXPECT_EQ(read.error().code(), EAGAIN) << read.error().message();
      ++refused;
      continue;
    }
    const auto tree = value_or_throw(TreeIndex::of(read->trees[0].index));
    EXPECT_FALSE(tree.find_path("d/sub") && tree.find_path("d/moved"));
    EXPECT_TRUE(tree.find_path("d/49"));
    const auto sub = tree.find_path("d/sub");
    EXPECT_TRUE(!sub || tree.node(*sub).child_count <= 2);
  }
  stop = true;
  writer.join();
  RecordProperty("refused", refused);
}

TEST_F(ReadTreesTest, leave_directories_that_cannot_be_read_to_the_original) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root, to become another user");
  put("t/open/file");
  put("t/closed/file");
  put("t/listed/file");
  ASSERT_EQ(::chmod((dir_ / "t/closed").c_str(), 0700), 0);
  ASSERT_EQ(::chmod((dir_ / "t/listed").c_str(), 0744), 0);
  ASSERT_EQ(::chmod((dir_ / "t/open/file").c_str(), 0600), 0);
  for (auto above = fs::path(dir_.path()); above != "/"; above = above.parent_path())
    fs::permissions(above, fs::perms::group_exec | fs::perms::others_exec, fs::perm_options::add);
  auto child = value_or_throw(fork_child({}, [&] {
    // Dumpable again, for /proc/self/mountinfo.
    if (::setresuid(65534, 65534, 65534) != 0 || ::prctl(PR_SET_DUMPABLE, 1) != 0) return 9;
    const auto read = value_or_throw(this->read(dir_ / "t"));
    const auto tree = value_or_throw(TreeIndex::of(read.trees[0].index));
    if (!tree.node(*tree.find_path("closed")).hole || !tree.node(*tree.find_path("listed")).hole)
      return 1;
    if (tree.node(*tree.find_path("open")).hole || !tree.find_path("open/file")) return 2;
    if (read.notes.size() != 1 || read.notes[0].find("(and 1 more)") == std::string::npos) return 3;
    const auto refused = this->read(dir_ / "t/closed");
    return !refused && refused.error().code() == EACCES ? 0 : 4;
  }));
  EXPECT_EQ(value_or_throw(child.wait()), 0);
}

TEST_F(ReadTreesTest, name_what_cannot_be_a_tree) {
  EXPECT_EQ(read(dir_ / "none").error().code(), ENOENT);
  EXPECT_EQ(read(put("file")).error().code(), ENOTDIR);
  fs::create_directories(dir_ / "real/x");
  fs::create_directory_symlink("real", dir_ / "link");
  request_.named = {dir_ / "link", dir_ / "real"};
  EXPECT_THAT(paths(), ElementsAre("real"));
}

}  // namespace
}  // namespace heddle::test
