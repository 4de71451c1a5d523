// SPDX-License-Identifier: MIT
// fs-mount --reload: another map or another fs-mount at a mount point in use.

#include <sys/mman.h>
#include <sys/syscall.h>

#include <iostream>

#include "base/content_hash.hpp"
#include "base/run_directory.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/overlay/mount_users.hpp"

namespace heddle::test {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

inline std::string text_of(const std::string& path) { return value_or_throw(read_file(path)); }

/// Whether --reload removes the old mount. Before Linux 6.5 it stays beneath the new one, with its
/// daemon, until fs-mount -u.
inline bool removes_old_mount() { return value_or_throw(mount_stacking()) == Stacking::beneath; }

/// Checks the number of mounts after `exchanges`.
inline void expect_mounts(const Mount& mount, std::size_t exchanges) {
  EXPECT_EQ(mounts_with(" " + mount.path() + " "), removes_old_mount() ? 1 : 1 + exchanges);
}

/// Expects that the replaced `daemon` ends, where mounts stack after they are unmounted.
inline void expect_end_of_old(int daemon, const Mount& mount) {
  if (!removes_old_mount()) {
    EXPECT_TRUE(is_running(daemon));
    EXPECT_EQ(mount.unmount().status, 0);
    EXPECT_EQ(mounts_with(" " + mount.path() + " "), 0U);
  }
  EXPECT_TRUE(wait_until(std::chrono::seconds(10), [&] { return !is_running(daemon); }));
}

/// Two maps with equal, changed, removed and added files.
class Reload : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    for (const char* name : {"same", "changed", "gone", "plugins/p"})
      write_text_file(dir_ / std::string("one/") + name, std::string("one ") + name + "\n");
    std::filesystem::create_directories(dir_ / "two/plugins");
    for (const char* name : {"changed", "new", "plugins/q"})
      write_text_file(dir_ / std::string("two/") + name, std::string("two ") + name + "\n");
    MapMaker one, two;
    one.add_directory("v", dir_ / "one");
    one.write(dir_ / "map1");
    two.add_directory("v", dir_ / "two");
    two.add_name("v", "same", dir_ / "one/same");
    two.write(dir_ / "map2");
  }

  /// A map of 300 KB files of one character.
  std::string write_big_map(char c) {
    const std::string directory = dir_ / std::string("big-") + c;
    MapMaker maker;
    for (int i = 0; i < 20; ++i)
      write_text_file(directory + "/file" + std::to_string(i), std::string(300000, c));
    maker.add_directory("v", directory);
    return maker.write(dir_ / std::string("map-") + c);
  }

  RunResult reload(const Strings& arguments) const {
    Strings argv{fs_mount(), "--reload"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return run(argv);
  }
  TestDir dir_;
};

Strings list(const std::string& directory) {
  Strings out;
  for (const auto& entry : fs::directory_iterator(directory))
    out.push_back(entry.path().filename());
  return out;
}

std::string map_directory_of(const std::string& map) {
  return value_or_throw(MapReader::open(map)).id().hex().substr(0, 12);
}

TEST_F(Reload, new_map_replaces_the_old_one) {
  Mount m(dir_ / "map1", dir_ / "mnt");
  const int before = m.pid();
  EXPECT_THAT(list(m.path()),
              UnorderedElementsAre(".heddle", ".m", "v", "same", "changed", "gone", "plugins"));
  const auto done = reload({dir_ / "map2", m.path()});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(list(m.path()),
              UnorderedElementsAre(".heddle", ".m", "v", "same", "changed", "new", "plugins"));
  EXPECT_THAT(list(m / "plugins"), ElementsAre("q"));
  EXPECT_EQ(text_of(m / "changed"), "two changed\n");
  EXPECT_EQ(text_of(m / "v/new"), "two new\n");
  EXPECT_EQ(read_file(m / "gone").error().code(), ENOENT);
  EXPECT_EQ(text_of(m / ".heddle/map"), text_of(dir_ / "map2"));
  EXPECT_EQ(m.stat_text("map"), dir_ / "map2");
  expect_mounts(m, 1);
  const auto now = static_cast<int>(m.stat_number("supervisor_pid"));
  expect_end_of_old(before, m);
  if (removes_old_mount()) {
    EXPECT_EQ(m.unmount().status, 0);
  }
  EXPECT_TRUE(wait_until(10s, [&] { return !is_running(now); }));
}

TEST_F(Reload, open_and_mapped_files_keep_their_content_and_daemon) {
  const auto a = write_big_map('a'), b = write_big_map('b');
  Mount m(a, dir_ / "mnt", {"--prefetch", "0"});
  const int before = m.pid();
  auto file = value_or_throw(open_file(m / "file1", O_RDONLY));
  auto mapped = value_or_throw(open_file(m / "file2", O_RDONLY));
  const auto* bytes =
      static_cast<const char*>(::mmap(nullptr, 300000, PROT_READ, MAP_PRIVATE, mapped.get(), 0));
  ASSERT_NE(bytes, MAP_FAILED);
  mapped.reset();
  ASSERT_EQ(reload({b, m.path()}).status, 0);
  EXPECT_EQ(value_or_throw(read_all(file.get(), "file1")), std::string(300000, 'a'));
  EXPECT_EQ(std::string_view(bytes, 300000), std::string(300000, 'a'));
  EXPECT_EQ(text_of(m / "file1"), std::string(300000, 'b'));
  EXPECT_TRUE(is_running(before));
  ::kill(before, SIGTERM);  // a mount in use ends with its last user
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  char byte = 0;
  EXPECT_EQ(::pread(file.get(), &byte, 1, 100), 1);
  EXPECT_EQ(text_of(m / "file3"), std::string(300000, 'b')) << "the new daemon got no signal";
  file.reset();
  ::munmap(const_cast<char*>(bytes), 300000);
  expect_end_of_old(before, m);
}

TEST_F(Reload, names_of_previous_maps_link_to_the_original_files) {
  Mount m(dir_ / "map1", dir_ / "mnt");
  const auto one = map_directory_of(dir_ / "map1"), two = map_directory_of(dir_ / "map2");
  EXPECT_EQ(text_of(m / (".m/" + one + "/gone")), "one gone\n");
  ASSERT_EQ(reload({dir_ / "map2", m.path()}).status, 0);
  EXPECT_THAT(list(m / ".m"), UnorderedElementsAre(one, two));
  EXPECT_EQ(fs::read_symlink(m / (".m/" + one + "/gone")), fs::path(dir_ / "one/gone"));
  EXPECT_EQ(text_of(m / (".m/" + one + "/changed")), "one changed\n");
  EXPECT_EQ(text_of(m / (".m/" + one + "/plugins/p")), "one plugins/p\n");
  EXPECT_EQ(text_of(m / (".m/" + two + "/changed")), "two changed\n");
  EXPECT_NE(read_file(m / (".m/" + two + "/gone")), text_of(dir_ / "one/gone"));
  ASSERT_EQ(reload({dir_ / "map1", m.path()}).status, 0);
  EXPECT_EQ(fs::status(m / (".m/" + one)).type(), fs::file_type::directory);
  EXPECT_EQ(text_of(m / (".m/" + two + "/new")), "two new\n");
}

TEST_F(Reload, mount_links_the_last_sixteen_maps) {
  Mount m(dir_ / "map1", dir_ / "mnt");
  for (int i = 0; i < 18; ++i) {
    MapMaker maker;
    maker.add_name("v", "n" + std::to_string(i), dir_ / "one/same");
    ASSERT_EQ(
        reload({maker.write(dir_ / ("n" + std::to_string(i))), "--prefetch", "0", m.path()}).status,
        0);
  }
  EXPECT_EQ(list(m / ".m").size(), 17U);
  EXPECT_FALSE(fs::exists(m / (".m/" + map_directory_of(dir_ / "map1"))));
  EXPECT_FALSE(fs::exists(m / (".m/" + map_directory_of(dir_ / "n0"))));
  EXPECT_EQ(text_of(m / (".m/" + map_directory_of(dir_ / "n1") + "/n1")), "one same\n");
}

TEST_F(Reload, reload_without_a_map_takes_new_program_and_options) {
  Mount m(dir_ / "map1", dir_ / "mnt", {"--prefetch", "0"});
  fs::copy_file(fs_mount(), dir_ / "newer");
  const int before = m.pid();
  const auto done = run({dir_ / "newer", "--reload", "--threads", "1", m.path()});
  ASSERT_EQ(done.status, 0) << done.err;
  const auto now = m.stat_number("supervisor_pid");
  EXPECT_EQ(fs::read_symlink("/proc/" + std::to_string(now) + "/exe"), fs::path(dir_ / "newer"));
  EXPECT_EQ(text_of(m / "same"), "one same\n");
  {
    const Stopped stopped(m.worker());  // the new mount was warmed before the exchange
    EXPECT_EQ(::faccessat(AT_FDCWD, (m / "same").c_str(), F_OK, 0), 0);
  }
  fs::copy_file(dir_ / "map2", dir_ / "map1", fs::copy_options::overwrite_existing);
  const auto refused = reload({m.path()});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("map1 is now another map"));
  expect_end_of_old(before, m);
}

TEST_F(Reload, unusable_map_changes_nothing) {
  Mount m(dir_ / "map1", dir_ / "mnt");
  auto bytes = text_of(dir_ / "map2");
  bytes[bytes.size() / 2] ^= 1;
  write_text_file(dir_ / "damaged", bytes);
  MapMaker maker;
  write_text_file(dir_ / "three/x", "x");
  maker.add_directory("v", dir_ / "three");
  maker.write(dir_ / "unfit");
  write_text_file(dir_ / "three/x", "another x");
  const std::pair<const char*, const char*> cases[] = {
      {"missing", "No such file"}, {"damaged", "damaged map"}, {"unfit", "does not fit this node"}};
  for (const auto& [name, why] : cases) {
    const auto refused = reload({dir_ / name, m.path()});
    EXPECT_EQ(refused.status, 3) << name;
    EXPECT_THAT(refused.err, AllOf(HasSubstr(dir_ / name), HasSubstr(why)));
  }
  EXPECT_EQ(m.stat_number("supervisor_pid"), static_cast<std::uint64_t>(m.pid()));
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 1U);
}

TEST_F(Reload, reload_without_a_heddle_mount_fails) {
  for (const auto& directory : {dir_.path(), dir_ / "nothing"})
    EXPECT_EQ(reload({dir_ / "map2", directory}).status, 3);
  EXPECT_EQ(reload({}).status, 2);
  EXPECT_EQ(reload({"-f", dir_ / "map2", dir_.path()}).status, 2);
  Mount m(dir_ / "map1", dir_ / "mnt");
  ::kill(m.pid(), SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); }));
  EXPECT_EQ(reload({m.path()}).status, 3);
}

TEST_F(Reload, reload_without_mount_rights_fails_with_a_hint) {
  fs::permissions(dir_.path(), fs::perms(0755));
  Mount m(dir_ / "map1", dir_ / "mnt");
  fs::copy_file(fs_mount(), dir_ / "fs-mount");  // the user may not reach the stage
  const auto refusal = [&](Strings argv) {
    argv.insert(argv.begin(), "setpriv");
    argv.insert(argv.end(), {dir_ / "fs-mount", "--reload", m.path()});
    const auto refused = run(argv);
    EXPECT_EQ(refused.status, 3);
    return refused.err;
  };
  EXPECT_THAT(refusal({"--reuid=1500", "--regid=1500", "--clear-groups"}),
              HasSubstr("the mount belongs to another user"));
  // The owner without the right to mount, like a user of fusermount3.
  EXPECT_THAT(refusal({"--bounding-set=-all"}),
              HasSubstr("hint: it takes the right to mount here (CAP_SYS_ADMIN)"));
  EXPECT_EQ(m.stat_number("supervisor_pid"), static_cast<std::uint64_t>(m.pid()));
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 1U);
}

TEST_F(Reload, concurrent_reloads_exclude_each_other) {
  Mount m(dir_ / "map1", dir_ / "mnt");
  const auto directory = value_or_throw(RunDirectory::open());
  auto other = value_or_throw(directory.lock("reload " + m.path(), 1s));
  EXPECT_EQ(reload({dir_ / "map2", m.path()}).status, 3);
  other.reset();
  std::atomic<int> done = 0;
  {
    std::vector<std::jthread> all;
    for (int i = 0; i < 6; ++i)
      all.emplace_back([&, i] {
        done += reload({dir_ / (i % 2 ? "map1" : "map2"), m.path(), "--prefetch", "0"}).status == 0;
      });
  }
  EXPECT_GT(done, 0);
  expect_mounts(m, static_cast<std::size_t>(done));
  EXPECT_EQ(text_of(m / "same"), "one same\n");
}

TEST_F(Reload, killed_reload_leaves_the_old_or_the_new_map) {
  if (::syscall(SYS_fsopen, "", ~0U) < 0 && errno == ENOSYS)
    HEDDLE_SKIP("before Linux 5.2 a killed reload leaves a mount with a dead daemon");
  Mount m(dir_ / "map1", dir_ / "mnt", {"--prefetch", "0"});
  for (int i = 0; i < 40; ++i) {
    auto child = value_or_throw(spawn(fs_mount(), {"fs-mount", "--reload", "--prefetch", "0",
                                                   dir_ / (i % 2 ? "map1" : "map2"), m.path()}));
    std::this_thread::sleep_for(std::chrono::microseconds(1500 * i));
    ::kill(child.pid(), SIGKILL);
    (void)child.wait();
    EXPECT_EQ(text_of(m / "same"), "one same\n");
  }
  ASSERT_EQ(reload({dir_ / "map2", m.path()}).status, 0);
  if (!removes_old_mount()) return;
  expect_mounts(m, 41);
  // Daemons of killed reloads have ended.
  const auto now = m.stat_number("supervisor_pid");
  EXPECT_TRUE(wait_until(10s, [&] {
    const auto others = run({"pgrep", "-f", "fs-mount .*" + m.path() + "$"}).out;
    return others.find_first_not_of("0123456789\n") == std::string::npos &&
           std::count(others.begin(), others.end(), '\n') <= 2 &&
           others.find(std::to_string(now)) != std::string::npos;
  })) << run({"pgrep", "-af", m.path()}).out;
}

TEST_F(Reload, unmount_removes_all_stacked_mounts) {
  Mount m(dir_ / "map1", dir_ / "mnt");
  // Stacked mounts, as before Linux 6.5.
  run_checked({"mount", "--bind", m.path(), m.path()});
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 2U);
  EXPECT_EQ(m.unmount().status, 0);
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 0U);
}

TEST_F(Reload, reload_changes_only_its_own_mount_namespace) {
  Mount m(dir_ / "map1", dir_ / "mnt");
  auto other = value_or_throw(spawn("/usr/bin/unshare", {"unshare", "-m", "sleep", "100"}));
  const auto process = "/proc/" + std::to_string(other.pid());
  ASSERT_TRUE(wait_until(10s, [&] { return text_of(process + "/comm") == "sleep\n"; }));
  ASSERT_EQ(reload({dir_ / "map2", m.path()}).status, 0);
  EXPECT_EQ(text_of(m / "changed"), "two changed\n");
  EXPECT_EQ(text_of(process + "/root" + (m / "changed")), "one changed\n");
  ::kill(other.pid(), SIGKILL);
  (void)other.wait();
  expect_end_of_old(m.pid(), m);
}

/// Writes `map` to `path` with the files of `other` in place of `farm`'s libraries.
std::string write_exchanged_map(const std::string& map, const ElfFarm& farm, const ElfFarm& other,
                                const std::string& path) {
  auto content = value_or_throw(value_or_throw(MapReader::open(map)).read_all());
  const auto exchange = [&](std::string& file) {
    for (std::size_t i = 0; i < farm.libraries.size(); ++i)
      if (file == farm.libraries[i]) {
        file = other.libraries[i];
        return true;
      }
    return false;
  };
  for (auto& object : content.objects) {
    if (!exchange(object.path)) continue;
    struct stat st {};
    EXPECT_EQ(::stat(object.path.c_str(), &st), 0);
    object.stamp = file_stamp(st);
    object.hash = hash_bytes(value_or_throw(read_file(object.path)));
  }
  for (auto& [file, id] : content.paths) (void)exchange(file);
  std::sort(content.paths.begin(), content.paths.end());
  value_or_throw(write_map(content, path));
  return path;
}

TEST_F(Reload, starts_during_reloads_never_fail_or_mix_maps) {
  HEDDLE_STAGED(resolve, "fs-resolve");
  HEDDLE_STAGED(audit, "libheddle-audit.so");
  const FarmOptions options{.libraries = 100};
  FarmOptions others = options;
  others.first_number = 1000;
  const auto farm = ElfFarm::build(dir_ / "farm1", options);
  const auto other = ElfFarm::build(dir_ / "farm2", others);
  run_checked({resolve, "build", "-o", dir_ / "farm-a", farm.program});
  const Strings maps = {dir_ / "farm-a",
                        write_exchanged_map(dir_ / "farm-a", farm, other, dir_ / "farm-b")};
  fs::copy_file(fs_mount(), dir_ / "newer");
  const Strings programs = {fs_mount(), dir_ / "newer"};
  Mount m(maps[0], dir_ / "mnt", {"--prefetch", "0"});
  RunOptions guided;
  guided.env = {"LD_AUDIT=" + audit, "HEDDLE_INDEX=" + m / ".heddle/index"};
  ASSERT_EQ(run({farm.program}, guided).out, farm.output);
  ASSERT_EQ(reload({maps[1], m.path()}).status, 0);
  ASSERT_EQ(run({farm.program}, guided).out, other.output);
  std::atomic<int> starts = 0, wrong = 0, of_b = 0;
  int exchanges = 0;
  {
    std::vector<std::jthread> loops;
    for (int i = 0; i < 4; ++i)
      loops.emplace_back([&](const std::stop_token& stop) {
        for (; !stop.stop_requested(); ++starts) {
          const auto ran = run({farm.program}, guided);
          of_b += ran.out == other.output;
          if (ran.status == 0 && (ran.out == farm.output || ran.out == other.output)) continue;
          if (++wrong < 5) ADD_FAILURE() << ran.status << " '" << ran.out << "' " << ran.err;
        }
      });
    for (const auto end = std::chrono::steady_clock::now() + time_to_spend();
         std::chrono::steady_clock::now() < end; ++exchanges) {
      const auto done = run({programs[exchanges % 4 / 2], "--reload", "--prefetch", "0",
                             maps[exchanges % 2], m.path()});
      EXPECT_EQ(done.status, 0) << done.err;
    }
  }
  std::cout << exchanges << " exchanges, " << starts << " starts, " << of_b << " of the second\n";
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(of_b, 0);
  EXPECT_GT(starts - of_b, 0);
  expect_mounts(m, static_cast<std::size_t>(exchanges) + 1);
  const auto last = static_cast<int>(m.stat_number("supervisor_pid"));
  EXPECT_EQ(m.unmount().status, 0);
  EXPECT_TRUE(wait_until(10s, [&] {
    return !is_running(last) && run({"pgrep", "-f", "fs-mount.*" + m.path() + "$"}).out.empty();
  }));
}

}  // namespace
}  // namespace heddle::test
