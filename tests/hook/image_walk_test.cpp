// SPDX-License-Identifier: MIT
#include "container-hooks/image_walk.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "container-hooks/mount_calls.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

class ImageWalkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* file : {"usr/lib/deep/er/libx.so.1.2", "usr/lib/libx.so.1.2", "usr/lib64x/a",
                             "usr/lib/new\nline/a b", "etc/file", "opt/mpi/lib/libx.so.1.2"})
      write_text_file(dir_ / file, file);
    const auto link = [&](const char* target, const char* at) {
      fs::create_symlink(target, dir_ / at);
    };
    link("usr/lib", "lib");
    link("/usr/lib", "usr/abs");
    link("lib/deep", "usr/deep");
    link("libx.so.1.2", "usr/lib/libx.so.1");
    link("libx.so.1", "usr/lib/libx.so");
    link("/opt/mpi/lib/libx.so.1.2", "usr/lib/liby.so");
    link("../../etc/file", "usr/lib/up");
    link("../../../../../../etc/file", "usr/lib/out");
    link("../../../../../..", "usr/lib/top");
    link("nothing", "usr/lib/dangling");
    link("round", "usr/lib/round");
    link(".", "usr/lib/itself");
    link("/", "root");
    link("libx.so", "usr/lib/l1");
    link("l1", "usr/lib/l2");
    link("l2", "usr/lib/l3");
    link("l3", "usr/lib/l4");
  }

  /// Each folder's way, with each name that is somewhere, so that most are not there.
  std::vector<std::string> paths() const {
    std::vector<std::string> folders{"/"};
    for (const char* folder :
         {"usr", "lib", "usr/lib", "usr/abs", "usr/deep", "usr/deep/er", "lib/deep/er",
          "usr/lib/l4", "usr/lib/itself/deep", "usr/lib/top/usr/lib", "root/lib", "etc/file",
          "none/at/all", "usr/lib/..", "usr/./lib", "usr//lib", "usr/lib/new\nline", "usr/lib64x"})
      folders.push_back("/" + std::string(folder) + "/");
    std::vector<std::string> out = folders;
    for (const auto& folder : folders)
      for (const char* name :
           {"usr",     "lib",  "lib64x", "deep", "er",       "libx.so", "libx.so.1", "libx.so.1.2",
            "liby.so", "up",   "out",    "top",  "dangling", "round",   "itself",    "l3",
            "l4",      "file", "a",      "a b",  "none",     ".",       ".."}) {
        out.push_back(folder + name);
        out.push_back(folder + name + "/");
      }
    return out;
  }

  void expect_as_if_opened(ImageWalk& walk, const std::string& path) {
    const auto found = walk.find(path);
    if (!found) return;
    ++found_;
    const auto open = find_in_root(root_.get(), path, path.ends_with('/') ? O_DIRECTORY : 0);
    ASSERT_EQ(found->is_there, open.has_value()) << path;
    if (!open) return;
    struct stat status {};
    ASSERT_EQ(::fstat(open->get(), &status), 0);
    EXPECT_EQ(found->status.st_ino, status.st_ino) << path;
    EXPECT_EQ(found->where, place_below(dir_.path(), open->get())) << path;
  }

  TestDir dir_;
  Fd root_ = value_or_throw(open_file(dir_.path(), O_PATH | O_DIRECTORY));
  int found_ = 0;
};

TEST_F(ImageWalkTest, finds_what_opening_each_path_finds) {
  auto all = paths();
  std::sort(all.begin(), all.end());
  ImageWalk walk(root_, dir_.path());
  for (const auto& path : all) expect_as_if_opened(walk, path);
  EXPECT_GT(found_, static_cast<int>(all.size()) / 2) << "of " << all.size();
}

TEST_F(ImageWalkTest, does_so_in_any_order) {
  auto all = paths();
  std::mt19937 random(7);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(all.begin(), all.end(), random);
    ImageWalk walk(root_, dir_.path());
    for (const auto& path : all) expect_as_if_opened(walk, path);
  }
}

TEST_F(ImageWalkTest, keeps_no_more_open_than_a_path_has_folders) {
  const auto open = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = open();
  ImageWalk walk(root_, dir_.path());
  for (const auto& path : paths()) (void)walk.find(path);
  (void)walk.find("/usr/lib/deep/er/libx.so.1.2");
  EXPECT_EQ(open() - before, 4);
  (void)walk.find("/etc/file");
  EXPECT_EQ(open() - before, 1);
}

TEST_F(ImageWalkTest, says_nothing_of_what_it_may_not_look_at) {
  std::string deep;
  for (int i = 0; i < 300; ++i) deep += "/d";
  fs::create_directories(dir_.path() + deep);
  write_text_file(dir_.path() + deep + "/file", "x");
  rlimit limit{}, few{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  few = {100, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_FALSE(ImageWalk(root_, dir_.path()).find(deep + "/file")) << "not: it is not there";
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(ImageWalk(root_, dir_.path()).find(deep + "/file")->is_there);
}

}  // namespace
}  // namespace heddle::test
