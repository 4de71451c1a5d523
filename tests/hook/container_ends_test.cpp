// SPDX-License-Identifier: MIT
//
// However a container, its runtime, its daemon or its hook ends: nothing of ours is left.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "base/process.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
using ::testing::HasSubstr;

/// A runtime's `run` in the background, its words in files.
class Started {
 public:
  Started(const Runtime& runtime, const std::string& bundle, const std::string& id)
      : runtime_(runtime), id_(id), out_(bundle + "/out") {
    const auto out = value_or_throw(open_file(out_, O_RDWR | O_CREAT | O_TRUNC));
    auto argv = runtime.run_command(bundle, id);
    argv.insert(argv.begin(), "env");
    child_.emplace(value_or_throw(
        spawn("/usr/bin/env", argv, {{{out.get(), STDOUT_FILENO}, {out.get(), STDERR_FILENO}}})));
  }
  std::string text() const { return read_file(out_).value_or(""); }
  bool says(const std::string& text) const {
    return wait_until(20s, [&] { return this->text().find(text) != std::string::npos; });
  }
  Child& runtime_process() { return *child_; }
  /// The container's first process.
  int init() const {
    const auto state = run(runtime_.command({"state", id_}));
    return nlohmann::json::parse(state.out).at("pid");
  }
  std::optional<int> ends(std::chrono::milliseconds limit) {
    return value_or_throw(child_->wait_for(limit));
  }

 private:
  const Runtime& runtime_;
  std::string id_;
  std::string out_;
  std::optional<Child> child_;
};

class ContainerEnds : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto reason = why_not(GetParam()); !reason.empty()) HEDDLE_SKIP(reason);
    world_ = std::make_unique<ContainerWorld>();
    runtime_ = std::make_unique<Runtime>(GetParam(), world_->path("state"));
  }
  static std::string id(int number = 0) {
    return "heddle-ends-" + std::to_string(::getpid()) + "-" + std::to_string(number);
  }
  void TearDown() override {
    if (runtime_) (void)run(runtime_->command({"delete", "--force", id()}));
  }
  Started start_waiting() {
    return {*runtime_, world_->bundle("bundle", world_->config({"/bin/app", "wait"})), id()};
  }
  void expect_nothing_left() const {
    EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
    EXPECT_EQ(world_->mounts(), 0U);
  }

  std::unique_ptr<ContainerWorld> world_;
  std::unique_ptr<Runtime> runtime_;
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

TEST_P(ContainerEnds, its_hook_is_killed_while_it_decides) {
  const auto seconds = "60" + std::to_string(::getpid());
  write_text_file(world_->path("stage/bin/fs-resolve"),
                  "#!/bin/sh\necho x >>" + world_->path("asked") + "\nexec sleep " + seconds + "\n",
                  0755);
  auto config = world_->config({"/bin/app"});
  config["hooks"]["createRuntime"][0]["timeout"] = 1;
  Started started(*runtime_, world_->bundle("bundle", config), id());
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
  std::vector<std::unique_ptr<Started>> all;
  for (int i = 1; i <= kMany; ++i)
    all.push_back(std::make_unique<Started>(
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
