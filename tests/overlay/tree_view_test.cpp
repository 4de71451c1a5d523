// SPDX-License-Identifier: MIT
// Directory trees of a map, at `.t` of a mount, compared with the originals.

#include <grp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/mount_service.hpp"
#include "base/mounts.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/overlay/origin_fs.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::string random_bytes(std::size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string out(size, '\0');
  for (auto& c : out) c = static_cast<char>(random());
  return out;
}

struct stat status_of(const std::string& path) {
  struct stat out {};
  if (::lstat(path.c_str(), &out) != 0) throw Error::from_errno(path, "lstat");
  return out;
}

std::set<std::string> names_below(const std::string& directory) {
  std::set<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    out.insert(entry.path().lexically_relative(directory).string());
  return out;
}

class TreeView : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    fs::permissions(dir_.path(), fs::perms(0755));
    fs::create_directory(source());
  }
  std::string source() const { return dir_ / "src"; }
  std::string native(const std::string& name) const { return source() + "/" + name; }
  std::string add(const std::string& name, const std::string& content, unsigned mode = 0644) {
    return write_text_file(native(name), content, mode);
  }
  /// Serves `directory`, else the source.
  void mount(std::vector<std::string> options = {}, const std::string& directory = {}) {
    MapMaker maker;
    maker.add_tree(directory.empty() ? source() : directory);
    options.insert(options.end(), {"--prefetch", "0", "--log", dir_ / "log"});
    mount_.emplace(maker.write(dir_ / "map"), dir_ / "mnt", std::move(options));
  }
  std::string served(const std::string& name) const { return *mount_ / (".t/0/" + name); }
  nlohmann::json stats() const {
    return nlohmann::json::parse(value_or_throw(read_stats_text(mount_->path())));
  }
  std::uint64_t requests(const std::string& kind) const { return stats()["requests"][kind]; }
  /// Requests but for those of stats().
  std::uint64_t requests() const {
    const auto now = stats();
    return now["requests_total"].get<std::uint64_t>() -
           now["requests"]["getxattr"].get<std::uint64_t>();
  }
  std::string log() const { return read_file(dir_ / "log").value_or(""); }

  TestDir dir_;
  std::optional<Mount> mount_;
};

TEST_F(TreeView, every_name_attribute_and_byte_equals_the_original) {
  add("empty", "");
  add("one byte", "x", 0600);
  add("big", random_bytes(3'000'001, 1), 0444);
  add("exactly a MiB", random_bytes(1U << 20, 2));
  add("tool", "#!/bin/sh\n", 0755);
  add("deep/er/and/deeper/file", "deep");
  add("tab\tnewline\nquote\"back\\slash", "odd");
  add("b\xC3\xBC"
      "cher \xE2\x98\x83",
      "utf-8");
  add("not utf-8 \xFF\xFE", "bytes");
  add(std::string(255, 'n'), "long");
  for (int i = 0; i < 3000; ++i) add("many/m" + std::to_string(i) + ".py", std::to_string(i));
  fs::create_directory(native("no entries"));
  fs::permissions(native("deep/er"), fs::perms(0700));
  fs::create_symlink("deep/er", native("link"));
  fs::create_symlink("/nonexistent/" + std::string(4000, 'x'), native("dangling"));
  fs::create_hard_link(native("big"), native("deep/hard"));
  ASSERT_EQ(::lchown(native("empty").c_str(), 1234, 2345), 0);
  const timespec times[] = {{1, 2}, {-7, 123456789}};
  ASSERT_EQ(::utimensat(AT_FDCWD, native("tool").c_str(), times, 0), 0);
  mount();
  ASSERT_EQ(names_below(source()), names_below(served("")));
  auto names = names_below(source());
  names.insert("");
  std::map<ino_t, ino_t> numbers;
  for (const auto& name : names) {
    const auto a = status_of(native(name)), b = status_of(served(name));
    EXPECT_EQ(a.st_mode, b.st_mode) << name;
    EXPECT_EQ(a.st_size, b.st_size) << name;
    EXPECT_EQ(a.st_uid, b.st_uid) << name;
    EXPECT_EQ(a.st_gid, b.st_gid) << name;
    EXPECT_EQ(a.st_nlink, b.st_nlink) << name;
    EXPECT_EQ(file_stamp(a).mtime_ns, file_stamp(b).mtime_ns) << name;
    EXPECT_EQ(b.st_atim.tv_nsec, b.st_mtim.tv_nsec) << name;
    EXPECT_GE(b.st_ino, std::uint64_t{1} << 32) << name;
    const auto [known, fresh] = numbers.emplace(a.st_ino, b.st_ino);
    EXPECT_EQ(known->second, b.st_ino) << name;
    if (S_ISLNK(a.st_mode)) {
      EXPECT_EQ(fs::read_symlink(native(name)), fs::read_symlink(served(name)));
    }
    if (!S_ISREG(a.st_mode)) continue;
    EXPECT_EQ(value_or_throw(read_file(native(name))), value_or_throw(read_file(served(name))))
        << name;
  }
  EXPECT_EQ(status_of(served("")).st_ino, (std::uint64_t{1} << 32) + 1);
  EXPECT_EQ(stats()["trees"], 1);
  EXPECT_EQ(stats()["tree_entries"], names.size());
  EXPECT_EQ(stats()["tree_changed_files"], 0);
  char list[8];
  EXPECT_EQ(::listxattr(served("big").c_str(), list, sizeof(list)), 0);
  EXPECT_EQ(::getxattr(served("big").c_str(), "user.x", list, sizeof(list)), -1);
  EXPECT_EQ(errno, ENODATA);
}

TEST_F(TreeView, later_processes_ask_for_no_name_content_or_attribute) {
  for (int i = 0; i < 300; ++i) add("p" + std::to_string(i) + "/__init__.py", "x");
  fs::create_directory_symlink("p0", native("link"));
  mount();
  const auto visit = [&] {
    const std::string script =
        "import os,sys\n"
        "for i in range(300):\n"
        "  d=sys.argv[1]+'/p%d'%i\n"
        "  os.listdir(d)\n"
        "  for n in ('', '/__init__.py','/none.py','/__init__.so','/a/b'):\n"
        "    try: os.stat(d+n)\n"
        "    except OSError: pass\n"
        "  open(d+'/__init__.py').read()\n"
        "os.readlink(sys.argv[1]+'/link')\n"
        "os.stat(sys.argv[1]+'/link/none.py')";
    return run({"python3", "-I", "-c", script, served("")});
  };
  if (visit().status == 127) HEDDLE_SKIP("no python3");
  // The second process has GETATTRs: the kernel takes a READ for a change of atime where a mount is
  // not read-only (fs/fuse/file.c, fuse_invalidate_atime). Others on this machine may have the
  // kernel drop caches.
  bool quiet = false;
  for (int tries = 0; tries < 5 && !quiet; ++tries) {
    EXPECT_THAT(visit().err, HasSubstr("none.py"));
    auto before = stats()["requests"];
    (void)visit();
    auto after = stats()["requests"];
    // Python's isatty(3) at each open, before 3.13; the kernel remembers no answer to that.
    for (const char* kind : {"getxattr", "ioctl"}) before[kind] = after[kind] = 0;
    quiet = before == after;
    if (!quiet) std::cout << before << "\n" << after << "\n";
  }
  EXPECT_TRUE(quiet);
}

TEST_F(TreeView, reads_at_any_position_equal_the_original) {
  const auto bytes = random_bytes(5'000'003, 7);
  add("file", bytes);
  mount();
  std::mt19937 random(1);
  std::string buffer(2U << 20, '\0');
  for (int i = 0; i < 300; ++i) {
    const auto file = value_or_throw(open_file(served("file"), O_RDONLY));
    if (i % 3 == 0) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    const std::size_t at = random() % (bytes.size() + 10'000);
    const std::size_t size = random() % buffer.size();
    const auto got = ::pread(file.get(), buffer.data(), size, static_cast<off_t>(at));
    const auto expected =
        at < bytes.size() ? std::string_view(bytes).substr(at, size) : std::string_view();
    ASSERT_EQ(got, static_cast<ssize_t>(expected.size()));
    ASSERT_TRUE(std::string_view(buffer).starts_with(expected)) << at << " " << size;
  }
}

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

TEST_F(TreeView, sixty_four_processes_read_and_stat_at_once) {
  for (int i = 0; i < 200; ++i)
    add("p" + std::to_string(i) + "/m.py", random_bytes(20'000, unsigned(i)));
  mount();
  std::vector<pid_t> children;
  for (int child = 0; child < 64; ++child) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      int wrong = 0;
      for (int i = 0; i < 200; ++i) {
        const auto directory = "p" + std::to_string(i);
        struct stat st {};
        wrong += ::stat(served(directory + "/none.py").c_str(), &st) == 0;
        wrong += ::stat(served(directory + "/m.py").c_str(), &st) != 0 || st.st_size != 20'000;
        wrong += read_file(served(directory + "/m.py")).value_or("") !=
                 random_bytes(20'000, unsigned(i));
      }
      ::_exit(wrong != 0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = -1;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  // More where the kernel has had to drop pages meanwhile.
  EXPECT_LT(stats()["tree_bytes_read"], 2 * 200 * 20'000);
}

/// Memory of a daemon in bytes: its private pages, and its part of shared ones.
std::uint64_t memory_of(const Mount& mount) {
  std::uint64_t kib = 0;
  for (const int pid : {mount.pid(), mount.worker()}) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/smaps_rollup");
    for (std::string word; in >> word;)
      if (word == "Pss:" && in >> word) kib += std::stoull(word);
  }
  return kib * 1024;
}

TEST_F(TreeView, two_hundred_thousand_entries_cost_little_time_and_memory) {
  const auto make = [&](int packages) {
    TreeIndexWriter::Entry root{.mode = S_IFDIR | 0755};
    for (int i = 0; i < packages; ++i) {
      auto& package = root.children.emplace_back(TreeIndexWriter::Entry{
          .name = "package" + std::to_string(i), .mode = S_IFDIR | 0755, .links = 2});
      for (int j = 0; j < 99; ++j)
        package.children.push_back(
            {.name = "module_" + std::to_string(j) + ".py", .mode = S_IFREG | 0644, .size = 1000});
    }
    MapContent content;
    content.trees.push_back({source(), value_or_throw(TreeIndexWriter::encode(std::move(root)))});
    value_or_throw(heddle::write_map(content, dir_ / "map"));
  };
  const auto mount_in = [&] {
    const auto begin = std::chrono::steady_clock::now();
    mount_.emplace(dir_ / "map", dir_ / "mnt", std::vector<std::string>{"--prefetch", "0"});
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin);
  };
  make(1);
  const auto small = mount_in();
  const auto before = memory_of(*mount_);
  mount_.reset();
  make(2000);
  auto large = mount_in();
  for (int i = 0; i < 4; ++i) {
    mount_.reset();
    large = std::min(large, mount_in());
  }
  const double each = static_cast<double>(memory_of(*mount_) - before) / 200'000;
  std::cout << small.count() << " ms with 100 entries, " << large.count() << " ms with 200,001; "
            << each << " bytes an entry\n";
  if (!kSanitized) {
    EXPECT_LT(each, 200);
    EXPECT_LT((large - small).count(), 400);  // a quarter of that on an idle machine
  }
  EXPECT_EQ(status_of(served("package1999/module_98.py")).st_size, 1000);
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

TEST_F(TreeView, original_is_asked_for_each_directory_once_and_for_each_file_and_mib_a_few_times) {
  constexpr std::size_t kSize = (3U << 20) + 5;
  for (int i = 0; i < 50; ++i) add("a/b/p" + std::to_string(i) + "/m.py", "x");
  add("a/b/large", random_bytes(kSize, 3));
  SlowMount slow(source(), dir_ / "slow", dir_ / "counts");
  mount({}, slow.directory());
  (void)names_below(served(""));
  ASSERT_EQ(::access(served("a/b/none").c_str(), F_OK), -1);
  EXPECT_EQ(slow.counts().missing.size(), 0U);
  (void)slow.reset();
  {
    // Several at once ask for the same directories.
    std::vector<std::jthread> readers;
    for (int t = 0; t < 8; ++t)
      readers.emplace_back([&] {
        for (int i = 0; i < 50; ++i)
          EXPECT_EQ(read_file(served("a/b/p" + std::to_string(i) + "/m.py")).value_or(""), "x");
      });
  }
  EXPECT_EQ(value_or_throw(read_file(served("a/b/large"))), random_bytes(kSize, 3));
  ASSERT_EQ(mount_->unmount().status, 0);  // closes the files
  ASSERT_TRUE(wait_until(5s, [&] { return !is_running(mount_->pid()); }));
  const auto counts = slow.counts();
  EXPECT_EQ(counts.directories.size(), 52U);
  EXPECT_EQ(SlowCounts::most(counts.directories).first, 1U);
  EXPECT_EQ(counts.missing.size(), 0U);
  EXPECT_EQ(counts.files.size(), 51U);
  for (const auto& [path, requests] : counts.files)
    EXPECT_LE(SlowCounts::sum(requests), path == "a/b/large" ? 4U + 4U : 4U + 1U)
        << path << " " << nlohmann::json(requests);
}

TEST_F(TreeView, original_of_a_library_is_asked_for_each_mib_once) {
  constexpr std::size_t kSize = (6U << 20) + 5;
  constexpr unsigned kParts = 7;
  add("liba.so.1", random_bytes(kSize, 3));
  SlowMount slow(source(), dir_ / "slow", dir_ / "counts");
  MapMaker maker;
  maker.add_name("v", "liba.so.1", slow.directory() + "/liba.so.1");
  maker.write(dir_ / "map");
  (void)slow.reset();
  mount_.emplace(dir_ / "map", dir_ / "mnt");
  mount_->wait_for_prefetch();
  EXPECT_EQ(value_or_throw(read_file(*mount_ / "liba.so.1")), random_bytes(kSize, 3));
  ASSERT_EQ(mount_->unmount().status, 0);  // closes the file
  ASSERT_TRUE(wait_until(5s, [&] { return !is_running(mount_->pid()); }));
  const auto counts = slow.counts();
  auto requests = counts.files.at("liba.so.1");
  // One may be asked for by two at once, or was reclaimed.
  EXPECT_LE(requests["READ"], kParts + 1U) << nlohmann::json(requests);
  // By the kernel each time that it is opened, and by the daemon to see that it is unchanged.
  EXPECT_LE(requests["GETATTR"], kParts + 4U) << nlohmann::json(requests);
  EXPECT_LE(SlowCounts::sum(requests) - requests["READ"] - requests["GETATTR"], 5U);
  EXPECT_EQ(counts.missing.size(), 0U);
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

TEST_F(TreeView, mounting_many_trees_looks_each_up_and_asks_nothing_else) {
  for (int i = 0; i < 20; ++i) add("t" + std::to_string(i) + "/m.py", "x");
  SlowMount slow(source(), dir_ / "slow", dir_ / "counts");
  MapMaker maker;
  for (int i = 0; i < 20; ++i) maker.add_tree(slow.directory() + "/t" + std::to_string(i));
  const auto map = maker.write(dir_ / "many.map");
  (void)slow.reset();
  const Mount mount(map, dir_ / "many", {"--prefetch", "0"});
  auto counts = slow.counts();
  EXPECT_EQ(counts.opcodes["LOOKUP"], 20U);
  EXPECT_EQ(counts.opcodes["STATFS"], 0U);
  EXPECT_LE(counts.opcodes["GETATTR"], 1U);  // of the root, by the kernel
}

TEST_F(TreeView, only_its_owner_reaches_a_tree_through_the_mount) {
  add("file", "x");
  mount();
  EXPECT_EQ(
      run({"setpriv", "--reuid=1511", "--regid=1511", "--clear-groups", "cat", served("file")})
          .status,
      1);
  EXPECT_EQ(status_of(*mount_ / ".t").st_mode & 07777U, 0500U);
  EXPECT_EQ(status_of(*mount_ / ".heddle/map").st_mode & 07777U, 0400U);
}

TEST_F(TreeView, excluded_directory_is_empty_and_mounts_over_it_show) {
  add("in/file", "x");
  add("out/file", "y");
  MapMaker maker;
  maker.add_tree(source(), {}, native("out"));
  mount_.emplace(maker.write(dir_ / "map"), dir_ / "mnt");
  EXPECT_EQ(names_below(served("")), (std::set<std::string>{"in", "in/file", "out"}));
  ASSERT_EQ(::mount(native("out").c_str(), served("out").c_str(), nullptr, MS_BIND, nullptr), 0);
  EXPECT_EQ(read_file(served("out/file")).value_or(""), "y");
  ::umount2(served("out").c_str(), MNT_DETACH);
}

/// What a user sees of a file, natively and in the mount: errno or 0 of reading it, and its owner.
std::string seen_of(const std::string& path) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) return "no status";
  const auto text = read_file(path);
  return (text ? "read" : std::to_string(text.error().code())) + " " + std::to_string(st.st_uid) +
         ":" + std::to_string(st.st_gid);
}

/// Mounts in a user namespace, sends the device, and then exits with the number of `names` that
/// look other than natively.
int compare_in_user_namespace(int socket, const std::string& mount_point, const std::string& native,
                              const std::vector<std::string>& names) {
  if (!enter_private_namespace(NamespaceKind::user_and_mount)) return 101;
  {
    const auto device = open_fuse_device();
    if (!device || !mount_fuse_device(device->get(), mount_point, Writes::refused_by_daemon) ||
        !send_fd(socket, device->get()))
      return 102;
  }
  char go = 0;
  if (::read(socket, &go, 1) != 1) return 103;
  int wrong = 0;
  for (const auto& name : names) {
    const auto a = seen_of(native + "/" + name), b = seen_of(mount_point + "/.t/0/" + name);
    if (a != b) std::cerr << name << ": natively " << a << ", served " << b << "\n", ++wrong;
  }
  return wrong;
}

TEST_F(TreeView, user_namespace_shows_owners_and_grants_reads_as_natively) {
  constexpr unsigned kUser = 1511, kGroup = 1600;
  const std::vector<std::string> names = {
      "own",    "of the group",          "not of the group",      "closed",
      "public", "closed directory/file", "group's directory/file"};
  for (const auto& name : names) add(name, "content");
  const auto give = [&](const std::string& name, unsigned owner, unsigned group, unsigned mode) {
    ASSERT_EQ(::chown(native(name).c_str(), owner, group), 0);
    ASSERT_EQ(::chmod(native(name).c_str(), mode), 0);
  };
  give("own", kUser, kUser, 0600);
  give("of the group", 0, kGroup, 0640);
  give("not of the group", 0, kGroup, 0604);
  give("closed", 0, 0, 0600);
  give("closed directory", 0, 0, 0700);
  give("group's directory", 0, kGroup, 0750);
  MapMaker maker;
  maker.add_tree(source());
  maker.write(dir_ / "map");
  fs::create_directory(dir_ / "mnt");
  fs::copy_file(fs_mount(), dir_ / "fs-mount");
  const pid_t user = ::fork();
  if (user == 0) {
    // /dev/fuse is open to all, as on most nodes.
    const auto node = dir_ / "fuse";
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mknod(node.c_str(), S_IFCHR | 0666, ::makedev(10, 229)) != 0 ||
        ::chmod(node.c_str(), 0666) != 0 ||
        ::mount(node.c_str(), "/dev/fuse", nullptr, MS_BIND, nullptr) != 0)
      ::_exit(96);
    const gid_t groups[] = {kGroup};
    if (::setgroups(1, groups) != 0 || ::setgid(kUser) != 0 || ::setuid(kUser) != 0 ||
        ::prctl(PR_SET_DUMPABLE, 1) != 0)
      ::_exit(99);
    auto mounting = value_or_throw(make_socket_pair());
    const pid_t inside = ::fork();
    if (inside == 0)
      ::_exit(compare_in_user_namespace(mounting.other.get(), dir_ / "mnt", source(), names));
    mounting.other.reset();
    const auto device = receive_fd(mounting.one.get());
    if (!device) ::_exit(98);
    auto ready = value_or_throw(make_socket_pair());
    SpawnOptions options;
    options.fds = {{device->get(), 7}, {ready.other.get(), 9}};
    auto daemon = value_or_throw(spawn(dir_ / "fs-mount",
                                       {"fs-mount", "--fuse-fd", "7", "--ready-fd", "9",
                                        "--mount-point", dir_ / "mnt", dir_ / "map"},
                                       options));
    ready.other.reset();
    if (!await_ready(ready.one.get())) ::_exit(97);
    (void)!::write(mounting.one.get(), "+", 1);
    int status = 0;
    ::waitpid(inside, &status, 0);
    (void)daemon.release();
    ::_exit(WEXITSTATUS(status));
  }
  int status = 0;
  ::waitpid(user, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(TreeView, program_that_lies_in_a_tree_is_guided) {
  HEDDLE_STAGED(auditor, "libheddle-audit.so");
  const auto library = build_library({.output = dir_ / "elsewhere/libword.so.1",
                                      .source = "int word(void){return 42;}",
                                      .flags = {"-Wl,-soname,libword.so.1"}});
  build_program({.output = native("v1/app"),
                 .source = "int word(void);int main(void){return word();}",
                 .flags = {library}});
  fs::create_directory_symlink("v1", native("current"));
  MapMaker maker;
  maker.add_tree(source());
  maker.add_name("v", "libword.so.1", library);
  maker.add_file(native("current/app"));
  auto content = maker.content();
  const auto id_of = [&](const std::string& path) { return *find_name(content.paths, path); };
  MapProgram program;
  program.path = native("current/app");
  program.object = id_of(program.path);
  program.guided = {{"libword.so.1", id_of(library)}};
  content.programs.push_back(program);
  value_or_throw(heddle::write_map(content, dir_ / "map"));
  mount_.emplace(dir_ / "map", dir_ / "mnt");
  const auto start = [&](const std::string& before) {
    return run({"unshare", "-m", "sh", "-c", before + "exec \"$0\"", native("current/app")},
               {.env = {"LD_AUDIT=" + auditor, "HEDDLE_INDEX=" + (*mount_ / ".heddle/index")}});
  };
  const auto original = start("");
  EXPECT_EQ(original.status, 42) << original.err;
  const auto inside = start("mount --bind " + served("") + " " + source() + " && ");
  EXPECT_EQ(inside.status, 42) << inside.err;
}

TEST_F(TreeView, objects_in_hundreds_of_trees_cost_little_time) {
  constexpr int kTrees = 1000, kLibraries = 1000;
  for (int i = 0; i < kLibraries; ++i) write_text_file(dir_ / "lib/n" + std::to_string(i), "x");
  for (int i = 0; i < kTrees; ++i) add("t" + std::to_string(i) + "/file", "x");
  const auto best_of = [&](int trees) {
    MapMaker maker;
    maker.add_directory("v", dir_ / "lib");
    for (int i = 0; i < trees; ++i) maker.add_tree(native("t" + std::to_string(i)));
    maker.write(dir_ / "map");
    auto best = 1e9;
    for (int i = 0; i < 5; ++i) {
      mount_.reset();
      const auto begin = std::chrono::steady_clock::now();
      mount_.emplace(dir_ / "map", dir_ / "mnt", std::vector<std::string>{"--prefetch", "0"});
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - begin;
      best = std::min(best, took.count());
    }
    return best;
  };
  const auto without = best_of(0), with = best_of(kTrees);
  std::cout << without << " ms without trees, " << with << " ms with " << kTrees << "\n";
  if (!kSanitized) {
    EXPECT_LT(with - without, 300);  // a tenth of that on an idle machine
  }
}

}  // namespace
}  // namespace heddle::test
