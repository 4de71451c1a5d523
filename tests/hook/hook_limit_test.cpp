// SPDX-License-Identifier: MIT
//
// A hook that waits for something unresponsive ends itself within its --timeout and logs what it
// waited for. The container does not start, or starts unswapped.
#include <sys/syscall.h>

#include "base/sandbox/sanitized.hpp"
#include "tests/hook/node_service.hpp"
#include "tests/hook/runtime_test.hpp"
#include "tests/overlay/origin_fs.hpp"
#include "tests/support/oci_config.hpp"

namespace heddle::test {
namespace {

/// Builds with sanitizers are slower.
const std::string kSeconds = kSanitized ? "8" : "1";
const std::string kNotDone = "not done after " + kSeconds + " s (--timeout): ";

/// A duplicate of the process's descriptor `fd`; none unless its last argument is `script`.
Fd descriptor_of(int pid, const std::string& script, int fd) {
  const auto command = read_file("/proc/" + std::to_string(pid) + "/cmdline").value_or("");
  if (!command.ends_with(script + '\0')) return {};
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return Fd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), fd, 0)));
}

class HookLimit : public RuntimeTest {
 protected:
  Json config(const std::string& program = "/bin/app", const std::string& stage = "createRuntime") {
    auto config = world_->config_for(stage, {program});
    for (const auto& word : {"--timeout"s, kSeconds})
      config["hooks"][stage][0]["args"].push_back(word);
    return config;
  }
  static Json with_policy_warn(Json config) {
    config["annotations"]["heddle.policy"] = "warn";
    return config;
  }
  /// The log's lines since the last call.
  std::string new_lines() {
    const auto all = world_->log_text();
    return all.substr(std::exchange(log_read_, all.size()));
  }
  void expect_refused(const RunResult& ran, const std::string& line) {
    EXPECT_FALSE(ran.timed_out);
    EXPECT_NE(ran.status, 0);
    EXPECT_EQ(ran.out, "");
    const auto log = new_lines();
    EXPECT_THAT(log, HasSubstr(" error: " + kNotDone + line));
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    // crun discards a hook's stderr.
    if (GetParam() == "runc") {
      EXPECT_THAT(ran.err, HasSubstr(line));
    }
    EXPECT_NE(run(runtime_->command({"state", id(count_)})).status, 0) << "the container is there";
  }
  /// Checks all processes of the world, not only daemons.
  void expect_nothing_left() const {
    EXPECT_TRUE(wait_until(5s, [&] { return world_->processes().empty(); }));
    RuntimeTest::expect_nothing_left();
  }
  /// Runs unswapped under the policy to warn.
  void expect_warned(const Json& asks, const std::string& line) {
    const auto ran = start(asks);
    EXPECT_THAT(ran.out, StartsWith("container\n")) << ran.err;
    EXPECT_THAT(ran.out, Not(HasSubstr(" - fuse.heddle "))) << "in its mountinfo";
    EXPECT_THAT(new_lines(),
                HasSubstr("warning: the container runs with its own MPI: " + kNotDone + line));
    expect_nothing_left();
  }
  /// A script that hangs, with a child in another session that hangs too; the script's path is in
  /// the arguments of both.
  std::string hanging() const {
    const auto script = world_->path("hangs");
    write_text_file(script, "while :; do sleep 0.1; done\n");
    return "setsid sh " + script + " &\nexec sh " + script + "\n";
  }

  std::size_t log_read_ = 0;
};

/// Cases that depend on how the runtime waits for a hook.
class HookLimitByAny : public HookLimit {};

TEST_P(HookLimitByAny, hanging_fs_resolve_is_killed_with_its_descendants) {
  world_->replace_program("fs-resolve", hanging());
  const auto line = "waiting for fs-resolve, which decides on " + world_->rootfs();
  expect_refused(start(config()), line);
  expect_nothing_left();
  // Here /proc shows the pids of another namespace than the hook's.
  expect_refused(start(config("/bin/app", "createContainer")), line);
  expect_nothing_left();
  expect_warned(with_policy_warn(config()), line);
}

TEST_P(HookLimit, hanging_fs_mount_leaves_no_mount_in_the_container) {
  world_->replace_program("fs-mount", hanging());
  const auto line = "waiting for fs-mount, which is to serve " + world_->path("cache");
  for (const std::string stage : {"createRuntime", "createContainer"}) {
    expect_refused(start(config("/bin/app", stage)), line);
    expect_nothing_left();
    auto asks = with_policy_warn(config("/bin/app", stage));
    asks["process"]["args"].push_back("/proc/self/mountinfo");
    expect_warned(asks, line);
  }
}

TEST_P(HookLimit, unresponsive_mount_is_removed_from_the_container) {
  world_->replace_program("fs-mount", "printf + >&4\n" + hanging());  // reports that it is ready
  for (const std::string stage : {"createRuntime", "createContainer"})
    expect_warned(with_policy_warn(config("/bin/app", stage)),
                  "reading "s + ContainerWorld::kMountPoint);
}

TEST_P(HookLimit, irremovable_mount_stops_the_container_under_any_policy) {
  world_->replace_program("fs-mount", "printf + >&4\n" + hanging());
  // A duplicate of the FUSE descriptor keeps requests waiting after the daemon's end.
  Fd device;
  std::thread holder([&] {
    (void)wait_until(20s, [&] {
      for (const int pid : world_->processes())
        if (!device) device = descriptor_of(pid, world_->path("hangs"), 3);
      return static_cast<bool>(device);
    });
  });
  expect_refused(start(with_policy_warn(config())), "reading "s + ContainerWorld::kMountPoint);
  holder.join();
  EXPECT_TRUE(device);
  device.reset();
  expect_nothing_left();
}

TEST_P(HookLimitByAny, killed_hook_is_reported) {
  world_->replace_program("fs-resolve",
                          "read -r pid name state parent rest </proc/$PPID/stat\n"
                          "kill -9 $parent\n" +
                              hanging());
  const auto ran = start(config());
  EXPECT_NE(ran.status, 0);
  EXPECT_THAT(new_lines(), HasSubstr("error: killed by signal 9: waiting for fs-resolve"));
  expect_nothing_left();
}

TEST_P(HookLimit, unresponsive_image_does_not_block_the_runtime) {
  std::optional<OriginFs> volume(std::in_place, world_->path("volume"), world_->path("served"));
  fs::copy_file(world_->rootfs() + "/bin/app", volume->source() + "/app");
  auto asks = config("/data/app");
  asks["mounts"].push_back(oci_bind(volume->directory(), "/data"));
  volume->hang_reads();
  // The process that reads it waits in the kernel and cannot be killed.
  expect_refused(start(asks), "reading the image's /data/app");
  volume->disconnect();  // other tests' namespaces may have copies of the mount
  volume.reset();
  expect_nothing_left();
}

TEST_P(HookLimit, unresponsive_host_file_does_not_block_the_runtime) {
  fs::rename(world_->path("host"), world_->path("disk"));
  std::optional<OriginFs> host(std::in_place, world_->path("disk"), world_->path("host"));
  world_->answer(world_->swap());
  EXPECT_EQ(start(config()).out, "host\n") << new_lines();
  (void)new_lines();
  host->hang();
  expect_refused(start(config()), "waiting for fs-mount, which is to serve");
  host->disconnect();
  host.reset();
  expect_nothing_left();
}

TEST_P(HookLimit, unresponsive_log_does_not_block_the_runtime) {
  std::optional<OriginFs> logs(std::in_place, world_->path("disk"), world_->path("logs"));
  const auto log = *logs / "log";
  write_text_file(logs->source() + "/log", "");
  auto asks = config();
  for (auto& word : asks["hooks"]["createRuntime"][0]["args"])
    if (word == world_->log()) word = log;
  world_->answer_text("", 3, "fs-resolve: failed\n");
  logs->hang();
  const auto ran = start(asks);
  EXPECT_FALSE(ran.timed_out);
  EXPECT_NE(ran.status, 0);
  EXPECT_THAT(ran.err, HasSubstr(kNotDone + "opening " + log));
  logs->disconnect();
  logs.reset();
  expect_nothing_left();
}

TEST_P(HookLimit, unresponsive_node_mount_does_not_block_the_runtime) {
  NodeService service(world_->path("stage/bin/fs-mount"), world_->path("node"));
  EXPECT_EQ(start(config()).out, "host\n") << new_lines();
  (void)new_lines();
  const auto daemons = world_->daemons();
  for (const int daemon : daemons)
    if (daemon != service.pid()) ::kill(daemon, SIGSTOP);
  expect_refused(start(config()), "waiting for ");
  EXPECT_EQ(start(with_policy_warn(config())).out, "container\n") << "nothing is mounted in it yet";
  EXPECT_THAT(new_lines(), HasSubstr("warning: the container runs with its own MPI: " + kNotDone));
  for (const int daemon : daemons) ::kill(daemon, SIGCONT);
  EXPECT_EQ(start(config()).out, "host\n");
  EXPECT_THAT(new_lines(), HasSubstr("by the node's mount"));
}

TEST_P(HookLimit, unresponsive_node_service_is_bypassed) {
  NodeService service(world_->path("stage/bin/fs-mount"), world_->path("node"));
  ::kill(service.pid(), SIGSTOP);
  auto asks = config();
  asks["hooks"]["createRuntime"][0]["args"].back() = "60";
  EXPECT_EQ(start(asks).out, "host\n");
  EXPECT_THAT(new_lines(), HasSubstr("a mount of its own for this container"));
  ::kill(service.pid(), SIGCONT);
}

INSTANTIATE_TEST_SUITE_P(Oci, HookLimit, ::testing::Values("runc"), kParameterName);
INSTANTIATE_TEST_SUITE_P(Oci, HookLimitByAny, ::testing::Values("runc", "crun"), kParameterName);

}  // namespace
}  // namespace heddle::test
