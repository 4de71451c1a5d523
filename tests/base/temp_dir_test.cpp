// SPDX-License-Identifier: MIT
#include "base/temp_dir.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.hpp"
#include "base/signal_cleanup.hpp"

namespace heddle {
namespace {

constexpr int kNoNamespace = 77;

bool put(const std::string& name, const std::string& text) {
  const auto file = open_file("/proc/self/" + name, O_WRONLY);
  return file && write_all(file->get(), text, name);
}

/// In a process of its own, with a file system mounted on the directory: 0, when all of it is there
/// after `remove` has tried.
int keeps_what_is_mounted(const std::string& directory) {
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
  // Below a directory that is removed it stays, too.
  (void)remove_tree(directory.substr(0, directory.rfind('/')));
  return ::access(file.c_str(), F_OK) == 0 ? 0 : 4;
}

TEST(RemoveTree, never_removes_what_is_mounted) {
  const auto dir = value_or_throw(TempDir::create("heddle-remove-test"));
  const auto directory = dir.path() + "/mounted";
  ASSERT_EQ(::mkdir(directory.c_str(), 0755), 0);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(keeps_what_is_mounted(directory));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNamespace) GTEST_SKIP() << "skipped: no user namespaces";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(RemoveTree, removes_directories_files_and_links_and_not_what_they_lead_to) {
  const auto dir = value_or_throw(TempDir::create("heddle-remove-test"));
  const auto kept = dir.path() + "/kept";
  const auto tree = dir.path() + "/tree";
  for (const auto& directory : {kept, tree, tree + "/sub"})
    ASSERT_EQ(::mkdir(directory.c_str(), 0755), 0);
  ASSERT_TRUE(open_file(kept + "/file", O_WRONLY | O_CREAT));
  ASSERT_TRUE(open_file(tree + "/sub/file", O_WRONLY | O_CREAT));
  ASSERT_EQ(::symlink(kept.c_str(), (tree + "/link").c_str()), 0);
  EXPECT_TRUE(remove_tree(tree));
  EXPECT_NE(::access(tree.c_str(), F_OK), 0);
  EXPECT_EQ(::access((kept + "/file").c_str(), F_OK), 0);
  EXPECT_TRUE(remove_tree(tree)) << "which is not there";
}

int entries_of(const std::string& directory) {
  DIR* open = ::opendir(directory.c_str());
  if (!open) return 0;
  int count = 0;
  while (::readdir(open)) ++count;
  ::closedir(open);
  return count;
}

/// A process whose directory below `parent` is full of files, and which removes it at a signal.
struct Cleaner {
  explicit Cleaner(const std::string& parent) {
    auto pipe = value_or_throw(make_pipe());
    pid = ::fork();
    if (pid == 0) {
      const auto own = TempDir::create("full", parent);
      for (int i = 0; own && i < kFiles; ++i)
        (void)open_file(own->path() + "/" + std::to_string(i), O_WRONLY | O_CREAT);
      ::signal(SIGINT, SIG_DFL);  // a shell's background jobs ignore it, which would stay so
      clean_up_on_signals();
      if (own) (void)write_all(pipe.write_end.get(), own->path(), "");
      pipe = {};
      for (;;) ::pause();
    }
    pipe.write_end.reset();
    directory = value_or_throw(read_all(pipe.read_end.get(), ""));
  }
  static constexpr int kFiles = 3000;
  pid_t pid;
  std::string directory;
};

TEST(SignalCleanup, goes_on_to_its_end_when_a_second_signal_comes) {
  const auto dir = value_or_throw(TempDir::create("heddle-remove-test"));
  int halfway = 0;
  for (int tries = 0; tries < 50 && halfway < 3; ++tries) {
    const Cleaner cleaner(dir.path());
    const int full = entries_of(cleaner.directory);
    EXPECT_GT(full, Cleaner::kFiles);
    ::kill(cleaner.pid, SIGINT);
    for (int looks = 0; looks < 10000 && entries_of(cleaner.directory) == full; ++looks) {
    }
    halfway += entries_of(cleaner.directory) > 0;
    ::kill(cleaner.pid, SIGINT);
    int status = 0;
    ASSERT_EQ(::waitpid(cleaner.pid, &status, 0), cleaner.pid);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
    EXPECT_NE(::access(cleaner.directory.c_str(), F_OK), 0);
  }
  EXPECT_GT(halfway, 0) << "each directory had gone before the second signal was sent";
}

}  // namespace
}  // namespace heddle
