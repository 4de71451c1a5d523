// SPDX-License-Identifier: MIT
//
// A hook that waits for what does not answer is ended by itself, within its --timeout, with one
// line that says what it waited for; and the container does not start, or starts as it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/sandbox/sanitized.hpp"
#include "tests/hook/node_service.hpp"
#include "tests/hook/runtime_test.hpp"
#include "tests/overlay/origin_fs.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/oci_config.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;
namespace fs = std::filesystem;

/// What a sanitizer's build does in time takes it longer.
const std::string kSeconds = kSanitized ? "8" : "1";
const std::string kNotDone = "not done after " + kSeconds + " s (--timeout): ";

/// Of the process, where its last argument is `script`: a duplicate of its descriptor.
Fd descriptor_of(int pid, const std::string& script, int fd) {
  const auto command = read_file("/proc/" + std::to_string(pid) + "/cmdline").value_or("");
  if (!command.ends_with(script + '\0')) return {};
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return Fd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), fd, 0)));
}

class HookLimit : public RuntimeTest {
 protected:
  Json config(const std::string& program = "/bin/app", const std::string& stage = "createRuntime") {
    auto config =
        stage == "createRuntime" ? world_->config({program}) : world_->inside_config({program});
    for (const auto& word : {"--timeout"s, kSeconds})
      config["hooks"][stage][0]["args"].push_back(word);
    return config;
  }
  static Json only_warned(Json config) {
    config["annotations"]["heddle.policy"] = "warn";
    return config;
  }
  /// In the log since it was last asked.
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
    // crun throws a hook's words away.
    if (GetParam() == "runc") {
      EXPECT_THAT(ran.err, HasSubstr(line));
    }
    EXPECT_NE(run(runtime_->command({"state", id(count_)})).status, 0) << "the container is there";
  }
  /// Nor any other process of ours.
  void expect_nothing_left() const {
    EXPECT_TRUE(wait_until(5s, [&] { return world_->processes().empty(); }));
    RuntimeTest::expect_nothing_left();
  }
  void replace_program(const std::string& name, const std::string& script) const {
    const auto path = world_->path("stage/bin/" + name);
    fs::remove(path);  // a link to the installed one
    write_text_file(path, "#!/bin/sh\n" + script, 0755);
  }
  /// One that hangs, as does what it has started in a session of its own; both are found by it.
  std::string hanging() const {
    const auto script = world_->path("hangs");
    write_text_file(script, "while :; do sleep 0.1; done\n");
    return "setsid sh " + script + " &\nexec sh " + script + "\n";
  }

  std::size_t log_read_ = 0;
};

TEST_P(HookLimit, an_fs_resolve_that_hangs_is_ended_with_all_it_started) {
  replace_program("fs-resolve", hanging());
  const auto line = "waiting for fs-resolve, which decides on " + world_->rootfs();
  expect_refused(start(config()), line);
  expect_nothing_left();
  // Where /proc numbers processes otherwise than the hook's own namespace does.
  expect_refused(start(config("/bin/app", "createContainer")), line);
  expect_nothing_left();
  const auto ran = start(only_warned(config()));
  EXPECT_EQ(ran.out, "container\n") << ran.err;
  EXPECT_THAT(new_lines(),
              HasSubstr("warning: the container runs with its own MPI: " + kNotDone + line));
  expect_nothing_left();
}

TEST_P(HookLimit, an_fs_mount_that_hangs_leaves_no_mount_in_the_container) {
  replace_program("fs-mount", hanging());
  const auto line = "waiting for fs-mount, which is to serve " + world_->path("cache");
  for (const std::string stage : {"createRuntime", "createContainer"}) {
    expect_refused(start(config("/bin/app", stage)), line);
    expect_nothing_left();
    auto asks = only_warned(config("/bin/app", stage));
    asks["process"]["args"].push_back("/proc/self/mountinfo");
    const auto ran = start(asks);
    EXPECT_THAT(ran.out, StartsWith("container\n")) << ran.err;
    EXPECT_THAT(ran.out, Not(HasSubstr(" - fuse.heddle "))) << "in its mountinfo";
    EXPECT_THAT(new_lines(),
                HasSubstr("warning: the container runs with its own MPI: " + kNotDone + line));
    expect_nothing_left();
  }
}

TEST_P(HookLimit, a_mount_that_stops_answering_is_taken_out_of_the_container) {
  replace_program("fs-mount", "printf + >&4\n" + hanging());  // ready, it says
  for (const std::string stage : {"createRuntime", "createContainer"}) {
    const auto ran = start(only_warned(config("/bin/app", stage)));
    EXPECT_EQ(ran.out, "container\n") << ran.err;
    EXPECT_THAT(new_lines(), HasSubstr("warning: the container runs with its own MPI: " + kNotDone +
                                       "reading "s + ContainerWorld::kMountPoint));
    expect_nothing_left();
  }
}

TEST_P(HookLimit, what_cannot_be_taken_out_of_it_is_no_container_whatever_the_policy) {
  replace_program("fs-mount", "printf + >&4\n" + hanging());
  // Whoever has its device makes requests to it wait.
  Fd device;
  std::thread holder([&] {
    (void)wait_until(20s, [&] {
      for (const int pid : world_->processes())
        if (!device) device = descriptor_of(pid, world_->path("hangs"), 3);
      return static_cast<bool>(device);
    });
  });
  expect_refused(start(only_warned(config())), "reading "s + ContainerWorld::kMountPoint);
  holder.join();
  EXPECT_TRUE(device);
  device.reset();
  expect_nothing_left();
}

TEST_P(HookLimit, a_hook_that_is_killed_is_a_failure_with_its_line) {
  replace_program("fs-resolve",
                  "read -r pid name state parent rest </proc/$PPID/stat\n"
                  "kill -9 $parent\n" +
                      hanging());
  const auto ran = start(config());
  EXPECT_NE(ran.status, 0);
  EXPECT_THAT(new_lines(), HasSubstr("error: killed by signal 9: waiting for fs-resolve"));
  expect_nothing_left();
}

TEST_P(HookLimit, an_image_that_does_not_answer_holds_no_runtime_up) {
  std::optional<OriginFs> volume(std::in_place, world_->path("volume"), world_->path("served"));
  fs::copy_file(world_->rootfs() + "/bin/app", volume->source() + "/app");
  auto asks = config("/data/app");
  asks["mounts"].push_back(oci_bind(volume->directory(), "/data"));
  volume->hang_reads();
  // Its reader waits in the kernel, where nothing can end it.
  expect_refused(start(asks), "reading the image's /data/app");
  volume->disconnect();  // namespaces of others may have a copy of its mount
  volume.reset();
  expect_nothing_left();
}

TEST_P(HookLimit, a_host_file_that_does_not_answer_holds_no_runtime_up) {
  fs::rename(world_->path("host"), world_->path("disk"));
  std::optional<OriginFs> host(std::in_place, world_->path("disk"), world_->path("host"));
  world_->answer(world_->swap());
  EXPECT_EQ(start(config()).out, "host\n") << new_lines();
  (void)new_lines();
  host->hang();
  expect_refused(start(config()), "waiting for fs-mount, which is to serve");
  host->disconnect();  // namespaces of others may have a copy of its mount
  host.reset();
  expect_nothing_left();
}

TEST_P(HookLimit, a_log_that_does_not_answer_holds_no_runtime_up) {
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
  if (GetParam() == "runc") {
    EXPECT_THAT(ran.err, HasSubstr(kNotDone + "opening " + log));
  }
  logs->disconnect();  // namespaces of others may have a copy of its mount
  logs.reset();
  expect_nothing_left();
}

TEST_P(HookLimit, a_nodes_mount_that_does_not_answer_holds_no_runtime_up) {
  NodeService service(world_->path("stage/bin/fs-mount"), world_->path("node"));
  EXPECT_EQ(start(config()).out, "host\n") << new_lines();
  (void)new_lines();
  const auto daemons = world_->daemons();
  for (const int daemon : daemons)
    if (daemon != service.pid()) ::kill(daemon, SIGSTOP);
  expect_refused(start(config()), "waiting for ");
  EXPECT_EQ(start(only_warned(config())).out, "container\n") << "nothing stands in it yet";
  EXPECT_THAT(new_lines(), HasSubstr("warning: the container runs with its own MPI: " + kNotDone));
  for (const int daemon : daemons) ::kill(daemon, SIGCONT);
  EXPECT_EQ(start(config()).out, "host\n");
  EXPECT_THAT(new_lines(), HasSubstr("by the node's mount"));
}

TEST_P(HookLimit, a_nodes_service_that_does_not_answer_is_done_without) {
  NodeService service(world_->path("stage/bin/fs-mount"), world_->path("node"));
  ::kill(service.pid(), SIGSTOP);
  auto asks = config();
  asks["hooks"]["createRuntime"][0]["args"].back() = "60";
  EXPECT_EQ(start(asks).out, "host\n");
  EXPECT_THAT(new_lines(), HasSubstr("a mount of its own for this container"));
  ::kill(service.pid(), SIGCONT);
}

INSTANTIATE_TEST_SUITE_P(Oci, HookLimit, ::testing::Values("runc", "crun"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace heddle::test
