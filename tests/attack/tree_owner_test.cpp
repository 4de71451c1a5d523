// SPDX-License-Identifier: MIT
// Attacks by the owner of a directory tree that root's map has and root's fs-mount serves: this
// user may change the tree at any time. The secret has the size and time of the files that it
// stands in for.

#include <sys/mount.h>
#include <sys/sysmacros.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

constexpr unsigned kOwner = 1511;
constexpr std::size_t kSize = 100'000;

class TreeOwner : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    fs::permissions(dir_.path(), fs::perms(0755));
    for (int i = 0; i < 200; ++i) {
      add("tree/a/f" + std::to_string(i), 'o', kOwner, 0644);
      add("closed/f" + std::to_string(i), 'S', 0, 0600);
    }
    add("tree/b/f0", 'o', kOwner, 0644);
    fs::permissions(dir_ / "closed", fs::perms(0700));
    fs::create_directory(dir_ / "tree/a/e");
    for (const char* name : {"tree", "tree/a", "tree/b"})
      EXPECT_EQ(::chown((dir_ / name).c_str(), kOwner, kOwner), 0);
    MapMaker maker;
    maker.add_tree(dir_ / "tree");
    mount_.emplace(maker.write(dir_ / "map"), dir_ / "mnt",
                   Strings{"--prefetch", "0", "--log", dir_ / "log"});
  }
  void add(const std::string& name, char content, unsigned owner, unsigned mode) {
    const auto path = write_text_file(dir_ / name, std::string(kSize, content), mode);
    const timespec times[] = {{1000, 0}, {1000, 0}};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    EXPECT_EQ(::chown(path.c_str(), owner, owner), 0);
  }
  std::string served(const std::string& name) const { return *mount_ / (".t/0/" + name); }
  /// Whether the file of the tree is refused, then and later, when `attack` has been made on it.
  void expect_refused(const std::string& name,
                      const std::function<void(const std::string&)>& attack) {
    SCOPED_TRACE(name);
    fs::remove(dir_ / ("tree/" + name));
    attack(dir_ / ("tree/" + name));
    const auto got = read_uncached(served(name));
    EXPECT_FALSE(got) << got->substr(0, 10);
    EXPECT_EQ(got ? 0 : got.error().code(), EIO);
  }

  TestDir dir_;
  std::optional<Mount> mount_;
};

TEST_F(TreeOwner, file_replaced_by_something_else_is_never_opened) {
  expect_refused("a/f0",
                 [](const std::string& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0644), 0); });
  // No process has it open for reading.
  EXPECT_EQ(::open((dir_ / "tree/a/f0").c_str(), O_WRONLY | O_NONBLOCK), -1);
  EXPECT_EQ(errno, ENXIO);
  expect_refused("a/f1", [](const std::string& path) {
    ASSERT_EQ(::mknod(path.c_str(), S_IFCHR | 0666, ::makedev(1, 5)), 0);  // /dev/zero
  });
  expect_refused("a/f2",
                 [&](const std::string& path) { fs::create_symlink(dir_ / "closed/f2", path); });
  expect_refused("a/f3", [&](const std::string& path) { fs::create_directory(path); });
  // As where fs.protected_hardlinks is off.
  expect_refused("a/f4",
                 [&](const std::string& path) { fs::create_hard_link(dir_ / "closed/f4", path); });
  expect_refused("a/f5", [&](const std::string& path) {
    write_text_file(path, "");
    ASSERT_EQ(::mount((dir_ / "closed/f5").c_str(), path.c_str(), nullptr, MS_BIND, nullptr), 0);
  });
  ::umount2((dir_ / "tree/a/f5").c_str(), MNT_DETACH);
  EXPECT_EQ(read_uncached(served("a/f6")).value_or(""), std::string(kSize, 'o'));
}

TEST_F(TreeOwner, directory_replaced_by_a_link_or_a_mount_leads_nowhere) {
  fs::rename(dir_ / "tree/b", dir_ / "tree/away");
  fs::create_directory_symlink(dir_ / "closed", dir_ / "tree/b");
  EXPECT_EQ(read_uncached(served("b/f0")).error().code(), EIO);
  ASSERT_EQ(
      ::mount((dir_ / "closed").c_str(), (dir_ / "tree/a").c_str(), nullptr, MS_BIND, nullptr), 0);
  EXPECT_EQ(read_uncached(served("a/f0")).error().code(), EIO);
  ::umount2((dir_ / "tree/a").c_str(), MNT_DETACH);
}

TEST_F(TreeOwner, closed_files_and_directories_stay_closed) {
  // What root grants by the map's permissions must be what the files have now.
  ASSERT_EQ(::chmod((dir_ / "tree/a/f0").c_str(), 0600), 0);
  EXPECT_EQ(read_uncached(served("a/f0")).error().code(), EIO);
  ASSERT_EQ(::chmod((dir_ / "tree/b").c_str(), 0700), 0);
  EXPECT_EQ(read_uncached(served("b/f0")).error().code(), EIO);
  ASSERT_EQ(::chmod((dir_ / "tree").c_str(), 0700), 0);
  fs::create_directory(dir_ / "second");
  EXPECT_THAT(run({fs_mount(), dir_ / "map", dir_ / "second"}).err,
              HasSubstr("/tree: other owner or permissions\n"));
}

TEST_F(TreeOwner, directory_that_is_exchanged_all_the_time_shows_no_other_file) {
  const auto tree = dir_ / "tree/a", away = dir_ / "tree/away";
  std::atomic<int> secrets = 0, right = 0, refused = 0;
  {
    const std::jthread attacker([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        fs::rename(tree, away);
        fs::create_directory_symlink(dir_ / "closed", tree);
        fs::remove(tree);
        fs::rename(away, tree);
      }
    });
    std::vector<std::jthread> readers;
    for (int t = 0; t < 4; ++t)
      readers.emplace_back([&, t] {
        for (int i = t; i < 200; i += 4) {
          // So that no directory's descriptor is kept.
          if (i % 20 == t) ::kill(mount_->worker(), SIGKILL);
          const auto got = read_uncached(served("a/f" + std::to_string(i)));
          refused += !got;
          right += got && *got == std::string(kSize, 'o');
          secrets += got && got->find('S') != got->npos;
        }
      });
  }
  EXPECT_EQ(secrets, 0);
  EXPECT_EQ(right + refused, 200);
}

}  // namespace
}  // namespace heddle::test
