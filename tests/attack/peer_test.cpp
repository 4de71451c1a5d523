// SPDX-License-Identifier: MIT

// Attacks on the mount services. Peers find every socket of heddle's daemons, by /proc/net/unix and
// because the sockets' directories are mounted into their root, and send messages that once led to
// running a program, removing a directory or getting a mount.

#include <atomic>
#include <thread>

#include "tests/attack/peers.hpp"

namespace heddle::test {
namespace {

struct Weapons {
  Strings directories;  ///< of sockets, by their paths in the attacker's root
  std::string victim;   ///< a directory of the host
  std::string map_id;   ///< a map that the node's service can serve
  Fd map;
  Fd program;
  bool flood = false;
};

Weapons weapons(const TestDir& dir, const std::string& map_id, const std::string& root = {}) {
  Weapons out;
  out.directories = {root.empty() ? value_or_throw(RunDirectory::open()).path() : "/run/heddle",
                     root.empty() ? dir / "node" : "/node"};
  out.victim = dir / "victim";
  out.map_id = map_id;
  out.map = value_or_throw(open_file(dir / "map", O_RDONLY));
  out.program = value_or_throw(open_file(dir / "payload", O_PATH));
  return out;
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

std::string mounts_of(const TestDir& dir) {
  std::ifstream table("/proc/self/mountinfo");
  std::string out;
  for (std::string line; std::getline(table, line);)
    if (line.find(dir.path()) != line.npos || line.find("/hd-") != line.npos)
      out += line.substr(line.find('/')) + "\n";
  return out;
}

/// Makes a root directory with the mounts of a careless `--volume`.
bool make_root(const TestDir& dir, const std::string& root) {
  for (const char* name : {"/run", "/run/heddle", "/node", "/proc"})
    fs::create_directories(root + name);
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount(value_or_throw(RunDirectory::open()).path().c_str(),
                 (root + "/run/heddle").c_str(), nullptr, MS_BIND, nullptr) == 0 &&
         ::mount((dir / "node").c_str(), (root + "/node").c_str(), nullptr, MS_BIND, nullptr) ==
             0 &&
         ::mount("/proc", (root + "/proc").c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0;
}

bool map_root() {
  const auto write = [](const char* file, const char* text) {
    const Fd fd(::open(file, O_WRONLY));
    return ::write(fd.get(), text, std::strlen(text)) > 0;
  };
  return write("/proc/self/setgroups", "deny") && write("/proc/self/uid_map", "0 0 1") &&
         write("/proc/self/gid_map", "0 0 1");
}

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
  const auto ask_new_services = [&](const std::string& id) {
    for (const auto& name : names())
      if (!others.count(name))
        if (auto socket = directory.connect_to(name))
          if (MountClient(std::move(*socket)).want(id, map.get(), 5s)) return true;
    return false;
  };
  // In the namespace of a run, which has none if another request came before its own.
  const auto mount_in = [](pid_t process) -> std::string {
    const auto proc = "/proc/" + std::to_string(process);
    std::istringstream pids(
        std::to_string(process) + " " +
        read_file(proc + "/task/" + std::to_string(process) + "/children").value_or(""));
    for (std::string pid; pids >> pid;)
      for (const auto& mount : list_mounts("/proc/" + pid).value_or(std::vector<MountEntry>()))
        if (mount.type == "fuse.heddle" && mount.point.find("/hd-") != mount.point.npos)
          return "/proc/" + pid + "/root" + mount.point;
    return {};
  };
  std::atomic<bool> is_over = false;
  std::atomic<int> asked = 0;
  std::vector<std::thread> attackers;
  for (int i = 0; i < 4; ++i)
    attackers.emplace_back([&] {
      for (const auto id = hash_bytes("another map").hex(); !is_over; ++asked)
        EXPECT_FALSE(ask_new_services(id));
    });
  int served = 0;
  for (int i = 0; i < 10; ++i) {
    SCOPED_TRACE(i);
    const auto own = dir_ / ("map" + std::to_string(i));  // a service of its own
    run_checked({bin("fs-resolve"), "build", "-o", own, i % 2 != 0 ? "/bin/sleep" : "/bin/ls"});
    auto run = start_silently(bin("fs-gen"),
                              {"fs-gen", "-q", "--slow", "/", "--map", own, "/bin/sleep", "600"});
    const auto is_served = [&] {
      const auto mount = mount_in(run.pid());
      return !mount.empty() && fs::exists(mount + "/.heddle/index");
    };
    if (wait_until(1s, is_served)) {
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
  const auto with = weapons(dir_, map_id());
  EXPECT_EQ(attack_after([] { return true; }, [&] { return attack(with); }),
            an_answer | a_descriptor);
  expect_unharmed();
}

TEST_F(Peer, root_of_a_container_reaches_nothing) {
  for (const bool has_capabilities : {false, true}) {
    SCOPED_TRACE(has_capabilities ? "with all capabilities" : "without capabilities");
    const auto before = mounts_of(dir_);
    const auto root = dir_ / (has_capabilities ? "root" : "weak-root");
    auto with = weapons(dir_, map_id(), root);
    with.flood = !has_capabilities;
    const auto enter = [&] {
      const int more = has_capabilities ? 0 : CLONE_NEWIPC | CLONE_NEWUTS;
      return ::unshare(CLONE_NEWNS | CLONE_NEWPID | more) == 0 && make_root(dir_, root) &&
             ::chroot(root.c_str()) == 0 && ::chdir("/") == 0 && (has_capabilities || drop_all());
    };
    EXPECT_EQ(attack_after(enter, [&] { return attack(with); }), nothing);
    // A mount that the node's service gave its owner may go meanwhile; none may come.
    std::istringstream after(mounts_of(dir_));
    for (std::string line; std::getline(after, line);) EXPECT_THAT(before, HasSubstr(line));
    expect_unharmed();
  }
}

TEST_F(Peer, same_uid_in_a_user_namespace_reaches_nothing) {
  const auto with = weapons(dir_, map_id());
  for (const bool own_mounts : {false, true}) {
    const auto enter = [&] {
      return ::unshare(CLONE_NEWUSER | (own_mounts ? CLONE_NEWNS : 0)) == 0 && map_root();
    };
    EXPECT_EQ(attack_after(enter, [&] { return attack(with); }), nothing);
  }
  expect_unharmed();
}

TEST_F(Peer, another_user_reaches_nothing) {
  const auto with = weapons(dir_, map_id());
  const auto become_another = [] { return ::setgid(1500) == 0 && ::setuid(1500) == 0; };
  EXPECT_THAT((std::vector<int>{nothing, no_socket}),
              ::testing::Contains(attack_after(become_another, [&] { return attack(with); })));
  expect_unharmed();
}

TEST_F(Peer, thousands_of_silent_clients_block_nobody) {
  const auto with = weapons(dir_, map_id());
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

}  // namespace
}  // namespace heddle::test
