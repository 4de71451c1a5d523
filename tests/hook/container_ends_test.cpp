// SPDX-License-Identifier: MIT
//
// However a container, its runtime, its daemon or its hook ends: nothing of ours is left.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "base/child.hpp"
#include "tests/hook/runtime_test.hpp"
#include "tests/hook/started_container.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
using ::testing::HasSubstr;

class ContainerEnds : public RuntimeTest {
 protected:
  StartedContainer start_waiting() {
    return {*runtime_, world_->bundle("bundle", world_->config({"/bin/app", "wait"})), id()};
  }
};

TEST_P(ContainerEnds, its_init_is_killed) {
  auto started = start_waiting();
  ASSERT_TRUE(started.says("host\n")) << started.text() << world_->log_text();
  EXPECT_FALSE(world_->daemons().empty());
  EXPECT_GE(world_->mounts(), 1U);
  ::kill(started.init(), SIGKILL);
  // crun waits for all descendants, the daemon too: that ends with the container.
  EXPECT_EQ(started.ends(10s), 128 + SIGKILL);
  expect_nothing_left();
}

TEST_P(ContainerEnds, its_runtime_is_killed) {
  auto started = start_waiting();
  ASSERT_TRUE(started.says("host\n")) << started.text() << world_->log_text();
  const int init = started.init();
  ::kill(started.runtime_process().pid(), SIGKILL);
  EXPECT_TRUE(started.ends(10s).has_value());
  EXPECT_TRUE(is_running(init));
  EXPECT_FALSE(world_->daemons().empty()) << "the program lives, and so does its MPI";
  run_checked(runtime_->command({"delete", "--force", id()}));
  expect_nothing_left();
}

TEST_P(ContainerEnds, its_fs_mount_is_killed) {
  auto started = start_waiting();
  ASSERT_TRUE(started.says("host\n")) << started.text() << world_->log_text();
  const int init = started.init();
  for (const int daemon : world_->daemons()) ::kill(daemon, SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
  EXPECT_TRUE(is_running(init)) << "what is in memory goes on";
  ::kill(init, SIGKILL);
  EXPECT_TRUE(started.ends(10s).has_value());
  expect_nothing_left();
}

/// Programs of a container that runs on the host's glibc start all the same: that and ld.so.cache
/// are copies, of which none is asked of the daemon.
TEST_P(ContainerEnds, programs_still_start_when_its_fs_mount_is_killed) {
  world_->serve_glibc();
  auto started = start_waiting();
  ASSERT_TRUE(started.says("host\n")) << started.text() << world_->log_text();
  const auto root = "/proc/" + std::to_string(started.init()) + "/root";
  EXPECT_EQ(run({"chroot", root, "/bin/plain"}).out, "plain\n");
  for (const int daemon : world_->daemons()) ::kill(daemon, SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
  for (const auto& file : world_->glibc()) {
    for (const auto& place : {root + file, root + "/dev/heddle" + file.substr(file.rfind('/'))}) {
      // What the kernel has of it, it may forget at any time.
      const auto fd = value_or_throw(open_file(place, O_RDONLY));
      ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
      EXPECT_TRUE(read_file(place).value_or("") == value_or_throw(read_file(file))) << place;
    }
  }
  EXPECT_EQ(run({"chroot", root, "/bin/plain"}).out, "plain\n");
  ::kill(started.init(), SIGKILL);
  EXPECT_TRUE(started.ends(10s).has_value());
  expect_nothing_left();
}

TEST_P(ContainerEnds, a_term_signal_does_not_take_the_libraries_away) {
  auto started = start_waiting();
  ASSERT_TRUE(started.says("host\n")) << started.text() << world_->log_text();
  for (const int daemon : world_->daemons()) ::kill(daemon, SIGTERM);
  const auto library = "/proc/" + std::to_string(started.init()) + "/root/usr/lib/libmpi.so.12";
  EXPECT_TRUE(read_file(library).has_value());
  ::kill(started.init(), SIGKILL);
  EXPECT_TRUE(started.ends(10s).has_value());
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
  auto config = world_->config({"/bin/app", "wait"});
  config["hooks"] = {{"createContainer", {world_->hook_json("createContainer")}}};
  config["linux"]["resources"] = {
      {"devices",
       {{{"allow", true}, {"type", "c"}, {"major", 10}, {"minor", 229}, {"access", "rw"}}}}};
  StartedContainer started(*runtime_, world_->bundle("bundle", config), id());
  EXPECT_TRUE(started.says("host\n")) << started.text() << world_->log_text();
  run_checked({world_->path("stage/bin/fs-mount"), "-u", standing});
  for (const int other : others)
    EXPECT_TRUE(wait_until(5s, [&] { return !is_running(other); })) << "its mount is held";
  EXPECT_FALSE(world_->daemons().empty()) << "the container's own";
  ::kill(started.init(), SIGKILL);
  EXPECT_TRUE(started.ends(10s).has_value());
  // Not its mounts: any namespace that was made meanwhile, by whomever, has a copy of `standing`.
  EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
}

TEST_P(ContainerEnds, its_fs_mount_is_spared_by_the_oom_killer) {
  const auto bundle = world_->bundle("bundle", world_->config({"/bin/app", "wait"}));
  // As in a user's session of systemd, which is to go before the system's services.
  StartedContainer started(*runtime_, bundle, id(), "300");
  ASSERT_TRUE(started.says("host\n")) << started.text() << world_->log_text();
  const auto daemons = world_->daemons();
  EXPECT_GE(daemons.size(), 2U) << "a supervisor and its worker";
  for (const int daemon : daemons) {
    const auto score = read_file("/proc/" + std::to_string(daemon) + "/oom_score_adj");
    EXPECT_LE(std::stoi(value_or_throw(score)), 0);
  }
  ::kill(started.init(), SIGKILL);
  EXPECT_TRUE(started.ends(10s).has_value());
  expect_nothing_left();
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

TEST_P(ContainerEnds, decisions_are_pruned_under_starts_that_use_them) {
  constexpr int kMany = 12;
  constexpr int kImages = 4;
  std::vector<std::unique_ptr<StartedContainer>> all;
  for (int i = 1; i <= kMany; ++i) {
    auto config = world_->config({"/bin/app"});
    // Decided on apart: where the program is to look for libraries is part of the question.
    config["process"]["env"].push_back("LD_LIBRARY_PATH=/" + std::to_string(i % kImages));
    for (const char* word : {"--cache-limit", "0"})
      config["hooks"]["createRuntime"][0]["args"].push_back(word);
    all.push_back(std::make_unique<StartedContainer>(
        *runtime_, world_->bundle("b" + std::to_string(i), config), id(i)));
  }
  for (auto& started : all) {
    EXPECT_EQ(started->ends(120s), 0) << started->text();
    EXPECT_EQ(started->text(), "host\n");
  }
  EXPECT_GE(world_->questions(), std::size_t{kImages});
  // All but what the last one itself uses.
  auto config = world_->config({"/bin/app"});
  config["process"]["env"].push_back("LD_LIBRARY_PATH=/last");
  for (const char* word : {"--cache-limit", "0"})
    config["hooks"]["createRuntime"][0]["args"].push_back(word);
  EXPECT_EQ(runtime_->run(world_->bundle("last", config), id(kMany + 1)).out, "host\n");
  const auto maps = run({"find", world_->path("cache"), "-name", "*.map"}).out;
  EXPECT_EQ(std::count(maps.begin(), maps.end(), '\n'), 1) << maps;
}

INSTANTIATE_TEST_SUITE_P(Oci, ContainerEnds, ::testing::Values("runc", "crun"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace heddle::test
