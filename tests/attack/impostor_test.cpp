// SPDX-License-Identifier: MIT

// Attacks on clients by a process that listens in the place of a service, or by a service under the
// name of another.

#include "tests/attack/peers.hpp"

namespace heddle::test {
namespace {

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
  std::set<std::string> names_before;
  const auto name_of_new = [&](const std::string& prefix) {
    std::string out;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(sockets_, none))
      if (const auto name = entry.path().filename().string();
          name.starts_with(prefix) && !names_before.count(name))
        out = name;
    return out;
  };
  const auto note_names = [&] {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(sockets_, none))
      names_before.insert(entry.path().filename());
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
  const auto aside = sockets_ / fs::path("aside");
  fs::rename(relay, aside);
  attack(strict, "session." + id, [&](bool is_free) {
    const auto done = session({"daemon", id, "--wait", "--", "true"});
    EXPECT_NE(done.status, 0);
    if (is_free) return;
    EXPECT_THAT(done.err, HasSubstr("another process listens in place"));
  });
  fs::rename(aside, relay);
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

}  // namespace
}  // namespace heddle::test
