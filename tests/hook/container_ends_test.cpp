// SPDX-License-Identifier: MIT
//
// However a container, its runtime, its daemon or its hook ends: nothing of ours is left.
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>

#include "base/child.hpp"
#include "tests/hook/runtime_test.hpp"
#include "tests/hook/started_container.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;

class ContainerEnds : public RuntimeTest {
 protected:
  /// One whose program waits. crun waits for all its descendants, the daemon too.
  void start_waiting(const nlohmann::json& config) {
    started_.emplace(*runtime_, world_->bundle("bundle", config), id());
    ASSERT_TRUE(started_->says("host\n")) << started_->text() << world_->log_text();
    init_ = started_->init();
    EXPECT_FALSE(world_->daemons().empty());
    EXPECT_GE(world_->mounts(), 1U);
  }
  void kill_init() {
    ::kill(init_, SIGKILL);
    EXPECT_EQ(started_->ends(10s), 128 + SIGKILL);
    EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
  }
  void signal_daemons(int signal) const {
    for (const int daemon : world_->daemons()) ::kill(daemon, signal);
  }
  nlohmann::json waiting() const { return world_->config({"/bin/app", "wait"}); }
  std::optional<StartedContainer> started_;
  int init_ = -1;
};

TEST_P(ContainerEnds, its_init_is_killed_and_a_term_signal_takes_no_library_away) {
  start_waiting(waiting());
  signal_daemons(SIGTERM);
  EXPECT_TRUE(read_file("/proc/" + std::to_string(init_) + "/root/usr/lib/libmpi.so.12"));
  kill_init();
  expect_nothing_left();
}

TEST_P(ContainerEnds, its_runtime_is_killed) {
  start_waiting(waiting());
  ::kill(started_->runtime_process().pid(), SIGKILL);
  EXPECT_TRUE(started_->ends(10s).has_value());
  EXPECT_TRUE(is_running(init_));
  EXPECT_FALSE(world_->daemons().empty()) << "the program lives, and so does its MPI";
  run_checked(runtime_->command({"delete", "--force", id()}));
  expect_nothing_left();
}

TEST_P(ContainerEnds, its_fs_mount_is_killed) {
  start_waiting(waiting());
  signal_daemons(SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
  EXPECT_TRUE(is_running(init_)) << "what is in memory goes on";
  kill_init();
  expect_nothing_left();
}

/// The daemon of a hook that runs inside the container has a copy of the container's namespace,
/// which is one of the host's tree at that moment.
TEST_P(ContainerEnds, a_daemon_from_inside_holds_no_other_mount) {
  // crun runs in a namespace of its own here, and itself holds what was in it.
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
  // Not its mounts: any namespace that was made meanwhile, by whomever, has a copy of `standing`.
  kill_init();
}

TEST_P(ContainerEnds, its_hook_is_killed_while_it_decides) {
  const auto seconds = "60" + std::to_string(::getpid());
  write_text_file(world_->path("stage/bin/fs-resolve"),
                  "#!/bin/sh\necho x >>" + world_->path("asked") + "\nexec sleep " + seconds + "\n",
                  0755);
  auto config = world_->config({"/bin/app"});
  config["hooks"]["createRuntime"][0]["timeout"] = 1;
  StartedContainer started(*runtime_, world_->bundle("bundle", config), id());
  const auto status = started.ends(40s);
  ASSERT_TRUE(status.has_value());
  EXPECT_NE(*status, 0);
  EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
  EXPECT_EQ(run({"pgrep", "-f", "sleep " + seconds}).out, "");
  EXPECT_EQ(read_file(world_->path("asked")).value_or(""), "x\n");
  EXPECT_EQ(world_->mounts(), 0U);
}

TEST_P(ContainerEnds, sixty_four_start_at_once_and_share_one_decision) {
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

INSTANTIATE_TEST_SUITE_P(Oci, ContainerEnds, ::testing::Values("runc", "crun"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace heddle::test
