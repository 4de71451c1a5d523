// SPDX-License-Identifier: MIT
// How mounts start and end, what is refused, drift, and that nothing is left.

#include <sched.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "base/sandbox/sanitized.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/overlay/overlay_support.hpp"

namespace heddle::test {
namespace {

/// A map of three files, and a directory to mount it on.
class Lifecycle : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    std::filesystem::create_directories(dir_ / "mnt");
    for (const char* name : {"a.so", "b.so", "c.so"})
      write_text_file(dir_ / (std::string("src/") + name), std::string("content of ") + name);
    MapMaker maker;
    maker.add_directory("v", dir_ / "src");
    map_ = maker.write(dir_ / "map");
  }
  std::string mnt() const { return dir_ / "mnt"; }
  RunResult fs_mount_run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), fs_mount());
    return run(arguments, {.deadline = 20s});
  }
  /// Expects one line that contains `words`, optionally a hint, and no mount.
  void expect_refused(const RunResult& result, const std::string& words) {
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_EQ(result.out, "");
    std::string rest = result.err.substr(result.err.find('\n') + 1);
    EXPECT_TRUE(rest.empty() || rest.starts_with("hint: ")) << result.err;
    EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
  }

  TestDir dir_;
  std::string map_;
};

TEST_F(Lifecycle, unusable_maps_and_mount_points_are_refused) {
  auto bytes = value_or_throw(read_file(map_));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_text_file(dir_ / "damaged", bytes);
  write_text_file(dir_ / "cut", bytes.substr(0, bytes.size() - 4096));
  write_text_file(dir_ / "text", "no map at all");
  write_text_file(dir_ / "empty", "");
  fs::create_directory(dir_ / "directory");
  for (const char* map : {"none", "text", "empty", "directory", "damaged", "cut"})
    expect_refused(fs_mount_run({dir_ / map, mnt()}), dir_ / map + ": ");
  expect_refused(fs_mount_run({map_, dir_ / "none"}), "No such file or directory");
  expect_refused(fs_mount_run({map_, map_}), "Not a directory");
}

TEST_F(Lifecycle, second_mount_on_one_directory_is_refused) {
  const Mount first(map_, mnt());
  EXPECT_EQ(fs_mount_run({map_, mnt()}).status, 3);
  EXPECT_EQ(mounts_with(" " + mnt() + " "), 1U);
  EXPECT_EQ(value_or_throw(read_file(first / "a.so")), "content of a.so");
}

TEST_F(Lifecycle, wrong_command_lines_are_usage_errors) {
  for (const auto& line : std::vector<std::vector<std::string>>{
           {},
           {map_},
           {map_, mnt(), "more"},
           {"--on-drift", "maybe", map_, mnt()},
           {"--prefetch", "much", map_, mnt()},
           {"--lazy", map_, mnt()},
           {"-u", mnt(), map_, mnt()},
           {"--fuse-fd", "3", map_},
           {"--ready-fd", "3", map_, mnt()},
           {"--fuse-fd", "3", "--mount-point", "/x", "--cleanup", "/", map_}})
    EXPECT_EQ(fs_mount_run(line).status, 2) << to_shell(line);
}

TEST_F(Lifecycle, missing_dev_fuse_is_reported_with_a_hint) {
  const auto result =
      run({"unshare", "-m", "sh", "-c", "mount -t tmpfs none /dev && exec \"$0\" \"$@\"",
           fs_mount(), map_, mnt()});
  expect_refused(result, "/dev/fuse: cannot open: No such file or directory");
  EXPECT_THAT(result.err, HasSubstr("hint: load the module"));
}

TEST_F(Lifecycle, what_is_in_place_of_dev_fuse_is_reported_with_a_hint) {
  for (const auto& file : {write_text_file(dir_ / "file", ""), "/dev/null"s}) {
    const auto result =
        run({"unshare", "-m", "sh", "-c", "mount --bind \"$0\" /dev/fuse && exec \"$@\"", file,
             fs_mount(), map_, mnt()});
    expect_refused(result, "/dev/fuse: cannot mount: it is not the FUSE device");
    EXPECT_THAT(result.err, HasSubstr("hint: as root: rm /dev/fuse"));
  }
}

/// Runs `script` as user 65534 in a mount namespace where /dev/fuse is open to all; $1 is fs-mount,
/// $2 the map, $3 the user's mount point.
RunResult run_as_user(const TestDir& dir, const std::string& map, const std::string& before,
                      const std::string& script) {
  fs::permissions(dir.path(), fs::perms::all);
  fs::copy_file(fs_mount(), dir / "fs-mount", fs::copy_options::skip_existing);
  const std::string mnt = dir / "user";
  fs::create_directories(mnt);
  if (::chown(mnt.c_str(), 65534, 65534) != 0) throw Error::from_errno(mnt, "cannot chown");
  const std::string set_up =
      "set -e; [ -e \"$4/fuse\" ] || mknod -m 666 \"$4/fuse\" c 10 229; mount --bind \"$4/fuse\" "
      "/dev/fuse; " +
      before + " exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c \"$0\" sh \"$@\"";
  return run({"unshare", "-m", "sh", "-c", set_up, script, dir / "fs-mount", map, mnt, dir.path()});
}

TEST_F(Lifecycle, user_mounts_and_unmounts_by_fusermount3) {
  const auto result = run_as_user(dir_, map_, "",
                                  "\"$1\" \"$2\" \"$3\" && cat \"$3/a.so\" && "
                                  "grep -c \"$3 .*fuse.heddle heddle\" /proc/self/mountinfo && "
                                  "\"$1\" -u \"$3\" && ls -A \"$3\"");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "content of a.so1\n");
}

TEST_F(Lifecycle, little_address_space_is_enough) {
  if (kSanitized) HEDDLE_SKIP("sanitizers map terabytes");
  const auto started =
      run({"sh", "-c", "ulimit -v 65536; exec \"$0\" \"$@\"", fs_mount(), map_, mnt()});
  ASSERT_EQ(started.status, 0) << started.err;
  EXPECT_EQ(value_or_throw(read_file(mnt() + "/b.so")), "content of b.so");
  EXPECT_EQ(fs_mount_run({"-u", mnt()}).status, 0);
}

TEST_F(Lifecycle, root_directory_is_no_mount_point) {
  for (const std::string root : {"/", "//", "/..", "/proc/self/root"}) {
    // In a mount namespace of its own, should it be mounted all the same.
    const auto refused = run({"unshare", "-m", fs_mount(), map_, root});
    EXPECT_EQ(refused.status, 3) << root;
    EXPECT_EQ(refused.err, "fs-mount: " + root +
                               ": cannot mount here: it would hide the root directory\n"
                               "hint: make an empty directory for it\n");
  }
}

TEST_F(Lifecycle, fusermount3_failure_gives_one_reason) {
  const auto none = run_as_user(dir_, map_, "mount --bind /dev/null \"$(command -v fusermount3)\";",
                                "\"$1\" \"$2\" \"$3\"");
  EXPECT_EQ(none.status, 3);
  EXPECT_THAT(none.err, HasSubstr("the program is not installed\nhint: install it"));
  // Without nsswitch.conf, which may name a service that knows this uid.
  const auto nameless = run_as_user(dir_, map_,
                                    "for file in /etc/passwd /etc/nsswitch.conf; do [ ! -e $file ] "
                                    "|| mount --bind /dev/null $file; done;",
                                    "\"$1\" \"$2\" \"$3\"");
  EXPECT_EQ(nameless.status, 3);
  EXPECT_THAT(nameless.err, HasSubstr("fusermount3 refuses uid 65534, which has no name\nhint: "));
  const auto refused = run_as_user(dir_, map_, "chown 0 \"$3\";", "\"$1\" \"$2\" \"$3\"");
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("cannot mount: user has no write access to mountpoint"));
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
}

TEST_F(Lifecycle, mount_names_each_drifted_file_and_fails) {
  const auto src = [&](const std::string& name) { return dir_ / "src/" + name; };
  MapMaker maker;
  for (const char* name : {"directory", "fifo", "touched"}) write_text_file(src(name), name);
  maker.add_directory("v", dir_ / "src");
  maker.write(map_);
  const auto later = fs::file_time_type::clock::now() + 1h;
  write_text_file(src("a.so"), "cOntent of a.so");
  for (const char* name : {"a.so", "touched"}) fs::last_write_time(src(name), later);
  write_text_file(src("b.so"), "longer than before, really");
  for (const char* name : {"c.so", "directory", "fifo"}) fs::remove(src(name));
  fs::create_directory(src("directory"));
  ASSERT_EQ(::mkfifo(src("fifo").c_str(), 0644), 0);
  const auto refused = fs_mount_run({map_, mnt()});
  EXPECT_EQ(refused.status, 3);
  for (const char* line :
       {"a.so: content changed", "b.so: size is 26, was 15", "c.so: missing",
        "directory: no longer a regular file", "fifo: no longer a regular file", "5 files differ"})
    EXPECT_THAT(refused.err, HasSubstr(line));
  EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
}

TEST_F(Lifecycle, on_drift_warn_serves_changed_files_and_omits_missing_ones) {
  write_text_file(dir_ / "src/b.so", "longer than before, really");
  fs::remove(dir_ / "src/c.so");
  const Mount m(map_, mnt(), {"--on-drift", "warn"});
  EXPECT_EQ(value_or_throw(read_file(m / "a.so")), "content of a.so");
  EXPECT_EQ(value_or_throw(read_file(m / "b.so")), "longer than before, really");
  const auto gone = read_file(m / "c.so");
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code(), ENOENT);
  EXPECT_THAT(value_or_throw(read_stats_text(m.path())), HasSubstr("\"what\": \"missing\""));
}

TEST_F(Lifecycle, stats_command_lists_current_drift) {
  const Mount m(map_, mnt(), {"--prefetch", "0"});
  const auto now = [&] {
    return nlohmann::json::parse(fs_mount_run({"--stats", mnt(), "--json"}).out)["drift_now"];
  };
  EXPECT_EQ(now(), nlohmann::json::array());
  write_text_file(dir_ / "new", "new content, longer");
  fs::rename(dir_ / "new", dir_ / "src/a.so");
  fs::remove(dir_ / "src/b.so");
  const auto drift = now();
  ASSERT_EQ(drift.size(), 2U);
  EXPECT_EQ(drift[0]["path"], dir_ / "src/a.so");
  EXPECT_EQ(drift[0]["what"], "size is 19, was 15");
  EXPECT_EQ(drift[1]["what"], "missing");
}

TEST_F(Lifecycle, unpinned_files_are_checked_when_reopened) {
  MapMaker maker;
  for (int i = 0; i < 200; ++i)
    write_text_file(dir_ / ("many/lib" + std::to_string(i)), "number " + std::to_string(i));
  maker.add_directory("v", dir_ / "many");
  maker.write(dir_ / "many.map");
  const auto started = run({"sh", "-c", "ulimit -n 64; exec \"$0\" \"$@\"", fs_mount(),
                            "--prefetch", "0", dir_ / "many.map", mnt()});
  ASSERT_EQ(started.status, 0) << started.err;
  // Each file is replaced by one of the same size and times, which has another inode.
  for (int i = 0; i < 200; ++i) {
    const std::string name = dir_ / ("many/lib" + std::to_string(i));
    const auto time = fs::last_write_time(name);
    write_text_file(name + ".new", std::string(fs::file_size(name), 'x'));
    fs::last_write_time(name + ".new", time);
    fs::rename(name + ".new", name);
  }
  std::size_t old = 0;
  std::size_t refused = 0;
  for (int i = 0; i < 200; ++i) {
    const auto got = read_file(mnt() + "/lib" + std::to_string(i));
    if (got)
      old += *got == "number " + std::to_string(i);
    else
      refused += got.error().code() == EIO;
  }
  const auto stats = nlohmann::json::parse(value_or_throw(read_stats_text(mnt())));
  const auto pinned = stats["pinned"].get<std::size_t>();
  EXPECT_GT(pinned, 0U);
  EXPECT_LT(pinned, 64U);
  EXPECT_EQ(old, pinned);
  EXPECT_EQ(refused, 200 - pinned);
  EXPECT_EQ(stats["drift"].size(), refused);
  EXPECT_EQ(fs_mount_run({"-u", mnt()}).status, 0);
}

/// Processes whose command line contains `word`; a zombie's is empty.
std::vector<pid_t> processes_with(const std::string& word) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto text = read_file(entry.path() / "cmdline");
    if (text && text->find(word) != std::string::npos)
      found.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return found;
}

TEST_F(Lifecycle, unmounting_and_signals_end_the_daemon) {
  for (const auto& command : std::vector<std::vector<std::string>>{{"umount", mnt()},
                                                                   {"fusermount3", "-u", mnt()},
                                                                   {fs_mount(), "-u", mnt()},
                                                                   {"kill", "-TERM"},
                                                                   {"kill", "-INT"},
                                                                   {"kill", "-HUP"}}) {
    const Mount m(map_, mnt());
    auto argv = command;
    if (argv[0] == "kill") argv.push_back(std::to_string(m.pid()));
    const auto result = run(argv);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); })) << to_shell(command);
    EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
  }
}

TEST_F(Lifecycle, busy_mount_refuses_unmount_and_ends_lazily_with_its_last_user) {
  const Mount m(map_, mnt(), {"--prefetch", "0"});
  auto user = open_file(m / "a.so", O_RDONLY);
  ASSERT_TRUE(user);
  EXPECT_EQ(m.unmount().status, 3);
  EXPECT_EQ(fs_mount_run({"-u", "--lazy", mnt()}).status, 0);
  EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
  EXPECT_TRUE(is_running(m.pid()));
  EXPECT_EQ(value_or_throw(read_all(user->get(), "a.so")), "content of a.so");
  user->reset();
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); }));
}

TEST_F(Lifecycle, unmount_of_a_foreign_mount_is_refused) {
  for (const auto& directory : {mnt(), std::string("/proc"), dir_ / "none"})
    EXPECT_EQ(fs_mount_run({"-u", directory}).status, 3) << directory;
}

TEST_F(Lifecycle, signalled_daemon_keeps_serving_open_files) {
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

TEST_F(Lifecycle, verify_of_a_mount_whose_daemon_has_died_fails_though_all_is_cached) {
  const Mount m(map_, mnt());
  ASSERT_EQ(fs_mount_run({"--verify", mnt()}).status, 0);
  ::kill(m.pid(), SIGKILL);
  ASSERT_TRUE(wait_until(10s, [&] { return !is_running(m.pid()); }));
  const auto result = fs_mount_run({"--verify", mnt()});
  EXPECT_EQ(result.status, 3) << result.out;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("cannot verify: Transport endpoint is not connected\nhint: its "
                                    "daemon has died: unmount it with fs-mount -u"));
}

TEST_F(Lifecycle, user_is_told_of_lazy_when_a_mount_is_busy) {
  const auto result = run_as_user(dir_, map_, "",
                                  "\"$1\" \"$2\" \"$3\" && cd \"$3\" && \"$1\" -u \"$3\"; echo $?\n"
                                  "cd / && \"$1\" -u \"$3\" && ls -A \"$3\"");
  EXPECT_EQ(result.out, "3\n");
  EXPECT_THAT(result.err, HasSubstr("cannot unmount: Device or resource busy\nhint: --lazy"));
}

TEST_F(Lifecycle, bad_log_is_reported_once) {
  const auto result = fs_mount_run({"--log", "/dev/full", map_, mnt()});
  EXPECT_EQ(result.status, 3);
  EXPECT_EQ(result.err,
            "fs-mount: /dev/full: cannot use as log: not a regular file\nhint: name a file of its "
            "own\n");
}

TEST_F(Lifecycle, fallback_of_a_plain_map_is_not_used) {
  const auto result = fs_mount_run({"--fallback", map_, map_, mnt()});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.err, HasSubstr(": is not used: the map is no bundle"));
  EXPECT_EQ(fs_mount_run({"-u", mnt()}).status, 0);
}

TEST_F(Lifecycle, killed_daemon_leaves_enotconn_until_unmounted) {
  const Mount m(map_, mnt(), {"--prefetch", "0"});
  ::kill(m.pid(), SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); }));
  // A request that the kernel takes before it sees the end is ECONNABORTED.
  EXPECT_TRUE(wait_until(5s, [&] {
    const auto dead = read_file(m / "a.so");
    return !dead && dead.error().code() == ENOTCONN;
  }));
  EXPECT_EQ(fs_mount_run({map_, mnt()}).status, 3);
  EXPECT_THAT(fs_mount_run({"--stats", mnt()}).err, HasSubstr("unmount it with fs-mount -u\n"));
  EXPECT_EQ(m.unmount().status, 0);
  EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
}

TEST_F(Lifecycle, unmount_of_another_user_s_mount_is_refused) {
  if (::geteuid() != 0) HEDDLE_SKIP("not root");
  const Mount m(map_, mnt());
  ::chmod(dir_.path().c_str(), 0755);
  fs::copy_file(fs_mount(), dir_ / "fs-mount");  // the user may not reach the stage
  const auto refused = run({"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                            dir_ / "fs-mount", "-u", mnt()});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("the mount belongs to another user\n"));
}

TEST_F(Lifecycle, stopped_daemon_can_be_unmounted) {
  const Mount m(map_, mnt());
  const int worker = m.worker();
  for (const int pid : {m.pid(), worker}) ::kill(pid, SIGSTOP);
  EXPECT_EQ(m.unmount().status, 0);
  for (const int pid : {m.pid(), worker}) ::kill(pid, SIGCONT);
}

TEST_F(Lifecycle, foreground_daemon_serves_until_a_signal) {
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

TEST_F(Lifecycle, daemon_holds_nothing_of_its_caller) {
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

TEST_F(Lifecycle, fifty_mounts_and_unmounts_leave_nothing) {
  constexpr int kMounts = 50;
  std::size_t failed = 0;
  for (int i = 0; i < kMounts; ++i) {
    failed += fs_mount_run({map_, mnt()}).status != 0;
    failed += run({"umount", mnt()}).status != 0;
  }
  EXPECT_EQ(failed, 0U);
  EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
  EXPECT_TRUE(wait_until(5s, [&] { return processes_with(map_).empty(); }));
}

// Without quota for pending signals pthread_cancel(3) cannot send its signal. On one processor it
// is mostly called while a thread still reads.
TEST_F(Lifecycle, daemons_end_without_a_quota_of_pending_signals) {
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
