// SPDX-License-Identifier: MIT
#pragma once

// heddle's services, for peers of the same uid that are not allowed as clients: root of a
// container, a chroot, a sandbox.

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <set>

#include "base/content_hash.hpp"
#include "base/mount_service.hpp"
#include "base/mounts.hpp"
#include "base/run_directory.hpp"
#include "tests/support/fuse_kernel.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// What an attacker has reached; bits of an exit status.
enum Reached : int {
  nothing = 0,
  an_answer = 1,
  a_descriptor = 2,
  not_prepared = 64,
  no_socket = 128
};

inline Fd connect_by_path(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return Fd();
  path.copy(address.sun_path, path.size());
  socklen_t size = sizeof(address);
  if (path[0] == '@') {
    address.sun_path[0] = '\0';
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  }
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    Fd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0)
      return socket;
  }
  return Fd();
}

/// Every kind of daemon, run by root in namespaces that the attackers share. Other tests' abstract
/// sockets, socket directory and mounts are not in them.
class Peer : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { has_namespaces_ = ::geteuid() == 0 && enter_namespaces(); }
  static bool enter_namespaces() {
    const auto sockets = RunDirectory::open();
    if (!sockets || ::unshare(CLONE_NEWNET | CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", sockets->path().c_str(), "tmpfs", 0, "mode=0700") != 0)
      return false;
    // A copy of a mount keeps its daemon alive.
    for (const auto& mount : value_or_throw(list_mounts()))
      if (mount.type.starts_with("fuse.heddle")) (void)::umount2(mount.point.c_str(), MNT_DETACH);
    return true;
  }
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("not root");
    if (::access("/dev/fuse", R_OK | W_OK) != 0) HEDDLE_SKIP("no /dev/fuse to open");
    if (!has_namespaces_) HEDDLE_SKIP("may not make namespaces");
    const rlimit many{8192, 8192};
    (void)::setrlimit(RLIMIT_NOFILE, &many);
    write_text_file(dir_ / "victim/file", "precious");
    write_text_file(dir_ / "empty/file", "");
    const auto marker = dir_ / "executed";
    build_program({dir_ / "payload", "#include <fcntl.h>\nint main(void) { return open(\"" +
                                         marker + "\", O_CREAT | O_WRONLY, 0666); }\n"});
    app_ = build_program({dir_ / "app", "int main(void) { return 0; }\n"});
    run_checked({bin("fs-resolve"), "build", "-o", dir_ / "map", app_});
    fs::create_directory(dir_ / "mnt");
    before_ = names();
    run_checked({bin("fs-mount"), "--prefetch", "0", dir_ / "map", dir_ / "mnt"});
    start({"fs-mount", "--prefetch", "0", "--node", dir_ / "node"});
    start({"fs-gen", "-q", "--slow", "/", "--map", dir_ / "map", "/bin/sleep", "600"});
    // The socket's name is there before it listens.
    ASSERT_TRUE(wait_until(20s, [&] {
      const auto node = RunDirectory::find(dir_ / "node");
      return node && node->connect_to("socket");
    }));
    // Without detached mounts the service refuses, and each fs-gen makes its own mount.
    if (!kernel_has(SYS_open_tree)) return;
    ASSERT_TRUE(wait_until(20s, [&] { return node_answers(); }));
    ASSERT_TRUE(wait_until(20s, [&] { return names().size() > before_.size(); }));
  }
  void TearDown() override {
    if (app_.empty()) return;
    (void)run({bin("fs-mount"), "-u", dir_ / "mnt"});
    for (auto& daemon : daemons_) {
      ::kill(daemon.pid(), SIGTERM);
      (void)daemon.wait_for(10s);
    }
  }

  static std::string bin(const std::string& name) {
    const char* stage = std::getenv("HEDDLE_STAGE");
    return std::string(stage ? stage : "") + "/bin/" + name;
  }
  void start(const Strings& argv) { daemons_.push_back(start_silently(bin(argv[0]), argv)); }
  /// The names of the leases' sockets.
  static std::set<std::string> names() {
    std::set<std::string> out;
    if (const auto directory = RunDirectory::open())
      for (const auto& name : directory->names())
        if (name.starts_with("lease-")) out.insert(name);
    return out;
  }
  std::string map_id() const { return hash_bytes(value_or_throw(read_file(dir_ / "map"))).hex(); }
  /// Whether the owner gets a mount from the node's service.
  bool node_answers() const {
    const auto directory = RunDirectory::find(dir_ / "node");
    if (!directory) return false;
    auto socket = directory->connect_to("socket");
    if (!socket) return false;
    const auto map = value_or_throw(open_file(dir_ / "map", O_RDONLY));
    const auto mount = MountClient(std::move(*socket)).want(map_id(), map.get(), 5s);
    return mount && mount->tree;
  }
  /// Runs `prepare`, which takes a process's rights, and then `attacks` in its child, so that a new
  /// PID namespace counts.
  static int attack_after(const std::function<bool()>& prepare,
                          const std::function<int()>& attacks) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (!prepare()) ::_exit(not_prepared);
      const pid_t inner = ::fork();
      if (inner == 0) ::_exit(attacks());
      int status = 0;
      ::waitpid(inner, &status, 0);
      ::_exit(exit_status(status));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return exit_status(status);
  }
  void expect_unharmed() const {
    EXPECT_FALSE(fs::exists(dir_ / "executed"));
    EXPECT_EQ(read_file(dir_ / "victim/file").value_or(""), "precious");
    EXPECT_EQ(node_answers(), kernel_has(SYS_open_tree));
    EXPECT_EQ(run({bin("fs-gen"), "-q", "--slow", "/", "--map", dir_ / "map", app_}).status, 0);
    EXPECT_EQ(run({bin("fs-mount"), "--stats", dir_ / "mnt"}).status, 0);
  }
  static bool drop_all() {
    for (int cap = 0; cap <= 40; ++cap) (void)::prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2]{};
    return ::syscall(SYS_capset, &header, none) == 0 &&
           ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
  }

  inline static bool has_namespaces_ = false;
  TestDir dir_;
  std::string app_;
  std::set<std::string> before_;  ///< names() before the daemons
  std::vector<Child> daemons_;
};

/// Ways to confine a process of the same uid, each with the directory of sockets in its root.
struct Cage {
  std::string name;
  std::function<bool()> enter;
  std::string sockets;
};

inline bool add_filter() {
  sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{1, allow};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// Services of fs-launch and fs-hook run, which let their peers do more than the mount services.
/// Run by root and by a user.
class PowerfulService : public Peer, public ::testing::WithParamInterface<unsigned> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("not root");
    fs::permissions(dir_.path(), fs::perms(0755));
    for (const char* name : {"run", "home"}) {
      fs::create_directories(dir_ / name);
      ASSERT_EQ(::chown((dir_ / name).c_str(), GetParam(), GetParam()), 0);
    }
    sockets_ = GetParam() == 0 ? value_or_throw(RunDirectory::open()).path() : dir_ / "run/heddle";
  }
  void TearDown() override {}
  /// `argv`, run by the service's user.
  Strings as_user(const Strings& argv) const {
    const auto id = std::to_string(GetParam());
    return Strings{"setpriv",
                   "--reuid=" + id,
                   "--regid=" + id,
                   "--clear-groups",
                   "env",
                   "HOME=" + (dir_ / "home"),
                   "XDG_CACHE_HOME=" + (dir_ / "home"),
                   "XDG_RUNTIME_DIR=" + (dir_ / "run")} +
           argv;
  }
  RunResult session(const Strings& words) const {
    return run(as_user(Strings{staged_program("fs-launch"), "session"} + words));
  }
  /// The ID of a session of this machine, whose agent is started as by a remote shell.
  std::string make_session() const {
    const auto rsh = write_text_file(dir_ / "rsh", "#!/bin/sh\nshift\nexec sh -c \"$*\"\n", 0755);
    const auto made = session({"create", "--rsh", rsh, "--nodes", "here", "--to", dir_ / "home"});
    EXPECT_EQ(made.status, 0) << made.err;
    return made.out.substr(0, made.out.find('\n'));
  }
  bool become_user() const {
    return ::setgid(GetParam()) == 0 && ::setuid(GetParam()) == 0 &&
           ::prctl(PR_SET_DUMPABLE, 1) == 0;
  }
  std::vector<Cage> cages() const {
    const auto parent = fs::path(sockets_).parent_path();
    return {{"a chroot", [=, this] { return ::chroot(parent.c_str()) == 0 && become_user(); },
             "/heddle"},
            {"a mount namespace", [this] { return ::unshare(CLONE_NEWNS) == 0 && become_user(); },
             sockets_},
            {"a container",
             [this] {
               const auto root = dir_ / "container";
               for (const char* name : {"/sockets", "/proc"}) fs::create_directories(root + name);
               return ::unshare(CLONE_NEWNS | CLONE_NEWPID) == 0 &&
                      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                      ::mount(sockets_.c_str(), (root + "/sockets").c_str(), nullptr, MS_BIND,
                              nullptr) == 0 &&
                      ::mount("/proc", (root + "/proc").c_str(), nullptr, MS_BIND | MS_REC,
                              nullptr) == 0 &&
                      ::chroot(root.c_str()) == 0 && become_user();
             },
             "/sockets"},
            {"a user namespace", [this] { return become_user() && ::unshare(CLONE_NEWUSER) == 0; },
             sockets_}};
  }
  std::string sockets_;
};

}  // namespace heddle::test
