// SPDX-License-Identifier: MIT
// fs-mount --fuse-fd: the daemon serves a mount of another namespace.

#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "base/mount_service.hpp"
#include "base/mounts.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "fuseovl/mount/warm_up.hpp"
#include "tests/overlay/overlay_support.hpp"

namespace heddle::test {
namespace {

/// A child in a mount namespace with a heddle mount that only it sees, until end(). It warms the
/// mount before its first read.
class PrivateMount {
 public:
  explicit PrivateMount(const std::string& mount_point) {
    auto sockets = value_or_throw(make_socket_pair());
    pid_ = ::fork();
    if (pid_ == 0) live(mount_point, sockets.other.get());
    socket_ = std::move(sockets.one);
    device_ = value_or_throw(receive_fd(socket_.get()));
  }
  PrivateMount(const PrivateMount&) = delete;
  PrivateMount& operator=(const PrivateMount&) = delete;
  ~PrivateMount() { end(); }

  pid_t pid() const { return pid_; }
  Fd take_device() { return std::move(device_); }
  /// The child's read of the file `name`, or of the statistics.
  std::string read(const std::string& name) {
    (void)!::send(socket_.get(), name.data(), name.size(), MSG_NOSIGNAL);
    char buffer[4096];
    const auto n = ::recv(socket_.get(), buffer, sizeof(buffer), 0);
    return std::string(buffer, n > 0 ? static_cast<std::size_t>(n) : 0);
  }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  [[noreturn]] static void live(const std::string& mount_point, int socket) {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      ::_exit(1);
    {
      auto device = open_fuse_device();
      if (!device || !mount_fuse_device(device->get(), mount_point)) ::_exit(2);
      if (!send_fd(socket, device->get())) ::_exit(3);
    }
    char name[256];
    bool warm = false;
    for (;;) {
      const auto n = ::recv(socket, name, sizeof(name), 0);
      if (n <= 0) ::_exit(0);
      if (!warm) warm = warm_up(mount_point).has_value();
      const std::string file(name, static_cast<std::size_t>(n));
      const auto text = file == kStatsAttribute ? read_stats_text(mount_point)
                                                : read_file(mount_point + "/" + file);
      const std::string answer = text ? *text : "error: " + text.error().message();
      (void)!::send(socket, answer.data(), std::min<std::size_t>(answer.size(), 4000),
                    MSG_NOSIGNAL);
    }
  }

  pid_t pid_ = -1;
  Fd socket_;
  Fd device_;
};

class FuseFd : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    fs::create_directories(work() + "/m");
    write_text_file(work() + "/counters", "x");
    write_text_file(dir_ / "src/a.so", "content of a");
    MapMaker maker;
    maker.add_directory("v", dir_ / "src");
    maker.write(dir_ / "map");
  }
  std::string work() const { return dir_ / "work"; }
  Child start(Fd device, std::vector<std::string> more = {}) {
    auto sockets = value_or_throw(make_socket_pair());
    ready_ = std::move(sockets.one);
    SpawnOptions options;
    options.fds = {{device.get(), 7}, {sockets.other.get(), 9}};
    std::vector<std::string> argv = {"fs-mount", "--fuse-fd",     "7",           "--ready-fd",
                                     "9",        "--mount-point", work() + "/m", "--cleanup",
                                     work(),     dir_ / "map"};
    argv.insert(argv.end(), more.begin(), more.end());
    return value_or_throw(spawn(fs_mount(), argv, options));
  }

  TestDir dir_;
  Fd ready_;
};

TEST_F(FuseFd, daemon_serves_a_mount_of_another_namespace_and_ends_with_it) {
  PrivateMount mount(work() + "/m");
  auto daemon = start(mount.take_device());
  ASSERT_TRUE(await_ready(ready_.get()));
  EXPECT_EQ(mount.read("a.so"), "content of a");
  EXPECT_THAT(mount.read(kStatsAttribute), HasSubstr(work() + "/m"));
  EXPECT_EQ(mounts_with(work()), 0U);
  mount.end();
  EXPECT_EQ(value_or_throw(daemon.wait_for(5s)), std::optional(0));
  EXPECT_FALSE(fs::exists(work()));
  // The final statistics follow the ready byte.
  const auto counters = nlohmann::json::parse(value_or_throw(read_all(ready_.get(), "ready")));
  EXPECT_GT(counters.at("requests_total").get<int>(), 5);
}

TEST_F(FuseFd, first_sigterm_does_not_end_the_daemon) {
  PrivateMount mount(work() + "/m");
  auto daemon = start(mount.take_device(), {"--prefetch", "0"});
  ASSERT_TRUE(await_ready(ready_.get()));
  ready_.reset();  // the caller may be gone
  ::kill(daemon.pid(), SIGTERM);
  EXPECT_EQ(mount.read("a.so"), "content of a");
  // A second one is lost while the first is pending.
  std::optional<int> status;
  EXPECT_TRUE(wait_until(5s, [&] {
    ::kill(daemon.pid(), SIGTERM);
    status = value_or_throw(daemon.wait_for(100ms));
    return status.has_value();
  }));
  EXPECT_EQ(status, std::optional(0));
  EXPECT_FALSE(fs::exists(work()));
}

// docs/security.md: the daemon never unmounts, so it keeps no capability.
TEST_F(FuseFd, daemon_has_no_rights_and_a_session_of_its_own) {
  PrivateMount mount(work() + "/m");
  auto daemon = start(mount.take_device());
  ASSERT_TRUE(await_ready(ready_.get()));
  const auto process = "/proc/" + std::to_string(daemon.pid());
  const auto status = value_or_throw(read_file(process + "/status"));
  for (const char* line : {"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n",
                           "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"})
    EXPECT_THAT(status, HasSubstr(line));
  EXPECT_EQ(::getsid(daemon.pid()), daemon.pid());
  // stdio, device, ready, map, one object, signalfd, Landlock rules, worker
  EXPECT_LE(std::distance(fs::directory_iterator(process + "/fd"), {}), 10);
}

TEST_F(FuseFd, errors_come_through_the_ready_descriptor) {
  fs::remove(dir_ / "src/a.so");
  PrivateMount mount(work() + "/m");
  auto daemon = start(mount.take_device());
  const auto ready = await_ready(ready_.get());
  ASSERT_FALSE(ready);
  EXPECT_THAT(ready.error().message(), HasSubstr("1 file differs"));
  EXPECT_THAT(ready.error().message(), HasSubstr("a.so: missing"));
  EXPECT_EQ(value_or_throw(daemon.wait()), 3);
  EXPECT_FALSE(fs::exists(work()));
}

TEST_F(FuseFd, descriptor_without_a_fuse_mount_is_refused) {
  auto other = start(value_or_throw(open_file("/dev/null", O_RDWR)));
  auto ready = await_ready(ready_.get());
  ASSERT_FALSE(ready);
  EXPECT_THAT(ready.error().message(), HasSubstr("it is no open /dev/fuse"));
  EXPECT_EQ(value_or_throw(other.wait()), 3);

  fs::create_directories(work() + "/m");
  auto unmounted = start(value_or_throw(open_fuse_device()));
  ready = await_ready(ready_.get());
  ASSERT_FALSE(ready);
  EXPECT_EQ(value_or_throw(unmounted.wait_for(5s)), std::optional(3));
}

}  // namespace
}  // namespace heddle::test
