// SPDX-License-Identifier: MIT
// Attacks by processes of the same uid that are not allowed as clients: root of a container, a
// chroot, a sandbox. They find every socket of heddle's daemons, by /proc/net/unix and because the
// sockets' directories are mounted into their root, and send messages that once led to running a
// program, removing a directory or getting a mount.

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <atomic>
#include <set>
#include <thread>

#include "base/content_hash.hpp"
#include "base/mount_service.hpp"
#include "base/run_directory.hpp"
#include "launch/session/messages.hpp"
#include "tests/support/fuse_kernel.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

/// What an attacker has reached; bits of an exit status.
enum Reached : int {
  nothing = 0,
  an_answer = 1,
  a_descriptor = 2,
  not_prepared = 64,
  no_socket = 128
};

struct Weapons {
  Strings directories;  ///< of sockets, by their paths in the attacker's root
  std::string victim;   ///< a directory of the host
  std::string map_id;   ///< a map that the node's service can serve
  Fd map;
  Fd program;
  bool flood = false;
};

Fd connect_by_path(const std::string& path) {
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

/// Every visible socket that may be heddle's.
Strings sockets(const Strings& directories) {
  std::set<std::string> out;
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);)
    if (const auto at = line.find_first_of("@/"); at != line.npos)
      if (line.find("heddle") != line.npos || line.find("lease-") != line.npos)
        out.insert(line.substr(at));
  for (const auto& directory : directories) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(directory, none))
      if (entry.is_socket(none)) out.insert(entry.path());
  }
  return {out.begin(), out.end()};
}

int attack_with(const Fd& socket, std::string_view text, const std::vector<int>& fds) {
  if (!socket) return nothing;
  (void)send_packet(socket.get(), text, fds);
  const auto answer = receive_packet(socket.get(), 300ms);
  if (!answer) return nothing;
  return answer->fds.empty() ? an_answer : an_answer | a_descriptor;
}

/// Sends each socket every message that any version understood, each over its own connection.
int attack(const Weapons& with) {
  const auto found = sockets(with.directories);
  if (found.empty()) return no_socket;
  int reached = nothing;
  const int map = with.map.get(), program = with.program.get();
  const auto version = std::string(1, '\1');  // of mount services up to 0.1.0
  const auto request = [](MountRequest::Verb verb, const std::string& id) {
    Encoder coder;
    coder(MountRequest{.verb = verb, .map_id = id});
    return coder.take();
  };
  using Verb = MountRequest::Verb;
  const std::pair<std::string, std::vector<int>> words[] = {
      {"h", {}},
      {"f" + with.victim, {}},
      {version + "f" + with.victim, {}},
      {with.map_id + " " + with.victim + "/map", {}},
      {request(Verb::want, with.map_id), {map}},
      {request(Verb::want, with.map_id), {program}},
      {request(Verb::want, "../../.." + with.victim), {map}},
      {request(Verb::leave, ""), {}},
      {version + "w" + with.map_id, {map}},
      {version, {program}},
      {"{\"map_path\": \"" + with.victim + "\"}", {program, map}},
      {"\xA2gprogram\x01" + with.victim, {program}},
      {std::string(100'000, '\xFF'), {program, map, program}},
      {std::string(1, '\0'), std::vector<int>(200, program)},
  };
  for (const auto& path : found)
    for (const auto& [text, fds] : words) reached |= attack_with(connect_by_path(path), text, fds);
  std::vector<Fd> silent;
  for (const auto& path : found)
    for (int i = 0; with.flood && i < 2000; ++i) silent.push_back(connect_by_path(path));
  return reached;
}

/// Every kind of daemon, run by root in a network namespace that the attackers share.
class Peer : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Excludes other programs' abstract sockets.
    if (::geteuid() == 0) (void)::unshare(CLONE_NEWNET);
  }
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("not root");
    if (::access("/dev/fuse", R_OK | W_OK) != 0) HEDDLE_SKIP("no /dev/fuse to open");
    const rlimit many{8192, 8192};
    (void)::setrlimit(RLIMIT_NOFILE, &many);
    write_text_file(dir_ / "victim/file", "precious");
    write_text_file(dir_ / "empty/file", "");
    const auto marker = dir_ / "executed";
    program_ =
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
  Weapons weapons(const std::string& root = {}) const {
    Weapons out;
    out.directories = {root.empty() ? value_or_throw(RunDirectory::open()).path() : "/run/heddle",
                       root.empty() ? dir_ / "node" : "/node"};
    out.victim = dir_ / "victim";
    out.map_id = map_id();
    out.map = value_or_throw(open_file(dir_ / "map", O_RDONLY));
    out.program = value_or_throw(open_file(program_, O_PATH));
    return out;
  }
  /// Runs `prepare`, which takes a process's rights, and then `attacks` in its child, so that a new
  /// PID namespace counts.
  static int attack_after(const std::function<bool()>& prepare, const Weapons& with) {
    return attack_after(prepare, [&] { return attack(with); });
  }
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
  std::string own_mounts() const {
    std::ifstream table("/proc/self/mountinfo");
    std::string out;
    for (std::string line; std::getline(table, line);)
      if (line.find(dir_.path()) != line.npos || line.find("/hd-") != line.npos)
        out += line.substr(line.find('/')) + "\n";
    return out;
  }
  void expect_unharmed() const {
    EXPECT_FALSE(fs::exists(dir_ / "executed"));
    EXPECT_EQ(read_file(dir_ / "victim/file").value_or(""), "precious");
    EXPECT_EQ(node_answers(), kernel_has(SYS_open_tree));
    EXPECT_EQ(run({bin("fs-gen"), "-q", "--slow", "/", "--map", dir_ / "map", app_}).status, 0);
    EXPECT_EQ(run({bin("fs-mount"), "--stats", dir_ / "mnt"}).status, 0);
  }
  /// Makes a root directory with the mounts of a careless `--volume`.
  bool make_root(const std::string& root) const {
    for (const char* name : {"/run", "/run/heddle", "/node", "/proc"})
      fs::create_directories(root + name);
    return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount(value_or_throw(RunDirectory::open()).path().c_str(),
                   (root + "/run/heddle").c_str(), nullptr, MS_BIND, nullptr) == 0 &&
           ::mount((dir_ / "node").c_str(), (root + "/node").c_str(), nullptr, MS_BIND, nullptr) ==
               0 &&
           ::mount("/proc", (root + "/proc").c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0;
  }
  static bool drop_all() {
    for (int cap = 0; cap <= 40; ++cap) (void)::prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2]{};
    return ::syscall(SYS_capset, &header, none) == 0 &&
           ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
  }
  static bool map_root() {
    const auto write = [](const char* file, const char* text) {
      const Fd fd(::open(file, O_WRONLY));
      return ::write(fd.get(), text, std::strlen(text)) > 0;
    };
    return write("/proc/self/setgroups", "deny") && write("/proc/self/uid_map", "0 0 1") &&
           write("/proc/self/gid_map", "0 0 1");
  }

  TestDir dir_;
  std::string program_;
  std::string app_;
  std::set<std::string> before_;  ///< names() before the daemons
  std::vector<Child> daemons_;
};

TEST_F(Peer, request_for_another_map_leaves_a_runs_mount_as_it_is) {
  HEDDLE_NEEDS_OPEN_TREE();
  std::string lease;
  for (const auto& name : names())
    if (!before_.count(name)) lease = name;
  const auto directory = value_or_throw(RunDirectory::open());
  const auto map = value_or_throw(open_file(dir_ / "map", O_RDONLY));
  ucred service{};
  const auto ask = [&](const std::string& id) {
    auto socket = value_or_throw(directory.connect_to(lease));
    socklen_t size = sizeof(service);
    EXPECT_EQ(::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &service, &size), 0);
    return MountClient(std::move(socket)).want(id, map.get(), 5s);
  };
  const auto is_served = [&] {
    const auto own = ask(map_id());
    return own && ::faccessat(own->tree.get(), ".heddle/index", F_OK, 0) == 0;
  };
  EXPECT_TRUE(is_served());
  EXPECT_FALSE(ask(hash_bytes("another map").hex()));
  EXPECT_TRUE(is_served()) << "it is unmounted";
  ::kill(daemons_.back().pid(), SIGTERM);
  EXPECT_TRUE(wait_until(20s, [&] { return !is_running(service.pid); })) << "the service is left";
}

TEST_F(Peer, requests_for_another_map_while_a_mount_is_made_take_no_runs_mount_away) {
  HEDDLE_NEEDS_OPEN_TREE();
  const auto directory = value_or_throw(RunDirectory::open());
  const auto map = value_or_throw(open_file(dir_ / "map", O_RDONLY));
  const auto others = names();
  const auto ask_new_services = [&](const std::string& id, int of) {
    for (const auto& name : names())
      if (!others.count(name))
        if (auto socket = directory.connect_to(name))
          if (const auto mount = MountClient(std::move(*socket)).want(id, of, 5s))
            return ::faccessat(mount->tree.get(), ".heddle/index", F_OK, 0) == 0;
    return false;
  };
  std::atomic<bool> is_over = false;
  std::atomic<int> asked = 0;
  std::vector<std::thread> attackers;
  for (int i = 0; i < 4; ++i)
    attackers.emplace_back([&] {
      for (const auto id = hash_bytes("another map").hex(); !is_over; ++asked)
        EXPECT_FALSE(ask_new_services(id, map.get()));
    });
  int served = 0;
  for (int i = 0; i < 10; ++i) {
    SCOPED_TRACE(i);
    const auto own = dir_ / ("map" + std::to_string(i));  // a service of its own
    run_checked({bin("fs-resolve"), "build", "-o", own, i % 2 != 0 ? "/bin/sleep" : "/bin/ls"});
    const auto id = hash_bytes(value_or_throw(read_file(own))).hex();
    const auto file = value_or_throw(open_file(own, O_RDONLY));
    auto run = start_silently(bin("fs-gen"),
                              {"fs-gen", "-q", "--slow", "/", "--map", own, "/bin/sleep", "600"});
    const auto is_served = [&] { return ask_new_services(id, file.get()); };
    if (wait_until(3s, is_served)) {  // else a request came before the run's own
      ++served;
      std::this_thread::sleep_for(200ms);
      EXPECT_TRUE(is_served()) << "it is unmounted";
    }
    ::kill(run.pid(), SIGTERM);
    (void)run.wait_for(10s);
  }
  is_over = true;
  for (auto& attacker : attackers) attacker.join();
  // Not before: a client holds a service.
  EXPECT_TRUE(wait_until(20s, [&] { return names() == others; })) << "a service is left";
  EXPECT_GT(asked, 0);
  EXPECT_GE(served, 1);
}

TEST_F(Peer, owner_gets_a_mount) {
  HEDDLE_NEEDS_OPEN_TREE();
  EXPECT_EQ(attack_after([] { return true; }, weapons()), an_answer | a_descriptor);
  expect_unharmed();
}

TEST_F(Peer, root_of_a_container_reaches_nothing) {
  for (const bool has_capabilities : {false, true}) {
    SCOPED_TRACE(has_capabilities ? "with all capabilities" : "without capabilities");
    const auto before = own_mounts();
    const auto root = dir_ / (has_capabilities ? "root" : "weak-root");
    auto with = weapons(root);
    with.flood = !has_capabilities;
    const auto enter = [&] {
      const int more = has_capabilities ? 0 : CLONE_NEWIPC | CLONE_NEWUTS;
      return ::unshare(CLONE_NEWNS | CLONE_NEWPID | more) == 0 && make_root(root) &&
             ::chroot(root.c_str()) == 0 && ::chdir("/") == 0 && (has_capabilities || drop_all());
    };
    EXPECT_EQ(attack_after(enter, with), nothing);
    // A mount that the node's service gave its owner may go meanwhile; none may come.
    std::istringstream after(own_mounts());
    for (std::string line; std::getline(after, line);) EXPECT_THAT(before, HasSubstr(line));
    expect_unharmed();
  }
}

TEST_F(Peer, same_uid_in_a_user_namespace_reaches_nothing) {
  for (const bool own_mounts : {false, true})
    EXPECT_EQ(attack_after(
                  [&] {
                    return ::unshare(CLONE_NEWUSER | (own_mounts ? CLONE_NEWNS : 0)) == 0 &&
                           map_root();
                  },
                  weapons()),
              nothing);
  expect_unharmed();
}

TEST_F(Peer, another_user_reaches_nothing) {
  EXPECT_THAT((std::vector<int>{nothing, no_socket}),
              ::testing::Contains(attack_after(
                  [] { return ::setgid(1500) == 0 && ::setuid(1500) == 0; }, weapons())));
  expect_unharmed();
}

TEST_F(Peer, thousands_of_silent_clients_block_nobody) {
  const auto with = weapons();
  std::vector<Fd> silent;
  for (const auto& path : sockets(with.directories))
    for (int i = 0; i < 2000; ++i) silent.push_back(connect_by_path(path));
  EXPECT_GE(silent.size(), 2000U);
  const auto begin = std::chrono::steady_clock::now();
  expect_unharmed();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

TEST_F(Peer, client_that_reads_no_answer_blocks_nobody) {
  HEDDLE_NEEDS_OPEN_TREE();  // answers must contain descriptors
  const auto directory = value_or_throw(RunDirectory::find(dir_ / "node"));
  const auto map = value_or_throw(open_file(dir_ / "map", O_RDONLY));
  const int fd = map.get();
  const MountRequest want{.verb = MountRequest::Verb::want, .map_id = map_id()};
  std::vector<Fd> deaf;
  for (int i = 0; i < 300; ++i) {
    auto socket = directory.connect_to("socket");
    if (!socket) break;  // the listen queue is full
    ::fcntl(socket->get(), F_SETFL, O_NONBLOCK);
    for (int n = 0; n < 100; ++n)
      if (!send_record(socket->get(), want, {&fd, 1})) break;
    deaf.push_back(std::move(*socket));
  }
  EXPECT_GT(deaf.size(), 100U);
  const auto begin = std::chrono::steady_clock::now();
  expect_unharmed();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  // Unread answers are freed with their connections.
  deaf.clear();
  EXPECT_TRUE(wait_until(10s, [&] {
    std::error_code none;
    const fs::path fds = "/proc/" + std::to_string(daemons_[0].pid()) + "/fd";
    return std::distance(fs::directory_iterator(fds, none), fs::directory_iterator()) < 50;
  }));
}

TEST_F(Peer, no_daemon_listens_at_an_abstract_name) {
  const auto abstract = [] { return value_or_throw(read_file("/proc/net/unix")); };
  EXPECT_THAT(abstract(), Not(HasSubstr("@")));  // fs-mount, --node and fs-gen
  start({"fs-record", "--out", dir_ / "trace", "--", "/bin/sleep", "600"});
  ASSERT_TRUE(wait_until(20s, [&] {
    return read_file(dir_ / "trace").value_or("").find("sleep") != std::string::npos;
  }));
  EXPECT_THAT(abstract(), Not(HasSubstr("@")));
  ::kill(daemons_.back().pid(), SIGTERM);
  EXPECT_EQ(run({bin("fs-mount"), "--reload", "--prefetch", "0", dir_ / "mnt"}).status, 0);
  EXPECT_THAT(abstract(), Not(HasSubstr("@")));
}

TEST_F(Peer, socket_directory_is_private_to_its_owner) {
  struct stat st {};
  ASSERT_EQ(::stat(value_or_throw(RunDirectory::open()).path().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0700U);
  EXPECT_EQ(st.st_uid, 0U);
  fs::create_directory(dir_ / "open");
  fs::permissions(dir_ / "open", fs::perms(0777));
  EXPECT_THAT(RunDirectory::open_at(dir_ / "open").error().message(),
              HasSubstr("others may write to it"));
  fs::create_directory_symlink(dir_ / "victim", dir_ / "link");
  EXPECT_FALSE(RunDirectory::open_at(dir_ / "link"));
  fs::create_directory(dir_ / "anothers");
  ASSERT_EQ(::chown((dir_ / "anothers").c_str(), 1500, 1500), 0);
  EXPECT_EQ(RunDirectory::open_at(dir_ / "anothers").error().code(), EPERM);
  EXPECT_EQ(run({bin("fs-mount"), "--node", dir_ / "open"}).status, 3);
}

/// Ways to confine a process of the same uid, each with the directory of sockets in its root.
struct Cage {
  std::string name;
  std::function<bool()> enter;
  std::string sockets;
};

bool add_filter() {
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
  /// The lines of /proc/PID/status that tell of rights.
  static Strings rights_in(const std::string& status) {
    auto lines = lines_of(status);
    std::erase_if(lines, [](const auto& line) {
      return !line.starts_with("Cap") && !line.starts_with("NoNewPrivs") &&
             !line.starts_with("Seccomp");
    });
    return lines;
  }
  /// Those of the service's process `name`.
  Strings rights_of(const std::string& name) const {
    for (const auto& entry : fs::directory_iterator("/proc"))
      if (read_file(entry.path() / "comm").value_or("") == name + "\n" &&
          read_file(entry.path() / "environ").value_or("").find(dir_.path()) != std::string::npos)
        return rights_in(read_file(entry.path() / "status").value_or(""));
    return {};
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
  std::set<std::string> names_before_;
};

TEST_P(PowerfulService, session_runs_nothing_for_a_confined_peer) {
  HEDDLE_STAGED(fs_launch, "fs-launch");
  const auto marker = dir_ / "home/executed";
  const auto payload =
      build_program({dir_ / "payload", "#include <fcntl.h>\nint main(void) { return open(\"" +
                                           marker + "\", O_CREAT | O_WRONLY, 0666) < 0; }\n"});
  const auto id = make_session();
  ASSERT_NE(id, "");
  // docs/security.md
  EXPECT_EQ(rights_of("heddle-session"),
            rights_in(run_checked(as_user({"cat", "/proc/self/status"})).out));
  Encoder order;
  launch::Request request{.op = launch::Op::daemon, .words = {"", "/", payload}};
  order(request);
  const auto text = order.take();
  const auto attack_at = [&](const std::string& directory) {
    return [=] {
      if (::chdir(directory.c_str()) != 0) return int{no_socket};
      const auto socket = connect_by_path("session." + id);
      if (!socket) return int{no_socket};
      (void)send_packet(socket.get(), text);
      return int{receive_packet(socket.get(), 30s) ? an_answer : nothing};
    };
  };
  const auto has_run = [&] { return fs::remove(marker); };
  // Positive control.
  EXPECT_EQ(attack_after([this] { return become_user(); }, attack_at(sockets_)), an_answer);
  EXPECT_TRUE(wait_until(10s, has_run));
  auto all = cages();
  all.push_back({"no_new_privs",
                 [this] { return become_user() && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0; },
                 sockets_});
  if (GetParam() == 0) {
    all.push_back({"no capabilities",
                   [] {
                     __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
                     __user_cap_data_struct none[2]{};
                     return ::syscall(SYS_capset, &header, none) == 0;
                   },
                   sockets_});
    all.push_back({"an empty bounding set",
                   [] {
                     for (int cap = 0; cap <= 40; ++cap)
                       (void)::prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
                     return true;
                   },
                   sockets_});
    all.push_back({"a filter", add_filter, sockets_});
  }
  for (const auto& [name, enter, directory] : all)
    EXPECT_EQ(attack_after(enter, attack_at(directory)), nothing) << name;
  // It is not deaf, has run nothing late, and tells a user why.
  EXPECT_EQ(session({"daemon", id, "--wait", "--", "true"}).status, 0);
  EXPECT_FALSE(has_run());
  const auto refused = run(
      as_user({"setpriv", "--no-new-privs", fs_launch, "session", "daemon", id, "--", payload}));
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("refuses this process"));
  const auto ended = session({"destroy", id});
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_FALSE(has_run());
}

TEST_P(PowerfulService, nodes_container_admits_only_processes_of_its_starters_place) {
  HEDDLE_STAGED(fs_hook, "fs-hook");
  build_program({.output = dir_ / "image/bin/wait",
                 .source = "#include <unistd.h>\nint main(void) { return pause(); }\n",
                 .flags = {"-static"}});
  const auto names = [this] {
    std::set<std::string> out;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(sockets_, none))
      if (const auto name = entry.path().filename().string(); name.starts_with("root-"))
        out.insert(name);
    return out;
  };
  const auto before = names();
  const auto words = as_user({fs_hook, "run", "--policy", "warn", "--cache", dir_ / "home/cache",
                              "--rootfs", dir_ / "image", "--chdir", "/", "--", "/bin/wait"});
  auto container = start_silently("/usr/bin/setpriv", words);
  std::string name;
  ASSERT_TRUE(wait_until(30s, [&] {
    for (const auto& each : names())
      if (!before.count(each)) name = each;
    return !name.empty() &&
           read_file("/proc/" + std::to_string(container.pid()) + "/comm").value_or("") == "wait\n";
  }));
  // docs/security.md
  EXPECT_EQ(rights_of("heddle-door"),
            rights_in(run_checked(as_user({"cat", "/proc/self/status"})).out));
  const auto rights = rights_of("heddle-root");
  EXPECT_THAT(rights, ::testing::SizeIs(::testing::Ge(7U)));
  for (const auto& line : rights)
    if (line.starts_with("Cap")) {
      EXPECT_THAT(line, HasSubstr("\t0000000000000000"));
    }
  const auto attack_at = [&](const std::string& directory, const std::vector<Fd>* spaces) {
    return [&, directory, spaces] {
      int reached = nothing;
      if (::chdir(directory.c_str()) != 0) return int{no_socket};
      std::vector<Fd> own;
      for (const char* space : {"/proc/self/ns/mnt", "/proc/self/ns/user"})
        if (auto fd = open_file(space, O_PATH)) own.push_back(std::move(*fd));
      // A chroot without /proc.
      const auto& mine = own.empty() ? *spaces : own;
      const Fd root(::open("/", O_PATH));
      const std::vector<int> proof{mine.at(0).get(), mine.at(1).get(), root.get()};
      for (const auto& fds :
           {proof, std::vector<int>{}, std::vector<int>(3, root.get()),
            std::vector<int>{proof[0], proof[1]}, std::vector<int>(200, proof[0])}) {
        const auto socket = connect_by_path(name);
        if (!socket) return int{no_socket};
        (void)send_packet(socket.get(), "enter", fds);
        const auto answer = receive_packet(socket.get(), 30s);
        if (answer) reached |= an_answer | (answer->fds.empty() ? 0 : a_descriptor);
      }
      return reached;
    };
  };
  std::vector<Fd> spaces;
  for (const char* space : {"/proc/self/ns/mnt", "/proc/self/ns/user"})
    spaces.push_back(value_or_throw(open_file(space, O_PATH)));
  EXPECT_EQ(attack_after([this] { return become_user(); }, attack_at(sockets_, &spaces)),
            an_answer | a_descriptor);
  for (const auto& [cage, enter, directory] : cages())
    EXPECT_EQ(attack_after(enter, attack_at(directory, &spaces)), nothing) << cage;
  ::kill(container.pid(), SIGKILL);
  (void)container.wait();
  EXPECT_TRUE(wait_until(10s, [&] { return names() == before; }));
}

/// A process in a cage that listens at the socket `name`, in the place of a service, and answers
/// each client with a mount and namespaces of its own.
class Impostor {
 public:
  Impostor(const Cage& cage, const std::string& name)
      : pipe_(value_or_throw(make_pipe())), outer_(value_or_throw(fork_child({}, [&] {
          if (!cage.enter()) return int{not_prepared};
          const pid_t inner = ::fork();  // for a new PID namespace
          if (inner != 0) return ::waitpid(inner, nullptr, 0) > 0 ? 0 : 1;
          (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
          answer(cage.sockets, name);
          ::_exit(1);
        }))) {
    pipe_.write_end.reset();
    listens_ = wait_for_input(pipe_.read_end.get(), 20s).value_or(false) && word() == 'L';
  }
  bool listens() const { return listens_; }
  /// What a client has sent since: nothing, 'p' a packet, 'd' one with descriptors.
  char has_got() const {
    return wait_for_input(pipe_.read_end.get(), 0ms).value_or(false) ? word() : '\0';
  }

 private:
  char word() const {
    char out = '\0';
    return ::read(pipe_.read_end.get(), &out, 1) == 1 ? out : '\0';
  }
  void answer(const std::string& directory, const std::string& name) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (::chdir(directory.c_str()) != 0 || (::unlink(name.c_str()) != 0 && errno != ENOENT) ||
        ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        ::listen(listener.get(), 16) != 0)
      return;
    const Fd mounts(::open("/proc/self/ns/mnt", O_RDONLY));
    const Fd users(::open("/proc/self/ns/user", O_RDONLY));
    (void)::write(pipe_.write_end.get(), "L", 1);
    for (;;) {
      const Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const auto packet = receive_packet(client.get(), 10s);
      if (!packet) continue;
      (void)::write(pipe_.write_end.get(), packet->fds.empty() ? "p" : "d", 1);
      const int fds[] = {mounts.get(), users.get()};
      if (packet->text == "enter")
        (void)send_packet(client.get(), "enter", fds);
      else
        grant_mount(client.get(), "/hostile", -1);
    }
  }

  Pipe pipe_;
  Child outer_;
  bool listens_ = false;
};

TEST_P(PowerfulService, clients_take_nothing_from_a_confined_process_that_listens_in_its_place) {
  HEDDLE_STAGED(fs_launch, "fs-launch");
  HEDDLE_STAGED(fs_hook, "fs-hook");
  const bool is_root = GetParam() == 0;
  const auto drop = [](const std::function<bool()>& first) {
    return [=] { return first() && drop_all(); };
  };
  auto strict = cages();
  strict.push_back(
      {"no_new_privs",
       [this] { return become_user() && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0; },
       sockets_});
  if (is_root) {
    strict.push_back({"no capabilities", [] { return drop_all(); }, sockets_});
    strict.push_back({"a filter", add_filter, sockets_});
    strict.push_back({"a mount namespace without capabilities",
                      drop([] { return ::unshare(CLONE_NEWNS) == 0; }), sockets_});
  }
  // Root with CAP_SYS_ADMIN that sees the same root may enter the client's mount namespace.
  auto confined = strict;
  if (is_root)
    std::erase_if(confined, [](const Cage& cage) {
      return cage.name == "a mount namespace" || cage.name == "no_new_privs" ||
             cage.name == "a filter";
    });
  const Cage free{"free", [this] { return become_user(); }, sockets_};
  /// `client` is run once for each cage, and once with a free process, which it believes.
  const auto attack = [&](const std::vector<Cage>& all, const std::string& name,
                          const std::function<void(bool is_free)>& client) {
    for (const auto& cage : all) {
      SCOPED_TRACE(cage.name);
      const Impostor impostor(cage, name);
      ASSERT_TRUE(impostor.listens());
      client(false);
      EXPECT_EQ(impostor.has_got(), '\0');
    }
    const Impostor impostor(free, name);
    ASSERT_TRUE(impostor.listens());
    client(true);
    EXPECT_NE(impostor.has_got(), '\0');
  };
  const auto name_of_new = [this](const std::string& prefix) {
    std::string out;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(sockets_, none))
      if (const auto name = entry.path().filename().string();
          name.starts_with(prefix) && !names_before_.count(name))
        out = name;
    return out;
  };
  const auto note_names = [&] {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(sockets_, none))
      names_before_.insert(entry.path().filename());
  };
  /// The name of the socket that a client makes, which is ended once it `runs`.
  const auto use_once = [&](const Strings& words, const std::string& prefix,
                            const std::function<bool(pid_t)>& runs) {
    note_names();
    auto first = start_silently("/usr/bin/setpriv", words);
    std::string name;
    EXPECT_TRUE(wait_until(30s, [&] {
      name = name_of_new(prefix);
      return !name.empty() && runs(first.pid());
    }));
    ::kill(first.pid(), SIGTERM);
    (void)first.wait();
    EXPECT_TRUE(wait_until(20s, [&] { return name_of_new(prefix).empty(); }));
    return name;
  };

  // fs-gen and the service of a shared mount.
  app_ = build_program({dir_ / "app",
                        "#include <fcntl.h>\n#include <unistd.h>\nint main(int n, char** v) "
                        "{ return n > 1 && creat(v[1], 0600) > 0 ? pause() : 0; }\n"});
  run_checked({bin("fs-resolve"), "build", "-o", dir_ / "map", app_});
  const auto guided = [&](const Strings& words) {
    return as_user(Strings{"TMPDIR=" + (dir_ / "home"), bin("fs-gen"), "-q", "--slow", "/", "--map",
                           dir_ / "map", app_} +
                   words);
  };
  // A /dev/fuse for users, as on most nodes.
  const auto here = value_or_throw(open_file("/proc/self/ns/mnt", O_RDONLY));
  if (struct stat st{}; !is_root && ::stat("/dev/fuse", &st) == 0 && (st.st_mode & 0006) == 0) {
    const auto device = dir_ / "fuse";
    ASSERT_EQ(::mknod(device.c_str(), S_IFCHR, st.st_rdev), 0);
    ASSERT_EQ(::chmod(device.c_str(), 0666), 0);
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(::mount(device.c_str(), "/dev/fuse", nullptr, MS_BIND, nullptr), 0);
  }
  const auto lease = use_once(guided({dir_ / "home/runs"}), "lease-",
                              [this](pid_t) { return fs::exists(dir_ / "home/runs"); });
  ASSERT_FALSE(lease.empty());
  attack(confined, lease, [&](bool is_free) {
    const auto done = run(guided({}));
    if (is_free) return;
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_THAT(done.err, HasSubstr("another process listens in place of the mount service"));
  });
  fs::remove(sockets_ / fs::path(lease));
  ASSERT_EQ(::setns(here.get(), CLONE_NEWNS), 0);

  // fs-launch session and its relay.
  const auto id = make_session();
  ASSERT_NE(id, "");
  const auto relay = sockets_ / fs::path("session." + id);
  fs::rename(relay, dir_ / "home/aside");
  attack(strict, "session." + id, [&](bool is_free) {
    const auto done = session({"daemon", id, "--wait", "--", "true"});
    EXPECT_NE(done.status, 0);
    if (is_free) return;
    EXPECT_THAT(done.err, HasSubstr("another process listens in place"));
  });
  fs::rename(dir_ / "home/aside", relay);
  EXPECT_EQ(session({"destroy", id}).status, 0);

  // fs-hook run and the server of its container.
  build_program({.output = dir_ / "image/bin/wait",
                 .source = "#include <unistd.h>\nint main(int n, char** v) "
                           "{ return n > 1 ? pause() : 0; }\n",
                 .flags = {"-static"}});
  const auto contained = [&](const Strings& words) {
    return as_user(Strings{fs_hook, "run", "--policy", "warn", "--cache", dir_ / "home/cache",
                           "--rootfs", dir_ / "image", "--chdir", "/", "--", "/bin/wait"} +
                   words);
  };
  const auto root = use_once(contained({"wait"}), "root-", [](pid_t pid) {
    return read_file("/proc/" + std::to_string(pid) + "/comm").value_or("") == "wait\n";
  });
  ASSERT_FALSE(root.empty());
  attack(strict, root, [&](bool is_free) {
    const auto done = run(contained({}));
    if (is_free) return;
    EXPECT_NE(done.status, 0);
    EXPECT_THAT(done.err, HasSubstr("another process listens in its place"));
  });
  fs::remove(sockets_ / fs::path(root));
}

TEST_P(PowerfulService, clients_refuse_a_service_under_the_name_of_another) {
  HEDDLE_STAGED(fs_launch, "fs-launch");
  Strings ids;
  std::vector<fs::path> relays;
  for (int i = 0; i < 2; ++i) {
    ids.push_back(make_session());
    ASSERT_NE(ids.back(), "");
    relays.push_back(fs::path(sockets_) / ("session." + ids[i]));
  }
  const auto aside = fs::path(sockets_) / ("aside." + ids[1]);
  for (const bool by_link : {false, true}) {
    SCOPED_TRACE(by_link ? "by a link" : "by a rename");
    fs::rename(relays[1], aside);
    by_link ? fs::create_symlink(relays[0], relays[1]) : fs::rename(relays[0], relays[1]);
    const auto done = session({"daemon", ids[1], "--wait", "--", "touch", dir_ / "home/ran"});
    EXPECT_NE(done.status, 0);
    EXPECT_THAT(done.err, HasSubstr("another process listens in place"));
    EXPECT_FALSE(fs::exists(dir_ / "home/ran"));
    by_link ? (void)fs::remove(relays[1]) : fs::rename(relays[1], relays[0]);
    fs::rename(aside, relays[1]);
  }
  for (const auto& id : ids) {
    EXPECT_EQ(session({"daemon", id, "--wait", "--", "true"}).status, 0);
    EXPECT_EQ(session({"destroy", id}).status, 0);
  }
}

TEST_F(Peer, fs_gen_takes_no_mount_from_another_service_under_a_leases_name) {
  HEDDLE_NEEDS_OPEN_TREE();
  std::string lease;
  for (const auto& name : names())
    if (!before_.count(name)) lease = name;
  const auto directory = fs::path(value_or_throw(RunDirectory::open()).path());
  const auto guided = [this] {
    const auto done = run({bin("fs-gen"), "-q", "--slow", "/", "--map", dir_ / "map", app_});
    EXPECT_EQ(done.status, 0) << done.err;
    return done.err;
  };
  const std::string warning = "another process listens in place of the mount service";
  EXPECT_THAT(guided(), Not(HasSubstr(warning)));
  fs::rename(directory / lease, directory / ("aside-" + lease));
  fs::create_symlink(dir_ / "node/socket", directory / lease);
  EXPECT_THAT(guided(), HasSubstr(warning));
  EXPECT_EQ(value_or_throw(RunDirectory::open()).connect_to(lease).error().code(), EADDRNOTAVAIL);
  fs::rename(directory / ("aside-" + lease), directory / lease);
  EXPECT_THAT(guided(), Not(HasSubstr(warning)));
}

TEST_F(Peer, client_knows_the_nodes_service_from_a_confined_process) {
  const auto knows = [this](const std::string& directory) {
    const auto found = RunDirectory::find(directory);
    const auto socket = found ? found->connect_to("socket") : fail(found.error());
    return socket && is_own_server(socket->get());
  };
  EXPECT_TRUE(knows(dir_ / "node"));
  const auto directory = dir_ / "other";
  fs::create_directories(directory);
  fs::permissions(directory, fs::perms(0700));
  const auto root = dir_ / "root";
  for (const char* name : {"/proc", "/node"}) fs::create_directories(root + name);
  const auto enter_container = [&] {
    return ::unshare(CLONE_NEWNS | CLONE_NEWPID) == 0 &&
           ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount(directory.c_str(), (root + "/node").c_str(), nullptr, MS_BIND, nullptr) == 0 &&
           ::chroot(root.c_str()) == 0;
  };
  const Cage cages[] = {
      {"a container with all capabilities", enter_container, "/node"},
      {"a container", [&] { return enter_container() && drop_all(); }, "/node"},
      {"a chroot", [&] { return ::chroot(dir_.path().c_str()) == 0; }, "/other"},
      {"a user namespace", [] { return ::unshare(CLONE_NEWUSER) == 0; }, directory},
      {"no capabilities", [] { return drop_all(); }, directory}};
  for (const auto& cage : cages) {
    const Impostor impostor(cage, "socket");
    ASSERT_TRUE(impostor.listens()) << cage.name;
    EXPECT_FALSE(knows(directory)) << cage.name;
  }
  const Impostor impostor({"free", [] { return true; }, directory}, "socket");
  EXPECT_TRUE(knows(directory));
}

INSTANTIATE_TEST_SUITE_P(Users, PowerfulService, ::testing::Values(0U, 1500U),
                         [](const auto& each) { return each.param == 0 ? "root" : "user"; });

}  // namespace
}  // namespace heddle::test
