// SPDX-License-Identifier: MIT
// Who may ask for fs-mount --reload, how, and what is refused.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/packet.hpp"
#include "base/process.hpp"
#include "fuseovl/mount_program.hpp"
#include "fuseovl/supervise/reload_protocol.hpp"
#include "tests/overlay/reload_support.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

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

TEST_F(Reload, a_thousand_drifted_files_are_told_as_far_as_they_can_be) {
  MapMaker maker;
  const auto folder = dir_ / std::string(200, 'x');
  for (int i = 0; i < 1000; ++i) {
    const auto name = "file" + std::to_string(i);
    maker.add_name("v", name, write_text_file(folder + "/" + name, "x"));
  }
  maker.write(dir_ / "many");
  Mount m(dir_ / "map1", dir_ / "mnt");
  for (int i = 0; i < 1000; ++i) fs::remove(folder + "/file" + std::to_string(i));
  const auto refused = reload({dir_ / "many", m.path()});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("/file0: missing\n"));
  EXPECT_THAT(refused.err, ContainsRegex("\n... and [0-9]+ more\n"));
  EXPECT_THAT(refused.err, HasSubstr("many: does not fit this node: 1000 files differ\nhint: "));
}

/// A program that becomes fs-mount when the file `go` is there.
std::string build_slow_fs_mount(const TestDir& dir, const std::string& go) {
  return build_program({dir / "slow-fs-mount",
                        "#include <unistd.h>\nint main(int argc, char** argv) {\n"
                        "  while (access(\"" +
                            go + "\", F_OK) != 0) usleep(1000);\n  return execv(\"" + fs_mount() +
                            "\", argv);\n}\n"});
}

TEST_F(Reload, a_mount_that_is_ended_while_the_next_gets_ready_is_not_taken_over) {
  const Mount m(dir_ / "map1", dir_ / "mnt", {"--prefetch", "0"});
  auto held = value_or_throw(open_file(m / "same", O_RDONLY));
  const auto before = children_of(m.pid());
  const auto client = value_or_throw(connect_abstract(m.stat_text("control")));
  ReloadRequest request;
  request.program = value_or_throw(open_file(build_slow_fs_mount(dir_, dir_ / "go"), O_PATH));
  ASSERT_TRUE(send_request(client.get(), request));
  ASSERT_TRUE(wait_until(10s, [&] { return children_of(m.pid()).size() > before.size(); }));
  {
    // It is told of both at once: that the next is ready, and to end.
    const Stopped stopped(m.pid());
    write_text_file(dir_ / "go", "");
    for (const int child : children_of(m.pid()))
      if (std::ranges::find(before, child) == before.end()) {
        ASSERT_TRUE(wait_until(10s, [&] { return !is_running(child); }));
      }
    ::kill(m.pid(), SIGTERM);
  }
  const auto reply = value_or_throw(receive_reply(client.get()));
  EXPECT_FALSE(reply.done);
  EXPECT_THAT(reply.text, HasSubstr("the mount is about to end"));
  EXPECT_EQ(value_or_throw(read_all(held.get(), "same")), "one same\n");
  held.reset();
  EXPECT_TRUE(wait_until(10s, [&] { return !is_running(m.pid()); }));
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

TEST_F(Reload, who_asks_a_supervisor_without_descriptors_waits_until_it_has_some) {
  const Mount m(dir_ / "map1", dir_ / "mnt");
  const auto name = m.stat_text("control");
  std::optional<WithoutDescriptors> full(m.pid());
  const auto client = value_or_throw(connect_abstract(name));
  expect_rest(m.pid());
  EXPECT_EQ(text_of(m / "same"), "one same\n");
  full.reset();
  ReloadRequest request;
  request.program = value_or_throw(open_file(fs_mount(), O_PATH));
  ASSERT_TRUE(send_request(client.get(), request));
  EXPECT_TRUE(value_or_throw(receive_reply(client.get())).done);
}

}  // namespace
}  // namespace heddle::test
