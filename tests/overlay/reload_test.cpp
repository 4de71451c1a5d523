// SPDX-License-Identifier: MIT
// fs-mount --reload: another map, another worker, another fs-mount under a mount that stays.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <thread>

#include "base/fd.hpp"
#include "base/packet.hpp"
#include "base/process.hpp"
#include "fuseovl/mount_program.hpp"
#include "fuseovl/supervise/reload_protocol.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

using Strings = std::vector<std::string>;

Strings list(const std::string& folder) {
  Strings out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path().filename());
  return out;
}

ino_t inode(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 ? st.st_ino : 0;
}

std::string text_of(const std::string& path) { return value_or_throw(read_file(path)); }

class Reload : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    for (const char* name : {"same", "changed", "gone", "plugins/p"})
      write_text_file(dir_ / std::string("one/") + name, std::string("one ") + name + "\n");
    fs::create_directories(dir_ / "two/plugins");
    for (const char* name : {"changed", "new", "plugins/q"})
      write_text_file(dir_ / std::string("two/") + name, std::string("two ") + name + "\n");
    MapMaker one, two;
    one.add_folder("v", dir_ / "one");
    one.write(dir_ / "map1");
    two.add_folder("v", dir_ / "two");
    two.add_name("v", "same", dir_ / "one/same");
    two.write(dir_ / "map2");
  }

  /// A map of 300 KB files of one character.
  std::string write_big_map(char c) {
    const std::string folder = dir_ / std::string("big-") + c;
    MapMaker maker;
    for (int i = 0; i < 20; ++i)
      write_text_file(folder + "/file" + std::to_string(i), std::string(300000, c));
    maker.add_folder("v", folder);
    return maker.write(dir_ / std::string("map-") + c);
  }

  RunResult reload(const Strings& arguments) const {
    Strings argv{fs_mount(), "--reload"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return run(argv);
  }
  std::string log() const { return read_file(dir_ / "log").value_or(""); }

  TestDir dir_;
};

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

TEST_F(Reload, what_cannot_be_served_changes_nothing) {
  Mount m(dir_ / "map1", dir_ / "mnt", {"--log", dir_ / "log"});
  const int worker = m.worker();
  auto bytes = text_of(dir_ / "map2");
  bytes[bytes.size() / 2] ^= 1;
  write_text_file(dir_ / "damaged", bytes);
  write_text_file(dir_ / "short", bytes.substr(0, 5000));
  fs::create_directory(dir_ / "folder");
  MapMaker maker;
  write_text_file(dir_ / "three/x", "x");
  maker.add_folder("v", dir_ / "three");
  maker.write(dir_ / "unfit");
  write_text_file(dir_ / "three/x", "another x");
  const std::pair<const char*, const char*> cases[] = {{"missing", "No such file"},
                                                       {"damaged", "damaged map"},
                                                       {"short", "damaged map"},
                                                       {"folder", "not a heddle map"},
                                                       {"unfit", "does not fit this node"}};
  for (const auto& [name, why] : cases) {
    const auto refused = reload({dir_ / name, m.path()});
    EXPECT_EQ(refused.status, 3) << name;
    EXPECT_THAT(refused.err, AllOf(HasSubstr(dir_ / name), HasSubstr(why)));
  }
  EXPECT_THAT(reload({dir_ / "unfit", m.path()}).err, HasSubstr("three/x: size is 9, was 1"));
  EXPECT_EQ(m.worker(), worker);
  EXPECT_EQ(m.stat_number("reloads"), 0U);
  EXPECT_EQ(text_of(m / "gone"), "one gone\n");
  EXPECT_TRUE(wait_until(5s, [&] { return children_of(m.pid()) == std::vector<int>{worker}; }));
  EXPECT_EQ(reload({dir_ / "map2", m.path()}).status, 0);
}

TEST_F(Reload, where_no_mount_of_heddles_is_it_says_so) {
  EXPECT_THAT(reload({dir_ / "map2", dir_.path()}).err, HasSubstr("no heddle mount is here"));
  EXPECT_EQ(reload({dir_ / "map2", dir_ / "nothing"}).status, 3);
  EXPECT_EQ(reload({}).status, 2);
  EXPECT_EQ(run({fs_mount(), "--reload", "--stats", "x", "y"}).status, 2);
  Mount m(dir_ / "map1", dir_ / "mnt");
  ::kill(m.pid(), SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); }));
  const auto dead = reload({m.path()});
  EXPECT_EQ(dead.status, 3);
  EXPECT_THAT(dead.err, HasSubstr("its daemon has died"));
}

/// `work` in a process of user 1500; its result.
int as_another_user(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::setuid(1500) == 0 ? work() : 99);
  int status = 0;
  ::waitpid(child, &status, 0);
  return exit_status(status);
}

TEST_F(Reload, another_user_cannot_ask_for_it) {
  fs::permissions(dir_.path(), fs::perms(0755));
  Mount m(dir_ / "map1", dir_ / "mnt");
  const int worker = m.worker();
  const auto socket = m.stat_text("control");
  MountSettings settings;
  settings.mount_point = m.path();
  settings.prefetch = 0;
  EXPECT_EQ(as_another_user([&] { return reload_program(settings); }), 3);
  // Nor around our own program, whose check is for the message.
  EXPECT_EQ(as_another_user([&] {
              const auto connected = connect_abstract(socket);
              ReloadRequest request;
              request.program = value_or_throw(open_file("/proc/self/exe", O_PATH));
              if (connected) (void)send_request(connected->get(), request);
              const auto reply = connected ? receive_reply(connected->get()) : ReloadReply{};
              return reply ? 1 : 0;
            }),
            0);
  EXPECT_EQ(m.worker(), worker);
  EXPECT_EQ(m.stat_number("reloads"), 0U);
}

TEST_F(Reload, nonsense_at_its_socket_is_answered_with_an_error) {
  Mount m(dir_ / "map1", dir_ / "mnt");
  const auto name = m.stat_text("control");
  for (const std::string& text :
       {std::string("x"), std::string(1000, '\xff'), std::string(1, '\0')}) {
    const auto socket = value_or_throw(connect_abstract(name));
    value_or_throw(send_packet(socket.get(), text));
    const auto reply = receive_reply(socket.get());
    ASSERT_TRUE(reply);
    EXPECT_FALSE(reply->done);
  }
  EXPECT_EQ(reload({m.path()}).status, 0);
}

TEST_F(Reload, a_mount_of_one_that_has_drifted_files_warns_of_them_as_before) {
  Mount m(dir_ / "map1", dir_ / "mnt", {"--on-drift", "warn"});
  write_text_file(dir_ / "two/new", "another new\n");
  const auto done = reload({dir_ / "map2", m.path()});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("two/new: "));
  EXPECT_EQ(text_of(m / "new"), "another new\n");
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

TEST_F(Reload, files_are_given_up_when_nobody_has_them_any_more) {
  const auto a = write_big_map('a'), b = write_big_map('b');
  Mount m(a, dir_ / "mnt");
  auto held = value_or_throw(open_file(m / "file1", O_RDONLY));
  ASSERT_EQ(reload({b, m.path()}).status, 0);
  EXPECT_TRUE(wait_until(10s, [&] { return m.stat_number("retired") == 1; }))
      << m.stat_number("retired");
  ::posix_fadvise(held.get(), 0, 0, POSIX_FADV_DONTNEED);
  EXPECT_EQ(value_or_throw(read_all(held.get(), "file1")), std::string(300000, 'a'));
  held.reset();
  EXPECT_TRUE(wait_until(20s, [&] { return m.stat_number("retired") == 0; }));
  EXPECT_EQ(m.stat_number("workers_lost"), 0U);
  EXPECT_EQ(text_of(m / "file1"), std::string(300000, 'b'));
}

TEST_F(Reload, memory_and_descriptors_stay_what_they_are_over_many_reloads) {
  const std::string maps[] = {write_big_map('a'), write_big_map('b')};
  Mount m(maps[0], dir_ / "mnt", {"--prefetch", "0"});
  const auto settle = [&] {
    EXPECT_TRUE(wait_until(20s, [&] { return m.stat_number("retired") == 0; }));
  };
  ASSERT_EQ(reload({maps[1], m.path()}).status, 0);
  settle();
  const auto supervisor = footprint(m.pid()), worker = footprint(m.worker());
  int rounds = 0;
  for (const auto end = std::chrono::steady_clock::now() + time_to_spend() / 2;
       std::chrono::steady_clock::now() < end; ++rounds)
    ASSERT_EQ(reload({maps[rounds % 2], m.path(), "--prefetch", "0"}).status, 0) << rounds;
  ASSERT_EQ(reload({maps[rounds++ % 2], m.path()}).status, 0);  // asks for all names
  settle();
  std::cout << rounds << " reloads\n";
  EXPECT_GT(rounds, 3);
  EXPECT_EQ(footprint(m.pid()).fds, supervisor.fds);
  EXPECT_EQ(footprint(m.worker()).fds, worker.fds);
  // A few pages more or less are the allocator's; a reload that left something would show sooner.
  EXPECT_LT(footprint(m.pid()).kib, supervisor.kib + 2048);
  // Each of its four threads keeps a buffer as large as the largest read it answered, 1 MiB at
  // most; which of them answered is chance.
  EXPECT_LT(footprint(m.worker()).kib, worker.kib + 4 * 1024 + 2048);
  EXPECT_EQ(m.stat_number("reloads"), static_cast<std::uint64_t>(rounds + 1));
  EXPECT_TRUE(wait_until(5s, [&] { return children_of(m.pid()).size() == 1; }));
}

TEST_F(Reload, few_descriptors_are_enough_for_what_stays_the_same) {
  MapMaker maker;
  for (int i = 0; i < 50; ++i)
    maker.add_name("v", "f" + std::to_string(i),
                   write_text_file(dir_ / "many/f" + std::to_string(i), "x"));
  maker.write(dir_ / "fifty");
  maker.add_name("v", "new", dir_ / "two/new");
  maker.write(dir_ / "fifty-one");
  fs::create_directories(dir_ / "mnt");
  run_checked({"sh", "-c", "ulimit -n 128; exec \"$0\" \"$1\" \"$2\"", fs_mount(), dir_ / "fifty",
               dir_ / "mnt"});
  const std::string stats = dir_ / "mnt/.heddle/stats";
  EXPECT_THAT(text_of(stats), ::testing::ContainsRegex("\"pinned\": +50,"));
  const auto done = reload({dir_ / "fifty-one", dir_ / "mnt"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(text_of(stats), ::testing::ContainsRegex("\"pinned\": +5[01],"));
  EXPECT_EQ(text_of(dir_ / "mnt/new"), "two new\n");
  EXPECT_EQ(run({fs_mount(), "-u", dir_ / "mnt"}).status, 0);
}

TEST_F(Reload, several_at_once_come_one_after_the_other) {
  Mount m(dir_ / "map1", dir_ / "mnt", {"--log", dir_ / "log"});
  std::atomic<int> failed = 0;
  {
    std::vector<std::jthread> all;
    for (int i = 0; i < 6; ++i)
      all.emplace_back([&, i] {
        failed +=
            reload({dir_ / (i % 2 ? "map1" : "map2"), m.path(), "--prefetch", "0"}).status != 0;
      });
  }
  EXPECT_EQ(failed, 0) << log();
  EXPECT_EQ(m.stat_number("reloads"), 6U);
}

TEST_F(Reload, one_that_is_given_up_leaves_the_mount_as_it_was) {
  Mount m(dir_ / "map1", dir_ / "mnt", {"--log", dir_ / "log"});
  const int worker = m.worker();
  for (int i = 0; i < 10; ++i) {
    RunOptions options;
    options.deadline = std::chrono::milliseconds(1 + i);
    (void)run({fs_mount(), "--reload", dir_ / "map2", m.path()}, options);
  }
  EXPECT_TRUE(wait_until(5s, [&] { return children_of(m.pid()).size() == 1; }));
  const auto done = reload({dir_ / "map2", m.path()});
  EXPECT_EQ(done.status, 0) << done.err << log();
  EXPECT_EQ(text_of(m / "new"), "two new\n");
  EXPECT_NE(m.worker(), worker);
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
