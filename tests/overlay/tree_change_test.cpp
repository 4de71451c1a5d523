// SPDX-License-Identifier: MIT
// Trees that change, hang or are gone, that are written to, and whose daemon is killed or reloaded.

#include <sys/mman.h>

#include "base/mounts.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/overlay/origin_fs.hpp"
#include "tests/overlay/tree_view_fixture.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::test {
namespace {

using ::testing::ElementsAre;

TEST_F(TreeView, each_attempt_to_write_gets_erofs_and_is_counted) {
  add("d/file", "content", 0777);
  add("__pycache__/a.pyc", "x");
  mount();
  EXPECT_EQ(mounts_with(" " + mount_->path() + " rw,nosuid,nodev"), 1U);
  const std::string file = served("d/file");
  const std::string fresh = served("d/fresh");
  EXPECT_EQ(stats()["refused_writes"].dump(), "{\"count\":0}");
  // Python's attempts are counted only.
  EXPECT_EQ(::open(served("__pycache__/b.pyc").c_str(), O_WRONLY | O_CREAT, 0644), -1);
  EXPECT_EQ(::mkdir(served("d/__pycache__").c_str(), 0755), -1);
  EXPECT_EQ(stats()["refused_writes"].dump(), "{\"count\":2}");
  std::uint64_t count = 2;
  const auto is_refused = [&](auto rc) {
    const bool good = rc == -1 && errno == EROFS;
    const auto now = stats()["refused_writes"]["count"].get<std::uint64_t>();
    return good && now == ++count;
  };
  EXPECT_TRUE(is_refused(::open(fresh.c_str(), O_WRONLY | O_CREAT, 0644)));
  EXPECT_EQ(stats()["refused_writes"]["path"], native("d/fresh"));
  EXPECT_TRUE(is_refused(::open(file.c_str(), O_WRONLY | O_TRUNC)));
  EXPECT_TRUE(is_refused(::mkdir(fresh.c_str(), 0755)));
  EXPECT_TRUE(is_refused(::rmdir(served("__pycache__").c_str())));
  EXPECT_TRUE(is_refused(::unlink(file.c_str())));
  EXPECT_TRUE(is_refused(::rename(file.c_str(), fresh.c_str())));
  EXPECT_TRUE(
      is_refused(::renameat2(AT_FDCWD, file.c_str(), AT_FDCWD, fresh.c_str(), RENAME_NOREPLACE)));
  EXPECT_TRUE(is_refused(::link(file.c_str(), fresh.c_str())));
  EXPECT_TRUE(is_refused(::symlink("x", fresh.c_str())));
  EXPECT_TRUE(is_refused(::mknod(fresh.c_str(), S_IFREG | 0644, 0)));
  EXPECT_TRUE(is_refused(::mkfifo(fresh.c_str(), 0644)));
  EXPECT_TRUE(is_refused(::chmod(file.c_str(), 0600)));
  EXPECT_TRUE(is_refused(::chown(file.c_str(), 1, 1)));
  EXPECT_TRUE(is_refused(::truncate(file.c_str(), 0)));
  EXPECT_TRUE(is_refused(::utimensat(AT_FDCWD, file.c_str(), nullptr, 0)));
  EXPECT_TRUE(is_refused(::setxattr(file.c_str(), "user.x", "y", 1, 0)));
  EXPECT_TRUE(is_refused(::removexattr(file.c_str(), "user.x")));
  const auto open = value_or_throw(open_file(file, O_RDWR));
  EXPECT_TRUE(is_refused(::pwrite(open.get(), "changed", 7, 0)));
  EXPECT_TRUE(is_refused(::fallocate(open.get(), 0, 0, 100)));
  EXPECT_EQ(stats()["refused_writes"]["path"], native("d/fresh"));
  EXPECT_EQ(value_or_throw(read_file(file)), "content");
  EXPECT_EQ(value_or_throw(read_file(native("d/file"))), "content");
  // Outside of the trees too.
  EXPECT_TRUE(is_refused(::mkdir((*mount_ / "fresh").c_str(), 0755)));
  EXPECT_THAT(run({fs_mount(), "--stats", mount_->path()}).out,
              HasSubstr("refused_writes.path    " + native("d/fresh") + "\n"));
}

TEST_F(TreeView, bytes_written_to_memory_do_not_stay_in_it) {
  const std::string content(10'000, 'c');
  add("file", content);
  mount();
  const auto file = value_or_throw(open_file(served("file"), O_RDWR));
  const auto reader = value_or_throw(open_file(served("file"), O_RDONLY));
  const auto map_of = [](const Fd& fd, int rights) {
    return static_cast<char*>(::mmap(nullptr, 10'000, rights, MAP_SHARED, fd.get(), 0));
  };
  char* const others = map_of(reader, PROT_READ);
  ASSERT_NE(others, MAP_FAILED);
  ASSERT_EQ(others[9000], 'c');
  // By write(2), which puts them into the kernel's cache first.
  EXPECT_EQ(::pwrite(file.get(), std::string(10'000, 'w').data(), 10'000, 0), -1);
  EXPECT_TRUE(wait_until(5s, [&] { return others[0] == 'c' && others[9000] == 'c'; }));
  // By a mapping.
  char* const mapped = map_of(file, PROT_READ | PROT_WRITE);
  ASSERT_NE(mapped, MAP_FAILED);
  mapped[9000] = 'm';
  EXPECT_EQ(::msync(mapped, 10'000, MS_SYNC), -1);
  EXPECT_TRUE(wait_until(5s, [&] { return others[9000] == 'c'; }));
  EXPECT_EQ(value_or_throw(read_file(served("file"))), content);
  EXPECT_GE(stats()["refused_writes"]["count"], 2);
  ::munmap(mapped, 10'000);
  ::munmap(others, 10'000);
}

TEST_F(TreeView, changed_files_answer_eio_for_ever) {
  for (const char* name : {"d/in place", "d/same size", "d/replaced", "d/removed", "d/fine",
                           "d/after", "d/gone/file", "d/linked"})
    add(name, std::string(300'000, 'o'));
  mount();
  EXPECT_TRUE(read_uncached(served("d/after")));
  EXPECT_TRUE(read_uncached(served("d/linked")));
  std::ofstream(native("d/in place"), std::ios::app) << "more";
  add("d/same size", std::string(300'000, 'n'));
  add("new", std::string(300'000, 'n'));
  fs::rename(native("new"), native("d/replaced"));
  fs::remove(native("d/removed"));
  fs::remove_all(native("d/gone"));
  add("d/after", std::string(300'000, 'n'));
  const std::vector<std::string> changed = {"d/after",   "d/gone/file", "d/in place",
                                            "d/removed", "d/replaced",  "d/same size"};
  for (const auto& name : changed)
    EXPECT_EQ(read_uncached(served(name)).error().code(), EIO) << name;
  EXPECT_EQ(value_or_throw(read_uncached(served("d/fine"))), std::string(300'000, 'o'));
  // A new hard link changes ctime, not the content.
  fs::create_hard_link(native("d/linked"), dir_ / "another name");
  ::kill(mount_->worker(), SIGKILL);
  EXPECT_EQ(value_or_throw(read_uncached(served("d/linked"))), std::string(300'000, 'o'));
  // It stays so when the old content is back.
  fs::remove(native("d/removed"));
  for (const auto& name : changed)
    EXPECT_EQ(read_uncached(served(name)).error().code(), EIO) << name;
  const auto now = stats();
  EXPECT_EQ(now["tree_changed_files"], changed.size());
  std::vector<std::string> listed = now["tree_changed"];
  std::sort(listed.begin(), listed.end());
  for (std::size_t i = 0; i < changed.size(); ++i) EXPECT_EQ(listed.at(i), native(changed[i]));
  EXPECT_THAT(log(), HasSubstr("d/replaced: answered with an error: it has changed"));
}

TEST_F(TreeView, file_of_a_fuse_origin_that_changes_while_it_is_open_is_noticed) {
  constexpr std::size_t kSize = 3U << 20;
  add("same", std::string(kSize, 'A'));
  add("grown", std::string(kSize, 'A'));
  SlowMount slow(source(), dir_ / "slow", dir_ / "counts", {.delay_us = 0});
  mount({}, slow.directory());
  for (const char* name : {"same", "grown"}) {
    const auto file = value_or_throw(open_file(served(name), O_RDONLY));
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_RANDOM);
    char first = 0;
    ASSERT_EQ(::pread(file.get(), &first, 1, 0), 1);
    add(name, std::string(name == std::string("same") ? kSize : kSize + 1, 'B'));
    const auto is_refused = [&] { return !read_uncached(served(name)); };
    EXPECT_TRUE(wait_until(10s, is_refused)) << name;
  }
  EXPECT_EQ(stats()["tree_changed_files"], 2);
}

TEST_F(TreeView, changed_file_costs_its_neighbours_no_request) {
  for (const char* name : {"a/b/p0/m", "a/b/p0/changed", "a/b/p1/m", "a/b/p1/removed"})
    add(name, "x");
  SlowMount slow(source(), dir_ / "slow", dir_ / "counts", {.delay_us = 0});
  mount({}, slow.directory());
  for (const char* name : {"a/b/p0/m", "a/b/p1/m"})
    EXPECT_EQ(read_uncached(served(name)).value_or(""), "x");
  add("a/b/p0/changed", "other");
  (void)slow.reset();
  EXPECT_EQ(read_uncached(served("a/b/p0/changed")).error().code(), EIO);
  EXPECT_EQ(slow.reset().directories.size(), 0U);
  // Its directory may be another one now.
  fs::remove(native("a/b/p1/removed"));
  EXPECT_EQ(read_uncached(served("a/b/p1/removed")).error().code(), EIO);
  EXPECT_FALSE(slow.counts().directories.contains("a/b/p0"));
  EXPECT_EQ(slow.counts().directories.size(), 3U);
}

TEST_F(TreeView, file_exchanged_for_one_with_the_same_stamp_is_noticed_when_it_was_read) {
  HEDDLE_NEEDS_RESEND();
  add("file", "first content");
  mount();
  EXPECT_EQ(value_or_throw(read_uncached(served("file"))), "first content");
  const auto before = status_of(native("file"));
  add("new", "other content");
  const timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, native("new").c_str(), times, 0), 0);
  fs::rename(native("new"), native("file"));
  ::kill(mount_->worker(), SIGKILL);  // its open file is the old one
  EXPECT_EQ(read_uncached(served("file")).error().code(), EIO);
}

TEST_F(TreeView, readers_never_notice_killed_workers) {
  HEDDLE_NEEDS_RESEND();
  for (int i = 0; i < 40; ++i)
    add("d" + std::to_string(i % 7) + "/f" + std::to_string(i), random_bytes(400'000, unsigned(i)));
  mount();
  std::atomic<int> wrong = 0, rounds = 0;
  {
    std::vector<std::jthread> readers;
    for (unsigned t = 0; t < 4; ++t)
      readers.emplace_back([&, t](const std::stop_token& stop) {
        for (unsigned i = t; !stop.stop_requested(); ++i, ++rounds) {
          const auto name = "d" + std::to_string(i % 40 % 7) + "/f" + std::to_string(i % 40);
          const auto got = read_uncached(served(name));
          wrong += !got || *got != random_bytes(400'000, i % 40);
        }
      });
    for (const auto end = std::chrono::steady_clock::now() + time_to_spend();
         std::chrono::steady_clock::now() < end;) {
      std::this_thread::sleep_for(kPace);
      ::kill(mount_->worker(), SIGKILL);
    }
  }
  EXPECT_EQ(wrong, 0) << log();
  EXPECT_GT(rounds, 10);
  EXPECT_EQ(stats()["tree_changed_files"], 0);
}

TEST_F(TreeView, reload_serves_the_new_tree_and_the_old_one_to_those_that_have_it_open) {
  HEDDLE_NEEDS_OPEN_TREE();
  add("d/old", "old");
  mount();
  const auto held = value_or_throw(open_file(served("d"), O_RDONLY | O_DIRECTORY));
  add("d/new", "new");
  MapMaker maker;
  maker.add_tree(source());
  const auto reloaded = mount_->reload(maker.write(dir_ / "map2"), {"--prefetch", "0"});
  ASSERT_EQ(reloaded.status, 0) << reloaded.err;
  EXPECT_EQ(mounts_with(" " + mount_->path() + " rw,nosuid,nodev"), 1U);
  EXPECT_EQ(value_or_throw(read_file(served("d/new"))), "new");
  EXPECT_EQ(value_or_throw(read_file(served("d/old"))), "old");
  EXPECT_EQ(::faccessat(held.get(), "new", F_OK, 0), -1);
  EXPECT_EQ(::faccessat(held.get(), "old", F_OK, 0), 0);
  EXPECT_EQ(::mkdir(served("d/x").c_str(), 0755), -1);
  EXPECT_EQ(errno, EROFS);
}

TEST_F(TreeView, missing_tree_is_refused_or_left_out) {
  add("file", "x");
  MapMaker maker;
  maker.add_tree(source());
  maker.add_tree(source(), dir_ / "none");
  maker.add_tree(source(), write_text_file(dir_ / "zfile", ""));
  maker.write(dir_ / "map");
  fs::create_directory(dir_ / "mnt");
  const auto refused = run({fs_mount(), dir_ / "map", dir_ / "mnt"});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("/none: missing\n"));
  EXPECT_THAT(refused.err, HasSubstr("2 files differ"));
  EXPECT_EQ(mounts_with(" " + (dir_ / "mnt") + " "), 0U);
  mount_.emplace(dir_ / "map", dir_ / "mnt", std::vector<std::string>{"--on-drift", "warn"});
  EXPECT_THAT(names_below(*mount_ / ".t"), ElementsAre("1", "1/file"));
  EXPECT_EQ(value_or_throw(read_file(*mount_ / ".t/1/file")), "x");
  EXPECT_EQ(stats()["drift_files"], 2);
}

TEST_F(TreeView, hung_tree_blocks_only_its_own_reads_until_the_timeout) {
  for (int i = 0; i < 12; ++i) add("far/in/f" + std::to_string(i), std::string(50'000, 'f'));
  add("far/in/first", "first");
  add("near/n", std::string(50'000, 'n'));
  OriginFs origin(native("far"), dir_ / "far");
  MapMaker maker;
  maker.add_tree(origin / "in");
  maker.add_tree(native("near"));
  maker.write(dir_ / "map");
  std::filesystem::create_directories(dir_ / "mnt");
  origin.hang();
  const auto refused = run({fs_mount(), "--origin-timeout", "0.5", dir_ / "map", dir_ / "mnt"});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("its file system has not answered for 500 ms"));
  origin.answer();
  mount_.emplace(dir_ / "map", dir_ / "mnt",
                 std::vector<std::string>{"--origin-timeout", "1", "--log", dir_ / "log"});
  EXPECT_EQ(read_uncached(served("first")).value_or(""), "first");
  origin.hang();
  {
    std::vector<std::jthread> readers;
    for (int i = 0; i < 12; ++i)
      readers.emplace_back([&, i] {
        EXPECT_EQ(read_uncached(served("f" + std::to_string(i))).error().code(), EIO);
      });
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(read_uncached(*mount_ / ".t/1/n").value_or(""), std::string(50'000, 'n'));
      EXPECT_TRUE(fs::exists(served("f1")));
      EXPECT_FALSE(fs::exists(served("none" + std::to_string(i))));
    }
  }
  origin.answer();
  EXPECT_TRUE(wait_until(
      10s, [&] { return read_uncached(served("f3")).value_or("") == std::string(50'000, 'f'); }));
  EXPECT_EQ(stats()["tree_changed_files"], 0);
}

TEST_F(TreeView, library_on_fuse_that_changes_in_place_is_noticed) {
  constexpr std::size_t kSize = 3U << 20;
  add("liba.so.1", std::string(kSize, 'A'));
  SlowMount slow(source(), dir_ / "slow", dir_ / "counts", {.delay_us = 0});
  MapMaker maker;
  maker.add_name("v", "liba.so.1", slow.directory() + "/liba.so.1");
  maker.write(dir_ / "map");
  mount_.emplace(dir_ / "map", dir_ / "mnt", std::vector<std::string>{"--prefetch", "0"});
  const auto file = value_or_throw(open_file(*mount_ / "liba.so.1", O_RDONLY));
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_RANDOM);
  const auto read_at = [&](off_t offset) {
    char byte = 0;
    return ::pread(file.get(), &byte, 1, offset) == 1 ? byte : '-';
  };
  EXPECT_EQ(read_at(0), 'A');
  add("liba.so.1", std::string(kSize, 'B'));
  EXPECT_EQ(read_at(2U << 20), '-');  // a MiB that was not compared yet
  EXPECT_TRUE(wait_until(10s, [&] { return !read_uncached(*mount_ / "liba.so.1"); }));
  EXPECT_EQ(stats()["drift_files"], 1);
}

}  // namespace
}  // namespace heddle::test
