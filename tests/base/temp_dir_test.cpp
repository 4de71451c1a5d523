// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/child.hpp"
#include "base/fd.hpp"
#include "base/temp_dir.hpp"

namespace heddle {
namespace {

constexpr int kNoNamespace = 77;

bool put(const std::string& name, const std::string& text) {
  const auto file = open_file("/proc/self/" + name, O_WRONLY);
  return file && write_all(file->get(), text, name);
}

/// In a child, mounts a file system on the directory: 0 when its files survive remove_tree().
int keeps_mounted_files(const std::string& directory) {
  const auto user = "0 " + std::to_string(::geteuid()) + " 1";
  const auto group = "0 " + std::to_string(::getegid()) + " 1";
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !put("setgroups", "deny") ||
      !put("uid_map", user) || !put("gid_map", group) ||
      ::mount("tmpfs", directory.c_str(), "tmpfs", 0, nullptr) != 0)
    return kNoNamespace;
  const auto file = directory + "/sub/file";
  if (::mkdir((directory + "/sub").c_str(), 0755) != 0 || !open_file(file, O_WRONLY | O_CREAT))
    return 1;
  const auto removed = remove_tree(directory);
  if (removed || removed.error().code() != EBUSY) return 2;
  if (::access(file.c_str(), F_OK) != 0) return 3;
  // The mount also survives the removal of its parent directory.
  (void)remove_tree(directory.substr(0, directory.rfind('/')));
  return ::access(file.c_str(), F_OK) == 0 ? 0 : 4;
}

TEST(RemoveTree, never_removes_what_is_mounted) {
  const auto dir = value_or_throw(TempDir::create("heddle-remove-test"));
  const auto directory = dir.path() + "/mounted";
  ASSERT_EQ(::mkdir(directory.c_str(), 0755), 0);
  auto child = value_or_throw(fork_child({}, [&] { return keeps_mounted_files(directory); }));
  const int status = value_or_throw(child.wait());
  if (status == kNoNamespace) GTEST_SKIP() << "skipped: no user namespaces";
  EXPECT_EQ(status, 0);
}

TEST(RemoveTree, removes_links_but_not_their_targets) {
  const auto dir = value_or_throw(TempDir::create("heddle-remove-test"));
  const auto target = dir.path() + "/target";
  const auto tree = dir.path() + "/tree";
  for (const auto& directory : {target, tree, tree + "/sub"})
    ASSERT_EQ(::mkdir(directory.c_str(), 0755), 0);
  ASSERT_TRUE(open_file(target + "/file", O_WRONLY | O_CREAT));
  ASSERT_TRUE(open_file(tree + "/sub/file", O_WRONLY | O_CREAT));
  ASSERT_EQ(::symlink(target.c_str(), (tree + "/link").c_str()), 0);
  EXPECT_TRUE(remove_tree(tree));
  EXPECT_NE(::access(tree.c_str(), F_OK), 0);
  EXPECT_EQ(::access((target + "/file").c_str(), F_OK), 0);
  EXPECT_TRUE(remove_tree(tree)) << "no error when it is missing";
}

}  // namespace
}  // namespace heddle
