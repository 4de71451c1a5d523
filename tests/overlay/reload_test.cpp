// SPDX-License-Identifier: MIT
// fs-mount --reload: another map, or another fs-mount, at a mount point in use.
//
// HEDDLE_TEST_SECONDS: how long maps are exchanged under starts (3).

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <thread>

#include "base/child.hpp"
#include "base/content_hash.hpp"
#include "base/run_directory.hpp"
#include "base/sandbox/privileges.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/overlay/reload_support.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

Strings list(const std::string& directory) {
  Strings out;
  for (const auto& entry : fs::directory_iterator(directory))
    out.push_back(entry.path().filename());
  return out;
}

std::string map_directory_of(const std::string& map) {
  return value_or_throw(MapReader::open(map)).id().hex().substr(0, 12);
}

TEST_F(Reload, another_map_takes_the_place_of_the_first) {
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
  if (takes_old_off()) {
    EXPECT_EQ(m.unmount().status, 0);
  }
  EXPECT_TRUE(wait_until(10s, [&] { return !is_running(now); }));
}

TEST_F(Reload, what_is_open_or_mapped_keeps_its_content_and_its_daemon) {
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
  ::kill(before, SIGTERM);  // as to any mount that is in use: it ends with its last user
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  char byte = 0;
  EXPECT_EQ(::pread(file.get(), &byte, 1, 100), 1);
  EXPECT_EQ(text_of(m / "file3"), std::string(300000, 'b')) << "the signal is not for the new one";
  file.reset();
  ::munmap(const_cast<char*>(bytes), 300000);
  expect_end_of_old(before, m);
}

TEST_F(Reload, names_of_maps_before_lead_to_the_original_files) {
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
  EXPECT_EQ(fs::read_symlink(m / (".m/" + one)), "..");
  EXPECT_EQ(text_of(m / (".m/" + two + "/new")), "two new\n");
}

TEST_F(Reload, names_of_the_last_sixteen_maps_are_kept) {
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

TEST_F(Reload, the_mount_alone_is_served_by_this_program_with_the_options_given) {
  Mount m(dir_ / "map1", dir_ / "mnt", {"--prefetch", "0"});
  fs::copy_file(fs_mount(), dir_ / "newer");
  const int before = m.pid();
  const auto done = run({dir_ / "newer", "--reload", "--threads", "1", m.path()});
  ASSERT_EQ(done.status, 0) << done.err;
  const auto now = m.stat_number("supervisor_pid");
  EXPECT_EQ(fs::read_symlink("/proc/" + std::to_string(now) + "/exe"), fs::path(dir_ / "newer"));
  EXPECT_EQ(text_of(m / "same"), "one same\n");
  {
    const Stopped stopped(m.worker());  // it was warm before it took the place
    EXPECT_EQ(::faccessat(AT_FDCWD, (m / "same").c_str(), F_OK, 0), 0);
  }
  fs::copy_file(dir_ / "map2", dir_ / "map1", fs::copy_options::overwrite_existing);
  const auto refused = reload({m.path()});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("map1 is another map by now"));
  expect_end_of_old(before, m);
}

TEST_F(Reload, what_cannot_be_served_changes_nothing) {
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

TEST_F(Reload, where_no_mount_of_heddles_is_it_says_so) {
  EXPECT_THAT(reload({dir_ / "map2", dir_.path()}).err, HasSubstr("no heddle mount is here"));
  EXPECT_EQ(reload({dir_ / "map2", dir_ / "nothing"}).status, 3);
  EXPECT_EQ(reload({}).status, 2);
  EXPECT_EQ(reload({"-f", dir_ / "map2", dir_.path()}).status, 2);
  Mount m(dir_ / "map1", dir_ / "mnt");
  ::kill(m.pid(), SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); }));
  const auto dead = reload({m.path()});
  EXPECT_EQ(dead.status, 3);
  EXPECT_THAT(dead.err, HasSubstr("its daemon has died"));
}

/// fs-mount with `arguments` in a process that `prepare` has changed.
RunResult run_changed(const std::function<bool()>& prepare, const Strings& arguments,
                      const std::string& output) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int out = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ::dup2(out, STDERR_FILENO);
    if (!prepare()) ::_exit(99);
    std::vector<char*> argv;
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(98);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return {exit_status(status), {}, read_file(output).value_or("")};
}

TEST_F(Reload, who_may_not_mount_here_is_refused_with_a_remedy) {
  fs::permissions(dir_.path(), fs::perms(0755));
  Mount m(dir_ / "map1", dir_ / "mnt");
  const auto other = run_changed([] { return ::setuid(1500) == 0; },
                                 {fs_mount(), "--reload", m.path()}, dir_ / "words");
  EXPECT_EQ(other.status, 3);
  EXPECT_THAT(other.err, HasSubstr("it is a mount of another user's"));
  const auto unable = run_changed(
      // As a user of fusermount3 is: the owner, without the right to mount.
      [] { return drop_capabilities("test").has_value(); }, {fs_mount(), "--reload", m.path()},
      dir_ / "words");
  EXPECT_EQ(unable.status, 3);
  EXPECT_THAT(unable.err, HasSubstr("hint: it takes the right to mount here (CAP_SYS_ADMIN)"));
  EXPECT_EQ(m.stat_number("supervisor_pid"), static_cast<std::uint64_t>(m.pid()));
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 1U);
}

TEST_F(Reload, of_two_at_once_one_says_that_the_other_is_at_work) {
  Mount m(dir_ / "map1", dir_ / "mnt");
  const auto directory = value_or_throw(RunDirectory::open());
  auto other = value_or_throw(directory.lock("reload " + m.path(), 1s));
  const auto refused = reload({dir_ / "map2", m.path()});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("another --reload is at work here"));
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

TEST_F(Reload, one_that_is_killed_leaves_the_mount_as_it_was_or_exchanged) {
  if (::syscall(SYS_fsopen, "", ~0U) < 0 && errno == ENOSYS)
    HEDDLE_SKIP("before Linux 5.2 a mount is made in its place, where it stays with a dead daemon");
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
  if (!takes_old_off()) return;
  expect_mounts(m, 41);
  // Daemons of what was not exchanged have ended.
  const auto now = m.stat_number("supervisor_pid");
  EXPECT_TRUE(wait_until(10s, [&] {
    const auto others = run({"pgrep", "-f", "fs-mount .*" + m.path() + "$"}).out;
    return others.find_first_not_of("0123456789\n") == std::string::npos &&
           std::count(others.begin(), others.end(), '\n') <= 2 &&
           others.find(std::to_string(now)) != std::string::npos;
  })) << run({"pgrep", "-af", m.path()}).out;
}

TEST_F(Reload, all_that_is_stacked_is_taken_off_by_unmounting) {
  Mount m(dir_ / "map1", dir_ / "mnt");
  // As before Linux 6.5: the old one stays beneath.
  run_checked({"mount", "--bind", m.path(), m.path()});
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 2U);
  EXPECT_EQ(m.unmount().status, 0);
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 0U);
}

TEST_F(Reload, concerns_the_mount_namespace_of_who_asks_alone) {
  Mount m(dir_ / "map1", dir_ / "mnt");
  const auto pipe = value_or_throw(make_pipe());
  const pid_t other = ::fork();
  if (other == 0) {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      ::_exit(1);
    (void)::write(pipe.write_end.get(), "x", 1);
    ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(pipe.read_end.get(), &byte, 1), 1);
  ASSERT_EQ(reload({dir_ / "map2", m.path()}).status, 0);
  EXPECT_EQ(text_of(m / "changed"), "two changed\n");
  EXPECT_EQ(text_of("/proc/" + std::to_string(other) + "/root" + (m / "changed")), "one changed\n");
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  expect_end_of_old(m.pid(), m);
}

/// The map of `farm`'s program, with the files of `other` in place of `farm`'s libraries.
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

TEST_F(Reload, starts_never_fail_nor_mix_two_maps) {
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
