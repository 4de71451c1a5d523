// SPDX-License-Identifier: MIT

// Attacks on the services of fs-launch and fs-hook run by confined peers.

#include "launch/session/messages.hpp"
#include "tests/attack/peers.hpp"

namespace heddle::test {
namespace {

/// The lines of /proc/PID/status that tell of rights.
Strings rights_in(const std::string& status) {
  auto lines = lines_of(status);
  std::erase_if(lines, [](const auto& line) {
    return !line.starts_with("Cap") && !line.starts_with("NoNewPrivs") &&
           !line.starts_with("Seccomp");
  });
  return lines;
}

/// Those of the service's process `name`.
Strings rights_of(const std::string& name, const TestDir& dir) {
  for (const auto& entry : fs::directory_iterator("/proc"))
    if (read_file(entry.path() / "comm").value_or("") == name + "\n" &&
        read_file(entry.path() / "environ").value_or("").find(dir.path()) != std::string::npos)
      return rights_in(read_file(entry.path() / "status").value_or(""));
  return {};
}

TEST_P(PowerfulService, session_runs_nothing_for_a_confined_peer) {
  HEDDLE_STAGED(fs_launch, "fs-launch");
  const auto marker = dir_ / "home/executed";
  const auto payload =
      build_program({dir_ / "payload", "#include <fcntl.h>\nint main(void) { return open(\"" +
                                           marker + "\", O_CREAT | O_WRONLY, 0666) < 0; }\n"});
  const auto id = make_session();
  ASSERT_NE(id, "");
  // docs/security.md
  EXPECT_EQ(rights_of("heddle-session", dir_),
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
  EXPECT_EQ(rights_of("heddle-door", dir_),
            rights_in(run_checked(as_user({"cat", "/proc/self/status"})).out));
  const auto rights = rights_of("heddle-root", dir_);
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

INSTANTIATE_TEST_SUITE_P(Users, PowerfulService, ::testing::Values(0U, 1500U),
                         [](const auto& each) { return each.param == 0 ? "root" : "user"; });

}  // namespace
}  // namespace heddle::test
