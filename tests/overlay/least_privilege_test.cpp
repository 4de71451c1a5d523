// SPDX-License-Identifier: MIT
// The rights of each process of a mount, and for whom it serves: the table of docs/security.md.

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/content_hash.hpp"
#include "base/sandbox/landlock.hpp"
#include "base/sandbox/sanitized.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/overlay/origin_fs.hpp"

namespace heddle::test {
namespace {

constexpr unsigned kUser = 1500;
constexpr unsigned kOtherUser = 1501;
constexpr std::uint64_t kMayReadAll = std::uint64_t{1} << CAP_DAC_READ_SEARCH;
constexpr std::uint64_t kMayMount = std::uint64_t{1} << CAP_SYS_ADMIN;
constexpr std::uint64_t kMayLookAtProcesses = std::uint64_t{1} << CAP_SYS_PTRACE;
enum class Filter : std::uint8_t { yes, of_its_unit };

class LeastPrivilege : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    if (kSanitized) HEDDLE_SKIP("the sandbox is open in a build with sanitizers");
    fs::permissions(dir_.path(), fs::perms(0755));
    for (const char* name : {"open", "secret"}) write_text_file(dir_ / "src/" + name, name);
    fs::permissions(dir_ / "src/secret", fs::perms(0600));
    MapMaker maker;
    maker.add_directory("v", dir_ / "src");
    maker.write(dir_ / "map");
    fs::create_directory(dir_ / "m");
  }
  static std::string status_of(int pid) {
    return value_or_throw(read_file("/proc/" + std::to_string(pid) + "/status"));
  }
  /// A row of docs/security.md: `capabilities` permitted and effective, none inheritable or
  /// ambient, an empty bounding set, no new privileges, a seccomp filter.
  static void expect_rights(const std::string& status, std::uint64_t capabilities,
                            Filter filter = Filter::yes) {
    const auto mask = fmt::format("{:016x}\n", capabilities);
    for (const char* set : {"CapPrm", "CapEff"})
      EXPECT_THAT(status, HasSubstr(std::string(set) + ":\t" + mask));
    for (const char* set : {"CapInh", "CapAmb"})
      EXPECT_THAT(status, HasSubstr(std::string(set) + ":\t0000000000000000\n"));
    // Only root may drop the bounding set.
    if (status.find("Uid:\t0\t") != std::string::npos) {
      EXPECT_THAT(status, HasSubstr("CapBnd:\t0000000000000000\n"));
    }
    EXPECT_THAT(status, HasSubstr("NoNewPrivs:\t1\n"));
    if (filter == Filter::yes) {
      EXPECT_THAT(status, HasSubstr("Seccomp:\t2\n"));
    }
  }
  static void expect_closed(const std::string& status) { expect_rights(status, 0); }

  /// The output of a shell, started by `prefix`, that mounts, reads a file and the worker's status,
  /// and unmounts.
  std::string visit(std::vector<std::string> prefix, const std::string& before = {}) const {
    const std::string script =
        before +
        "\"$0\" --prefetch 0 \"$1\" \"$2\" || exit\n"
        "worker=$(\"$0\" --stats \"$2\" | sed -n 's/^worker_pid *//p')\n"
        "cat \"$2/v/secret\"; echo; cat /proc/$worker/status; \"$0\" -u \"$2\"";
    prefix.insert(prefix.end(), {"sh", "-c", script, fs_mount(), dir_ / "map", dir_ / "m"});
    return run_checked(prefix).out;
  }

  TestDir dir_;
};

TEST_F(LeastPrivilege, workers_and_their_successors_have_no_rights) {
  HEDDLE_NEEDS_RESEND();
  const Mount mount(dir_ / "map", dir_ / "m");
  const int worker = mount.worker();
  expect_closed(status_of(worker));
  ::kill(worker, SIGKILL);
  ASSERT_TRUE(wait_until(10s, [&] { return mount.worker() != worker; }));
  expect_closed(status_of(mount.worker()));
  EXPECT_EQ(value_or_throw(read_file(mount / "v/secret")), "secret");
}

TEST_F(LeastPrivilege, root_s_supervisor_can_only_unmount) {
  fs::create_directories(dir_ / "home/m");
  fs::permissions(dir_ / "home", fs::perms(0700));
  ASSERT_EQ(::chown((dir_ / "home").c_str(), 1500, 1500), 0);
  // Unmounting in another user's closed directory needs the right to pass it.
  for (const auto& [directory, rights] :
       {std::pair("m", kMayMount), std::pair("home/m", kMayMount | kMayReadAll)}) {
    const Mount mount(dir_ / "map", dir_ / directory);
    expect_rights(status_of(mount.pid()), rights);
    ::kill(mount.pid(), SIGTERM);
    EXPECT_TRUE(wait_until(10s, [&] { return !is_running(mount.pid()); }));
    EXPECT_EQ(mounts_with(" " + (dir_ / directory) + " "), 0U);
  }
}

TEST_F(LeastPrivilege, processes_of_a_shared_mount_can_only_mount_and_unmount) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  HEDDLE_NEEDS_OPEN_TREE();
  const auto output = [&](const std::string& script) {
    return run_checked(
               {fs_gen, "-q", "--via", "private", "--", "/bin/sh", "-c", script, fs_mount()})
        .out;
  };
  expect_rights(output("cat /proc/$(\"$0\" --stats --json \"${HEDDLE_INDEX%/.heddle/index}\" | "
                       "grep supervisor_pid | tr -dc 0-9)/status"),
                kMayMount);
  expect_rights(output("cat /proc/$(pgrep -P $PPID -x fs-mount)/status"),
                kMayMount | kMayReadAll | kMayLookAtProcesses);
}

TEST_F(LeastPrivilege, node_service_can_only_mount) {
  auto service = start_silently(fs_mount(), {"fs-mount", "--node", dir_ / "node"});
  ASSERT_TRUE(wait_until(10s, [&] { return fs::exists(dir_ / "node/socket"); }));
  // Its systemd unit sets its filter.
  expect_rights(status_of(service.pid()), kMayMount | kMayReadAll | kMayLookAtProcesses,
                Filter::of_its_unit);
  ::kill(service.pid(), SIGTERM);
  EXPECT_EQ(value_or_throw(service.wait_for(10s)), std::optional<int>(0));
}

TEST_F(LeastPrivilege, staging_process_has_only_its_supervisor_s_rights) {
  const OriginFs origin(dir_ / "src", dir_ / "far");
  MapMaker maker;
  maker.add_directory("v", dir_ / "far");
  maker.write(dir_ / "map");
  fs::create_directory(dir_ / "staged");
  origin.hang_reads();
  const Mount mount(dir_ / "map", dir_ / "m", {"--prefetch", "0", "--stage", dir_ / "staged"});
  ASSERT_TRUE(wait_until(20s, [&] { return origin.held() > 0; }));
  std::string staging;
  for (const int child : children_of(mount.pid()))
    if (child != mount.worker()) staging += status_of(child);
  EXPECT_THAT(staging, HasSubstr("Name:\theddle-stage\n"));
  EXPECT_THAT(staging, HasSubstr("Uid:\t0\t0\t0\t0\n"));
  expect_rights(staging, kMayMount);
  origin.answer();
  EXPECT_EQ(mount.wait_for_staging(), "done");
}

TEST_F(LeastPrivilege, worker_that_reopens_files_has_only_dac_read_search) {
  // Too few descriptors to pin a file.
  const auto seen = visit({}, "ulimit -n 45; ");
  EXPECT_THAT(seen, HasSubstr("secret\n"));
  EXPECT_THAT(seen, HasSubstr("Seccomp:\t2\n"));
  EXPECT_THAT(seen, HasSubstr("CapEff:\t0000000000000004\n")) << "CAP_DAC_READ_SEARCH";
}

TEST_F(LeastPrivilege, user_s_mount_is_served_as_that_user) {
  fs::permissions(dir_ / "src/secret", fs::perms(0644));
  ASSERT_EQ(::chown((dir_ / "m").c_str(), 1500, 1500), 0);
  const auto seen = visit({HEDDLE_IN_WORLD, "--uid", "1500", "--"});
  EXPECT_THAT(seen, HasSubstr("secret\n"));
  EXPECT_THAT(seen, HasSubstr("Uid:\t1500\t1500\t1500\t1500\n"));
  expect_closed(seen);
}

// The supervisor cannot run the setuid fusermount3: its guard does.
TEST_F(LeastPrivilege, user_s_supervisor_has_no_rights_and_unmounts_through_its_guard) {
  fs::permissions(dir_ / "src/secret", fs::perms(0644));
  ASSERT_EQ(::chown((dir_ / "m").c_str(), 1500, 1500), 0);
  const std::string script =
      "\"$0\" --prefetch 0 \"$1\" \"$2\" || exit\n"
      "pid=$(\"$0\" --stats \"$2\" | sed -n 's/^supervisor_pid *//p')\n"
      "cat /proc/$pid/status; echo; cat /proc/$(pgrep -o -P $pid)/status; kill $pid\n"
      "for i in $(seq 500); do mountpoint -q \"$2\" || { echo unmounted; exit; }; sleep .02; done";
  const auto seen = run_checked({HEDDLE_IN_WORLD, "--uid", "1500", "--", "sh", "-c", script,
                                 fs_mount(), dir_ / "map", dir_ / "m"})
                        .out;
  const auto guard = seen.substr(seen.find("\n\n"));
  EXPECT_THAT(seen, HasSubstr("Uid:\t1500\t1500\t1500\t1500\n"));
  expect_closed(seen.substr(0, seen.size() - guard.size() + 1));
  EXPECT_THAT(guard, HasSubstr("Uid:\t1500\t1500\t1500\t1500\n"));
  EXPECT_THAT(guard, HasSubstr("CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n"));
  EXPECT_THAT(guard, HasSubstr("NoNewPrivs:\t0\n")) << "it runs the setuid fusermount3";
  EXPECT_THAT(guard, HasSubstr("unmounted\n"));
}

/// fs-mount --stage of several users in one directory of the node: none reads another's copies.
class StageUsers : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    fs::permissions(dir_.path(), fs::perms(0755));
    write_text_file(dir_ / "src/file", text_);
    MapMaker maker;
    maker.add_directory("v", dir_ / "src");
    maker.write(dir_ / "map");
    fs::create_directory(dir_ / "node");
    ::chmod((dir_ / "node").c_str(), 01777);
  }
  /// The output of a user's shell that mounts, waits for the copies and reads: messages, the state
  /// of staging, the file.
  std::string visit(unsigned uid) {
    const auto mount_point = dir_ / ("m" + std::to_string(++visits_));
    fs::create_directory(mount_point);
    EXPECT_EQ(::chown(mount_point.c_str(), uid, uid), 0);
    const std::string script =
        "\"$0\" --prefetch 0 --stage \"$3\" \"$1\" \"$2\" 2>&1 || exit\n"
        "n=0; while \"$0\" --stats \"$2\" --json | grep -q '\"staging\": \"running\"' && [ $n -lt "
        "1000 ]\n"
        "do n=$((n+1)); sleep 0.01; done\n"
        "\"$0\" --stats \"$2\" --json | grep -o '\"staging\": \"[a-z]*\"'\n"
        "cat \"$2/v/file\"; echo; \"$0\" -u \"$2\"";
    return run_checked({HEDDLE_IN_WORLD, "--uid", std::to_string(uid), "--", "sh", "-c", script,
                        fs_mount(), dir_ / "map", mount_point, dir_ / "node"})
        .out;
  }
  std::string directory(unsigned uid) const { return dir_ / "node/heddle-" + std::to_string(uid); }
  std::string copy(unsigned uid) const {
    return directory(uid) + "/objects/" + hash_bytes(text_).hex();
  }
  static unsigned owner(const std::string& path) {
    struct stat st {};
    return ::lstat(path.c_str(), &st) == 0 ? st.st_uid : 0;
  }
  static void chown_all(const std::string& path, unsigned uid) {
    for (const auto& entry : fs::recursive_directory_iterator(path))
      ASSERT_EQ(::lchown(entry.path().c_str(), uid, uid), 0);
    ASSERT_EQ(::lchown(path.c_str(), uid, uid), 0);
  }
  void make_directory(unsigned name, unsigned owner, const std::string& content) {
    for (const char* part : {"objects", "copying", "users"}) {
      fs::create_directories(directory(name) + "/" + part);
      ::chmod((directory(name) + "/" + part).c_str(), 0700);
    }
    ::chmod(directory(name).c_str(), 0700);
    write_text_file(copy(name), content);
    chown_all(directory(name), owner);
  }

  TestDir dir_;
  const std::string text_ = std::string(50'000, 't') + "\n";
  int visits_ = 0;
};

TEST_F(StageUsers, users_have_separate_copies) {
  for (const unsigned uid : {kUser, kOtherUser}) {
    SCOPED_TRACE(uid);
    const auto seen = visit(uid);
    EXPECT_THAT(seen, HasSubstr("\"staging\": \"done\""));
    EXPECT_THAT(seen, HasSubstr(text_));
    EXPECT_EQ(owner(directory(uid)), uid);
    EXPECT_EQ(owner(copy(uid)), uid);
    EXPECT_EQ(fs::status(directory(uid)).permissions(), fs::perms(0700));
    EXPECT_EQ(value_or_throw(read_file(copy(uid))), text_);
  }
}

TEST_F(StageUsers, directories_and_links_of_other_owners_are_refused) {
  const auto fake = std::string(text_.size(), 'E');
  for (const unsigned uid : {kUser, 0U}) {
    make_directory(uid, uid == kUser ? kOtherUser : kUser, fake);
    const auto seen = visit(uid);
    EXPECT_THAT(seen, HasSubstr("cannot use for staging"));
    EXPECT_THAT(seen, HasSubstr("\"staging\": \"none\""));
    EXPECT_THAT(seen, HasSubstr(text_));
    EXPECT_THAT(seen, Not(HasSubstr("EEE")));
  }
  fs::rename(directory(kUser), directory(kOtherUser));
  fs::create_directory_symlink(directory(kOtherUser), directory(kUser));
  ASSERT_EQ(::lchown(directory(kUser).c_str(), kUser, kUser), 0);
  const auto seen = visit(kUser);
  EXPECT_THAT(seen, HasSubstr("cannot use for staging"));
  EXPECT_THAT(seen, HasSubstr(text_));
}

TEST_F(StageUsers, copy_of_another_owner_is_replaced) {
  for (const auto& content : {text_, std::string(text_.size(), 'E')}) {
    make_directory(kUser, kUser, content);
    ASSERT_EQ(::chown(copy(kUser).c_str(), kOtherUser, kOtherUser), 0);
    const auto seen = visit(kUser);
    EXPECT_THAT(seen, HasSubstr("\"staging\": \"done\""));
    EXPECT_THAT(seen, HasSubstr(text_));
    EXPECT_EQ(owner(copy(kUser)), kUser);
    EXPECT_EQ(value_or_throw(read_file(copy(kUser))), text_);
  }
}

}  // namespace
}  // namespace heddle::test
