// SPDX-License-Identifier: MIT
// A mount outlives the process that answers for it: nobody who uses it notices.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/fd.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

std::chrono::seconds time_to_spend() {
  const char* asked = std::getenv("HEDDLE_TEST_SECONDS");
  return std::chrono::seconds(asked ? std::atoi(asked) : 4);
}

std::vector<int> children_of(int pid) {
  std::vector<int> out;
  const auto id = std::to_string(pid);
  std::ifstream in("/proc/" + id + "/task/" + id + "/children");
  for (int child = 0; in >> child;) out.push_back(child);
  return out;
}

/// A file's bytes, none of them from the page cache.
Result<std::string> read_uncached(const std::string& path) {
  auto file = open_file(path, O_RDONLY);
  if (!file) return fail(file.error());
  ::posix_fadvise(file->get(), 0, 0, POSIX_FADV_DONTNEED);
  return read_all(file->get(), path);
}

class Supervised : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    for (int i = 0; i < 20; ++i)
      write_text_file(dir_ / ("src/file" + std::to_string(i)), content(i));
    MapMaker maker;
    maker.add_folder("v", dir_ / "src");
    maker.write(dir_ / "map");
  }
  static std::string content(int i) {
    return std::string(static_cast<std::size_t>(300000 + i), static_cast<char>('a' + i));
  }
  std::string log() const { return read_file(dir_ / "log").value_or(""); }

  TestDir dir_;
};

/// Readers of contents and of names that the kernel does not know yet, until `stop`.
class Users {
 public:
  Users(const Mount& mount, std::function<std::string(int)> content) {
    for (int t = 0; t < 4; ++t)
      threads_.emplace_back([this, &mount, content, t](const std::stop_token& stop) {
        for (int i = 0; !stop.stop_requested(); ++i, ++rounds) {
          const int n = i % 20;
          const auto got = read_uncached(mount / ("file" + std::to_string(n)));
          wrong += !got || *got != content(n);
          struct stat st {};
          const auto name = mount / ("none-" + std::to_string(t) + "-" + std::to_string(i));
          wrong += ::stat(name.c_str(), &st) == 0 || errno != ENOENT;
        }
      });
  }
  void stop() { threads_.clear(); }

  std::atomic<int> wrong = 0;
  std::atomic<int> rounds = 0;

 private:
  std::vector<std::jthread> threads_;
};

TEST_F(Supervised, a_worker_killed_again_and_again_is_noticed_by_nobody) {
  Mount m(dir_ / "map", dir_ / "mnt", {"--log", dir_ / "log"});
  Users users(m, content);
  std::uint64_t kills = 0;
  const auto end = std::chrono::steady_clock::now() + time_to_spend();
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(37ms);
    kills += ::kill(m.worker(), SIGKILL) == 0;
  }
  users.stop();
  EXPECT_EQ(users.wrong, 0) << log();
  EXPECT_GT(users.rounds, 50);
  EXPECT_GT(kills, 10U);
  EXPECT_EQ(m.stat_number("workers_lost"), kills);
  EXPECT_EQ(m.stat_number("supervisor_pid"), static_cast<std::uint64_t>(m.pid()));
  EXPECT_THAT(log(), HasSubstr("died of signal 9; "));
  EXPECT_EQ(children_of(m.pid()), std::vector<int>{m.worker()});
  EXPECT_EQ(m.unmount().status, 0);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); }));
}

TEST_F(Supervised, programs_start_and_compile_while_workers_die) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 300, .tag = FarmTag::none});
  // The compiler's own, under their names.
  const auto gcc = run_checked({"gcc", "-print-prog-name=cc1"}).out;
  const auto cc1 = gcc.substr(0, gcc.find('\n'));
  MapMaker maker;
  for (std::size_t i = 0; i < farm.libraries.size(); ++i)
    maker.add_name("app", farm.sonames[i], farm.libraries[i]);
  const auto needed = run_checked({"ldd", cc1}).out;
  std::size_t theirs = 0;
  for (const char* name : {"libmpc.so.3", "libmpfr.so.6", "libgmp.so.10", "libz.so.1", "libm.so.6"})
    if (const auto at = needed.find(" => /", needed.find(name)); at != std::string::npos) {
      maker.add_name("app", name, needed.substr(at + 4, needed.find(' ', at + 4) - at - 4));
      ++theirs;
    }
  ASSERT_GT(theirs, 2U);
  maker.write(dir_ / "map2");
  Mount m(dir_ / "map2", dir_ / "mnt", {"--log", dir_ / "log"});
  RunOptions options;
  options.env = {"LD_LIBRARY_PATH=" + m.path()};
  write_text_file(dir_ / "a.c", "#include <stdio.h>\nint main(void) { puts(\"compiled\"); }\n");

  std::atomic<bool> stop = false;
  std::atomic<int> starts = 0, wrong = 0, compiled = 0;
  std::vector<std::jthread> loops;
  for (int i = 0; i < 8; ++i)
    loops.emplace_back([&] {
      for (; !stop; ++starts) {
        const auto ran = run({farm.program}, options);
        if (ran.out != farm.output || ran.status != 0) ++wrong, ADD_FAILURE() << ran.err;
      }
    });
  loops.emplace_back([&] {
    for (; !stop; ++compiled) {
      const auto built = run({"gcc", "-O2", "-o", dir_ / "a", dir_ / "a.c"}, options);
      if (built.status != 0 || run({dir_ / "a"}).out != "compiled\n")
        ++wrong, ADD_FAILURE() << built.err;
    }
  });
  // What the kernel knows already it does not ask for again.
  std::jthread forgetful([&] {
    while (!stop) {
      for (const auto& soname : farm.sonames)
        if (auto file = open_file(m / soname, O_RDONLY))
          ::posix_fadvise(file->get(), 0, 0, POSIX_FADV_DONTNEED);
      std::this_thread::sleep_for(20ms);
    }
  });
  std::uint64_t kills = 0;
  const auto end = std::chrono::steady_clock::now() + time_to_spend();
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(100ms);
    kills += ::kill(m.worker(), SIGKILL) == 0;
  }
  stop = true;
  loops.clear();
  forgetful.join();
  EXPECT_EQ(wrong, 0) << log();
  EXPECT_GT(starts, 8);
  EXPECT_GT(compiled, 0);
  EXPECT_GT(kills, 5U);
}

TEST_F(Supervised, a_worker_that_stands_still_is_waited_for) {
  Mount m(dir_ / "map", dir_ / "mnt");
  Users users(m, content);
  const int worker = m.worker();
  for (int i = 0; i < 3; ++i) {
    ::kill(worker, SIGSTOP);
    std::this_thread::sleep_for(300ms);
    ::kill(worker, SIGCONT);
    std::this_thread::sleep_for(50ms);
  }
  users.stop();
  EXPECT_EQ(users.wrong, 0);
  EXPECT_EQ(m.worker(), worker);
}

TEST_F(Supervised, one_killed_while_stopped_is_followed) {
  Mount m(dir_ / "map", dir_ / "mnt");
  Users users(m, content);
  const int worker = m.worker();
  ::kill(worker, SIGSTOP);
  std::this_thread::sleep_for(100ms);  // requests pile up, read and unread
  ::kill(worker, SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return m.worker() != worker; }));
  std::this_thread::sleep_for(50ms);
  users.stop();
  EXPECT_EQ(users.wrong, 0);
}

TEST_F(Supervised, what_was_replaced_keeps_its_old_content_whoever_answers) {
  Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0"});
  write_text_file(dir_ / "new", "new content");
  fs::rename(dir_ / "new", dir_ / "src/file3");
  ::kill(m.worker(), SIGKILL);
  EXPECT_EQ(value_or_throw(read_uncached(m / "file3")), content(3));
}

TEST_F(Supervised, what_one_worker_refused_its_followers_refuse_and_report) {
  Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0"});
  std::ofstream(dir_ / "src/file4", std::ios::app) << "more";
  EXPECT_EQ(read_uncached(m / "file4").error().code(), EIO);
  ::kill(m.worker(), SIGKILL);
  EXPECT_EQ(read_uncached(m / "file4").error().code(), EIO);
  const auto stats = value_or_throw(read_file(m / ".heddle/stats"));
  EXPECT_THAT(stats, HasSubstr("changed in place while mounted"));
  EXPECT_EQ(m.stat_number("workers_lost"), 1U);
}

TEST_F(Supervised, attributes_stay_what_they_were) {
  Mount m(dir_ / "map", dir_ / "mnt");
  const auto stat_of = [&](const std::string& path) {
    return run_checked({"stat", "--cached=never", "-c", "%i %s %Y %Z %h %f", path}).out;
  };
  const auto root = stat_of(m.path()), file = stat_of(m / "file0");
  ::kill(m.worker(), SIGKILL);
  EXPECT_EQ(stat_of(m.path()), root);
  EXPECT_EQ(stat_of(m / "file0"), file);
}

TEST_F(Supervised, a_supervisor_that_is_killed_takes_its_worker_along) {
  Mount m(dir_ / "map", dir_ / "mnt");
  const int worker = m.worker();
  ::kill(m.pid(), SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()) && !is_running(worker); }));
  EXPECT_EQ(read_file(m / "a name not asked for yet").error().code(), ENOTCONN);
}

TEST_F(Supervised, a_signal_to_the_worker_is_one_to_the_daemon) {
  Mount m(dir_ / "map", dir_ / "mnt");
  const int worker = m.worker();
  ::kill(worker, SIGTERM);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()) && !is_running(worker); }));
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 0U);
}

TEST_F(Supervised, workers_that_die_as_soon_as_they_start_end_the_mount) {
  Mount m(dir_ / "map", dir_ / "mnt", {"--log", dir_ / "log"});
  EXPECT_TRUE(wait_until(60s, [&] {
    for (const int child : children_of(m.pid())) ::kill(child, SIGKILL);
    return !is_running(m.pid());
  }));
  EXPECT_THAT(log(), HasSubstr("as those before it did"));
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 0U);
}

}  // namespace
}  // namespace heddle::test
