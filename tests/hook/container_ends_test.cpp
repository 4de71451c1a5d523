// SPDX-License-Identifier: MIT
//
// However a container, its runtime, its daemon or its hook ends, no process and no mount is left.

#include "tests/hook/runtime_test.hpp"
#include "tests/hook/started_container.hpp"

namespace heddle::test {
namespace {

class ContainerEnds : public RuntimeTest {
 protected:
  /// Starts a container whose program waits. crun waits for all its descendants, the daemon too.
  void start_waiting(const Json& config) {
    started_.emplace(*runtime_, world_->bundle("bundle", config), id());
    ASSERT_TRUE(started_->says("host\n")) << started_->text() << world_->log_text();
    init_ = started_->init();
    EXPECT_FALSE(world_->daemons().empty());
    EXPECT_GE(world_->mounts(), 1U);
  }
  void kill_init() {
    ::kill(init_, SIGKILL);
    EXPECT_EQ(started_->ends(10s), 128 + SIGKILL);
    expect_no_daemons();
  }
  void signal_daemons(int signal) const {
    for (const int daemon : world_->daemons()) ::kill(daemon, signal);
  }
  Json waiting() const { return world_->config({"/bin/app", "wait"}); }
  std::optional<StartedContainer> started_;
  int init_ = -1;
};

TEST_P(ContainerEnds, killed_init_ends_the_daemon_but_sigterm_does_not) {
  start_waiting(waiting());
  signal_daemons(SIGTERM);
  EXPECT_TRUE(read_file("/proc/" + std::to_string(init_) + "/root/usr/lib/libmpi.so.12"));
  kill_init();
  expect_nothing_left();
}

TEST_P(ContainerEnds, killed_runtime_leaves_program_and_daemon_running) {
  start_waiting(waiting());
  ::kill(started_->runtime_process().pid(), SIGKILL);
  EXPECT_TRUE(started_->ends(10s).has_value());
  EXPECT_TRUE(is_running(init_));
  EXPECT_FALSE(world_->daemons().empty()) << "the running program needs its mount";
  run_checked(runtime_->command({"delete", "--force", id()}));
  expect_nothing_left();
}

TEST_P(ContainerEnds, killed_daemon_leaves_the_program_running) {
  start_waiting(waiting());
  signal_daemons(SIGKILL);
  expect_no_daemons();
  EXPECT_TRUE(is_running(init_)) << "it needs no page that is not in memory";
  kill_init();
  expect_nothing_left();
}

/// The daemon of a hook in stage createContainer has a copy of the container's namespace, which
/// starts as a copy of the host's.
TEST_P(ContainerEnds, daemon_started_inside_holds_no_other_mount) {
  // crun runs in a mount namespace of its own here and itself holds the mount.
  if (GetParam() != "runc") return;
  const auto standing = world_->path("standing");
  run_checked({"mkdir", standing});
  run_checked({world_->path("stage/bin/fs-mount"), world_->path("stage/bin/answer.map"), standing});
  const auto others = world_->daemons();
  start_waiting(world_->inside_config({"/bin/app", "wait"}));
  run_checked({world_->path("stage/bin/fs-mount"), "-u", standing});
  for (const int other : others)
    EXPECT_TRUE(wait_until(5s, [&] { return !is_running(other); })) << "its mount is held";
  EXPECT_FALSE(world_->daemons().empty()) << "the container's own";
  // Other tests' namespaces may hold copies of `standing`, so mounts are not counted.
  kill_init();
}

TEST_P(ContainerEnds, killed_hook_leaves_no_process_and_no_mount) {
  const auto seconds = "60" + std::to_string(::getpid());
  world_->replace_program("fs-resolve",
                          "echo x >>" + world_->path("asked") + "\nexec sleep " + seconds + "\n");
  auto config = world_->config({"/bin/app"});
  config["hooks"]["createRuntime"][0]["timeout"] = 1;
  StartedContainer started(*runtime_, world_->bundle("bundle", config), id());
  const auto status = started.ends(40s);
  ASSERT_TRUE(status.has_value());
  EXPECT_NE(*status, 0);
  expect_no_daemons();
  EXPECT_EQ(run({"pgrep", "-f", "sleep " + seconds}).out, "");
  EXPECT_EQ(read_file(world_->path("asked")).value_or(""), "x\n");
  EXPECT_EQ(world_->mounts(), 0U);
}

TEST_P(ContainerEnds, sixty_four_containers_share_one_decision) {
  constexpr int kMany = 64;
  std::vector<std::unique_ptr<StartedContainer>> all;
  for (int i = 1; i <= kMany; ++i)
    all.push_back(std::make_unique<StartedContainer>(
        *runtime_, world_->bundle("b" + std::to_string(i), world_->config({"/bin/app"})), id(i)));
  for (auto& started : all) {
    EXPECT_EQ(started->ends(120s), 0) << started->text();
    EXPECT_EQ(started->text(), "host\n");
  }
  EXPECT_EQ(world_->questions(), 1U);
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Oci, ContainerEnds, ::testing::Values("runc", "crun"), kParameterName);

}  // namespace
}  // namespace heddle::test
