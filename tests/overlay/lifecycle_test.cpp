// SPDX-License-Identifier: MIT
// How mounts end: by command, by signal, by a daemon that dies; and nothing is left.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sandbox/sanitized.hpp"
#include "tests/overlay/lifecycle_support.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// Processes whose command line holds `word`; a zombie's is empty.
std::vector<pid_t> processes_with(const std::string& word) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto text = read_file(entry.path() / "cmdline");
    if (text && text->find(word) != std::string::npos)
      found.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return found;
}

TEST_F(Lifecycle, umount_and_fusermount3_and_minus_u_all_end_the_daemon) {
  for (const auto& command : std::vector<std::vector<std::string>>{
           {"umount", mnt()}, {"fusermount3", "-u", mnt()}, {fs_mount(), "-u", mnt()}}) {
    const Mount m(map_, mnt());
    const auto result = run(command);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); })) << to_shell(command);
  }
}

TEST_F(Lifecycle, minus_u_of_a_busy_mount_says_so_and_lazy_ends_it_with_its_last_user) {
  const Mount m(map_, mnt(), {"--prefetch", "0"});
  auto user = open_file(m / "a.so", O_RDONLY);
  ASSERT_TRUE(user);
  const auto busy = m.unmount();
  EXPECT_EQ(busy.status, 3);
  EXPECT_THAT(busy.err, HasSubstr("Device or resource busy"));
  EXPECT_EQ(fs_mount_run({"-u", "--lazy", mnt()}).status, 0);
  EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
  EXPECT_TRUE(is_running(m.pid()));
  EXPECT_EQ(value_or_throw(read_all(user->get(), "a.so")), "content of a.so");
  user->reset();
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); }));
}

TEST_F(Lifecycle, minus_u_of_what_is_no_heddle_mount_touches_nothing) {
  const auto none = fs_mount_run({"-u", mnt()});
  EXPECT_EQ(none.status, 3);
  EXPECT_THAT(none.err, HasSubstr("no heddle mount is here"));
  EXPECT_EQ(fs_mount_run({"-u", "/proc"}).status, 3);
  const auto missing = fs_mount_run({"-u", dir_ / "none"});
  EXPECT_EQ(missing.status, 3);
  EXPECT_EQ(missing.err,
            "fs-mount: " + dir_ / "none: cannot find the mount point: No such file or directory\n");
}

TEST_F(Lifecycle, each_ending_signal_unmounts_and_ends_the_daemon) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const Mount m(map_, mnt());
    ::kill(m.pid(), signal);
    EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); })) << signal;
    EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
  }
}

TEST_F(Lifecycle, a_signal_leaves_the_libraries_of_running_programs_readable) {
  const Mount m(map_, mnt(), {"--prefetch", "0"});
  auto user = open_file(m / "b.so", O_RDONLY);
  ASSERT_TRUE(user);
  ::kill(m.pid(), SIGTERM);
  EXPECT_TRUE(wait_until(5s, [&] { return mounts_with(" " + mnt() + " ") == 0; }));
  EXPECT_EQ(value_or_throw(read_all(user->get(), "b.so")), "content of b.so");
  ::kill(m.pid(), SIGTERM);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); }));
  user->reset();
}

TEST_F(Lifecycle, a_killed_daemon_leaves_enotconn_and_minus_u_cleans) {
  const Mount m(map_, mnt(), {"--prefetch", "0"});
  ::kill(m.pid(), SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); }));
  const auto dead = read_file(m / "a.so");
  ASSERT_FALSE(dead);
  EXPECT_EQ(dead.error().code(), ENOTCONN);
  const auto again = fs_mount_run({map_, mnt()});
  EXPECT_EQ(again.status, 3);
  EXPECT_THAT(again.err, HasSubstr("whose daemon has died"));
  EXPECT_THAT(fs_mount_run({"--stats", mnt()}).err, HasSubstr("unmount it with fs-mount -u\n"));
  EXPECT_EQ(m.unmount().status, 0);
  EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
}

TEST_F(Lifecycle, minus_u_of_another_users_mount_says_so) {
  if (::geteuid() != 0) HEDDLE_SKIP("not root");
  const Mount m(map_, mnt());
  ::chmod(dir_.path().c_str(), 0755);
  fs::copy_file(fs_mount(), dir_ / "fs-mount");  // the stage may be out of their reach
  const auto refused = run({"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                            dir_ / "fs-mount", "-u", mnt()});
  EXPECT_EQ(refused.status, 3);
  EXPECT_EQ(refused.err,
            "fs-mount: " + mnt() + ": cannot unmount: it is a mount of another user's\n");
}

TEST_F(Lifecycle, a_stopped_daemon_does_not_keep_minus_u_from_unmounting) {
  const Mount m(map_, mnt());
  const int worker = m.worker();
  for (const int pid : {m.pid(), worker}) ::kill(pid, SIGSTOP);
  EXPECT_EQ(m.unmount().status, 0);
  for (const int pid : {m.pid(), worker}) ::kill(pid, SIGCONT);
}

TEST_F(Lifecycle, the_foreground_serves_until_a_signal) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(fs_mount().c_str(), "fs-mount", "-f", map_.c_str(), mnt().c_str(), nullptr);
    ::_exit(99);
  }
  EXPECT_TRUE(wait_until(5s, [&] { return fs::exists(mnt() + "/a.so"); }));
  EXPECT_EQ(value_or_throw(read_file(mnt() + "/a.so")), "content of a.so");
  ::kill(child, SIGINT);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
}

TEST_F(Lifecycle, the_daemon_holds_nothing_of_its_caller) {
  auto pipe = value_or_throw(make_pipe());
  ::fcntl(pipe.write_end.get(), F_SETFD, 0);
  {
    const Mount m(map_, mnt());
    pipe.write_end.reset();
    // End of file at once: the daemon has no copy of the other end.
    EXPECT_EQ(value_or_throw(read_all(pipe.read_end.get(), "pipe")), "");
    EXPECT_EQ(fs::read_symlink("/proc/" + std::to_string(m.pid()) + "/cwd"), "/");
    for (const char* fd : {"0", "1", "2"})
      EXPECT_EQ(fs::read_symlink("/proc/" + std::to_string(m.pid()) + "/fd/" + fd), "/dev/null");
    EXPECT_NE(::getsid(m.pid()), ::getsid(0));
  }
}

TEST_F(Lifecycle, five_hundred_mounts_and_unmounts_leave_nothing) {
  constexpr int kMounts = kSanitized ? 50 : 500;
  std::size_t failed = 0;
  for (int i = 0; i < kMounts; ++i) {
    failed += fs_mount_run({map_, mnt()}).status != 0;
    failed += run({"umount", mnt()}).status != 0;
  }
  EXPECT_EQ(failed, 0U);
  EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
  EXPECT_TRUE(wait_until(5s, [&] { return processes_with(map_).empty(); }));
}

// A user's signals that are pending may be used up by anybody's processes; pthread_cancel(3) cannot
// send its own then. On one processor it is mostly called while a thread still reads.
TEST_F(Lifecycle, daemons_end_where_no_real_time_signal_can_be_sent) {
  const std::string processor = std::to_string(::sched_getcpu());
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(
        run({"prlimit", "--sigpending=0", "taskset", "-c", processor, fs_mount(), map_, mnt()})
            .status,
        0);
    EXPECT_EQ(value_or_throw(read_file(mnt() + "/a.so")), "content of a.so");
    EXPECT_EQ(fs_mount_run({"-u", mnt()}).status, 0);
  }
  EXPECT_TRUE(wait_until(5s, [&] { return processes_with(map_).empty(); }));
  for (const pid_t left : processes_with(map_)) ::kill(left, SIGKILL);
}

}  // namespace
}  // namespace heddle::test
