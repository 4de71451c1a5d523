// SPDX-License-Identifier: MIT
// fs-mount --reload: another map, another worker, another fs-mount under a mount that stays.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <iostream>
#include <thread>

#include "base/process.hpp"
#include "tests/overlay/reload_support.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

Strings list(const std::string& folder) {
  Strings out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path().filename());
  return out;
}

ino_t inode(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 ? st.st_ino : 0;
}

TEST_F(Reload, another_map_takes_the_place_of_the_first) {
  Mount m(dir_ / "map1", dir_ / "mnt", {"--log", dir_ / "log"});
  EXPECT_THAT(list(m.path()),
              UnorderedElementsAre(".heddle", "v", "same", "changed", "gone", "plugins"));
  const int supervisor = m.pid(), worker = m.worker();
  const auto done = reload({dir_ / "map2", m.path()});
  ASSERT_EQ(done.status, 0) << done.err << log();
  EXPECT_THAT(done.out,
              AllOf(HasSubstr(m.path() + ": files: 1 as before, 1 changed, 2 new, 2 gone"),
                    HasSubstr("generation 1")));
  EXPECT_THAT(list(m.path()),
              UnorderedElementsAre(".heddle", "v", "same", "changed", "new", "plugins"));
  EXPECT_THAT(list(m / "plugins"), ElementsAre("q"));
  EXPECT_THAT(list(m / "v"), UnorderedElementsAre("same", "changed", "new", "plugins"));
  EXPECT_EQ(text_of(m / "changed"), "two changed\n");
  EXPECT_EQ(text_of(m / "v/new"), "two new\n");
  EXPECT_EQ(text_of(m / "plugins/q"), "two plugins/q\n");
  EXPECT_EQ(text_of(m / "same"), "one same\n");
  EXPECT_EQ(read_file(m / "gone").error().code(), ENOENT);
  EXPECT_EQ(read_file(m / "plugins/p").error().code(), ENOENT);
  EXPECT_EQ(text_of(m / ".heddle/map"), text_of(dir_ / "map2"));
  EXPECT_EQ(m.stat_text("map"), dir_ / "map2");
  EXPECT_EQ(m.stat_number("generation"), 1U);
  EXPECT_EQ(m.stat_number("reloads"), 1U);
  EXPECT_EQ(m.stat_number("workers_lost"), 0U);
  EXPECT_EQ(m.stat_number("supervisor_pid"), static_cast<std::uint64_t>(supervisor));
  EXPECT_NE(m.worker(), worker);
  EXPECT_EQ(m.unmount().status, 0);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(supervisor); }));
}

TEST_F(Reload, what_is_open_or_mapped_keeps_its_content) {
  const auto a = write_big_map('a'), b = write_big_map('b');
  Mount m(a, dir_ / "mnt", {"--prefetch", "0"});
  const auto file = value_or_throw(open_file(m / "file1", O_RDONLY));
  const auto index = value_or_throw(open_file(m / ".heddle/index", O_RDONLY));
  const auto map = value_or_throw(open_file(m / ".heddle/map", O_RDONLY));
  const auto old_index = text_of(m / ".heddle/index");
  auto mapped = value_or_throw(open_file(m / "file2", O_RDONLY));
  const auto* bytes =
      static_cast<const char*>(::mmap(nullptr, 300000, PROT_READ, MAP_PRIVATE, mapped.get(), 0));
  ASSERT_NE(bytes, MAP_FAILED);
  ASSERT_EQ(bytes[0], 'a');
  mapped.reset();
  ASSERT_EQ(reload({b, m.path()}).status, 0);
  fs::remove_all(dir_ / "big-a");
  for (const int fd : {file.get(), index.get(), map.get()})
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  EXPECT_EQ(value_or_throw(read_all(file.get(), "file1")), std::string(300000, 'a'));
  EXPECT_EQ(std::string_view(bytes, 300000), std::string(300000, 'a'));
  EXPECT_EQ(value_or_throw(read_all(index.get(), "index")), old_index);
  EXPECT_EQ(value_or_throw(read_all(map.get(), "map")), text_of(a));
  EXPECT_EQ(text_of(m / "file1"), std::string(300000, 'b'));
  EXPECT_EQ(text_of(m / "file2"), std::string(300000, 'b'));
  EXPECT_GE(m.stat_number("retired"), 4U);
  ::munmap(const_cast<char*>(bytes), 300000);
}

TEST_F(Reload, programs_that_start_afterwards_are_guided_by_the_new_map) {
  HEDDLE_STAGED(resolve, "fs-resolve");
  HEDDLE_STAGED(audit, "libheddle-audit.so");
  const auto old_farm = ElfFarm::build(dir_ / "farm");
  const auto new_farm = ElfFarm::build(dir_ / "farm2", {.first_number = 100});
  run_checked({resolve, "build", "-o", dir_ / "before", old_farm.program});
  Mount m(dir_ / "before", dir_ / "mnt");
  RunOptions guided;
  guided.env = {"LD_AUDIT=" + audit, "HEDDLE_INDEX=" + m / ".heddle/index"};
  EXPECT_EQ(run({old_farm.program}, guided).out, old_farm.output);
  for (std::size_t i = 0; i < old_farm.libraries.size(); ++i)
    fs::rename(new_farm.libraries[i], old_farm.libraries[i]);
  EXPECT_EQ(run({old_farm.program}).out, new_farm.output);
  EXPECT_EQ(run({old_farm.program}, guided).out, old_farm.output);
  run_checked({resolve, "build", "-o", dir_ / "after", old_farm.program});
  ASSERT_EQ(reload({dir_ / "after", m.path()}).status, 0);
  guided.env.push_back("LD_DEBUG=files");
  const auto ran = run({old_farm.program}, guided);
  EXPECT_EQ(ran.out, new_farm.output);
  EXPECT_THAT(ran.err, HasSubstr("file=" + m.path() + "/"));
}

TEST_F(Reload, a_program_that_is_being_started_has_all_its_libraries_of_one_map) {
  const FarmOptions options{.libraries = 100, .tag = FarmTag::none};
  FarmOptions others = options;
  others.first_number = 1000;
  const ElfFarm farms[] = {ElfFarm::build(dir_ / "farm1", options),
                           ElfFarm::build(dir_ / "farm2", others)};
  std::string maps[2];
  for (int f = 0; f < 2; ++f) {
    MapMaker maker;
    for (std::size_t i = 0; i < farms[f].libraries.size(); ++i)
      maker.add_name("app", farms[f].sonames[i], farms[f].libraries[i]);
    maps[f] = maker.write(dir_ / ("farm-map" + std::to_string(f)));
  }
  Mount m(maps[0], dir_ / "mnt");
  RunOptions run_options;
  run_options.env = {"LD_LIBRARY_PATH=" + m.path()};
  std::atomic<int> starts = 0, mixed = 0;
  {
    std::vector<std::jthread> loops;
    for (int i = 0; i < 8; ++i)
      loops.emplace_back([&](const std::stop_token& stop) {
        for (; !stop.stop_requested(); ++starts) {
          const auto began = std::chrono::steady_clock::now();
          const auto ran = run({farms[0].program}, run_options);
          if (ran.out == farms[0].output || ran.out == farms[1].output) continue;
          ++mixed;
          ADD_FAILURE() << "after " << (std::chrono::steady_clock::now() - began) / 1ms
                        << " ms: " << ran.status << " '" << ran.out << "' " << ran.err
                        << "; wanted " << farms[0].output << " or " << farms[1].output;
        }
      });
    int turn = 0;
    for (const auto end = std::chrono::steady_clock::now() + time_to_spend();
         std::chrono::steady_clock::now() < end;)
      EXPECT_EQ(reload({maps[++turn % 2], m.path()}).status, 0);
    EXPECT_EQ(run({farms[0].program}, run_options).out, farms[turn % 2].output);
  }
  std::cout << starts << " starts\n";
  EXPECT_EQ(mixed, 0);
}

TEST_F(Reload, what_is_the_same_in_both_maps_stays_one_file_and_in_the_cache) {
  Mount m(dir_ / "map1", dir_ / "mnt", {"--prefetch", "0"});
  const auto before = inode(m / "same"), folder = inode(m / "v"), changed = inode(m / "changed");
  EXPECT_EQ(text_of(m / "same"), "one same\n");
  const auto held = value_or_throw(open_file(m / "same", O_RDONLY));
  ASSERT_EQ(reload({dir_ / "map2", m.path()}).status, 0);
  EXPECT_EQ(inode(m / "same"), before);
  EXPECT_EQ(inode(m / "v"), folder);
  EXPECT_NE(inode(m / "changed"), changed);
  const auto reads = m.stat_number("bytes_read");
  EXPECT_EQ(text_of(m / "same"), "one same\n");
  EXPECT_LT(m.stat_number("bytes_read") - reads, 20000U);  // of `stats`, but not twice
  // And back: what was retired and is the same again is that file again.
  const auto again = value_or_throw(open_file(m / "changed", O_RDONLY));
  ASSERT_EQ(reload({dir_ / "map1", m.path()}).status, 0);
  EXPECT_EQ(inode(m / "same"), before);
  EXPECT_EQ(inode(m / "changed"), changed);
  EXPECT_EQ(text_of(m / "changed"), "one changed\n");
  EXPECT_EQ(value_or_throw(read_all(again.get(), "changed")), "two changed\n");
}

TEST_F(Reload, the_mount_alone_gets_a_new_worker_and_nothing_else) {
  Mount m(dir_ / "map1", dir_ / "mnt", {"--prefetch", "0"});
  const auto stat_of = [&](const std::string& path) {
    return run_checked({"stat", "--cached=never", "-c", "%i %s %Y %Z %h %f", path}).out;
  };
  const auto root = stat_of(m.path()), file = stat_of(m / "same");
  const auto requests = m.stat_number("requests_total");
  for (const Strings& arguments : {Strings{m.path()}, Strings{dir_ / "map1", m.path()}}) {
    const int worker = m.worker();
    const auto done = reload(arguments);
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr("the same map (generation 0"));
    EXPECT_NE(m.worker(), worker);
  }
  EXPECT_EQ(text_of(m / "same"), "one same\n");
  EXPECT_EQ(m.stat_number("generation"), 0U);
  EXPECT_EQ(m.stat_number("reloads"), 2U);
  EXPECT_EQ(m.stat_number("retired"), 0U);
  EXPECT_GE(m.stat_number("requests_total"), requests);
  {
    const Stopped stopped(m.worker());  // the kernel has kept all names
    EXPECT_EQ(text_of(m / "same"), "one same\n");
  }
  EXPECT_EQ(stat_of(m.path()), root);
  EXPECT_EQ(stat_of(m / "same"), file);
}

TEST_F(Reload, another_fs_mount_goes_on_in_the_place_of_the_first) {
  Mount m(dir_ / "map1", dir_ / "mnt", {"--log", dir_ / "log"});
  const auto held = value_or_throw(open_file(m / "gone", O_RDONLY));
  fs::copy_file(fs_mount(), dir_ / "newer");
  const auto exe = [&](int pid) {
    return fs::read_symlink("/proc/" + std::to_string(pid) + "/exe");
  };
  EXPECT_NE(exe(m.pid()), fs::path(dir_ / "newer"));
  const auto done = run({dir_ / "newer", "--reload", dir_ / "map2", m.path()});
  ASSERT_EQ(done.status, 0) << done.err << log();
  EXPECT_EQ(exe(m.pid()), fs::path(dir_ / "newer"));
  EXPECT_EQ(exe(m.worker()), fs::path(dir_ / "newer"));
  EXPECT_EQ(text_of("/proc/" + std::to_string(m.pid()) + "/comm"), "fs-mount\n");
  EXPECT_EQ(value_or_throw(read_all(held.get(), "gone")), "one gone\n");
  EXPECT_EQ(text_of(m / "new"), "two new\n");
  // What was taken over is watched over as before.
  const int worker = m.worker();
  ::kill(worker, SIGKILL);
  EXPECT_EQ(value_or_throw(read_uncached(m / "changed")), "two changed\n");
  EXPECT_NE(m.worker(), worker);
  EXPECT_EQ(m.stat_number("workers_lost"), 1U);
  EXPECT_EQ(::kill(m.pid(), SIGTERM), 0);
  EXPECT_TRUE(wait_until(5s, [&] { return mounts_with(" " + m.path() + " ") == 0; }));
}

TEST_F(Reload, a_folder_that_somebody_stands_in_stays_that_folder) {
  Mount m(dir_ / "map1", dir_ / "mnt");
  const auto folder = value_or_throw(open_file(m / "plugins", O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(reload({dir_ / "map2", m.path()}).status, 0);
  EXPECT_EQ(fs::read_symlink("/proc/self/fd/" + std::to_string(folder.get())), m / "plugins");
  EXPECT_EQ(::faccessat(folder.get(), "q", F_OK, 0), 0);
  EXPECT_NE(::faccessat(folder.get(), "p", F_OK, 0), 0);
}

TEST_F(Reload, odd_names_of_maps_and_files_are_carried_over) {
  const std::string odd = dir_ / "a \t\n \xff \xc3\xa4";
  fs::create_directory(odd);
  write_text_file(odd + "/x \xff\n", "odd");
  MapMaker maker;
  maker.add_folder("v", odd);
  maker.write(odd + "/map");
  Mount m(dir_ / "map1", dir_ / "mnt");
  EXPECT_EQ(reload({odd + "/map", m.path()}).status, 0);
  EXPECT_EQ(reload({m.path()}).status, 0);
  EXPECT_EQ(text_of(m / "x \xff\n"), "odd");
}

TEST_F(Reload, one_in_the_foreground_stays_there) {
  fs::create_directories(dir_ / "mnt");
  const std::string log = dir_ / "log";
  // A shell, to have it as a child with its output in a file.
  std::jthread daemon([&] {
    (void)run({"sh", "-c", "exec \"$0\" -f \"$1\" \"$2\" 2>\"$3\"", fs_mount(), dir_ / "map1",
               dir_ / "mnt", log});
  });
  const std::string mount = dir_ / "mnt";
  ASSERT_TRUE(wait_until(10s, [&] { return fs::exists(mount + "/.heddle/stats"); }));
  const auto done = reload({dir_ / "map2", mount});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(text_of(mount + "/new"), "two new\n");
  EXPECT_EQ(run({fs_mount(), "-u", mount}).status, 0);
  daemon.join();
  EXPECT_THAT(text_of(log), HasSubstr("files: 1 as before"));
}

}  // namespace
}  // namespace heddle::test
