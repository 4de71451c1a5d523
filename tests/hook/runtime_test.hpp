// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>

#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/support/oci_config.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// A case in a ContainerWorld, with the runtime that is its parameter.
class RuntimeTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto reason = why_not(GetParam()); !reason.empty()) HEDDLE_SKIP(reason);
    renew();
  }
  /// Deletes a container that a case left.
  void TearDown() override {
    if (runtime_) (void)run(runtime_->command({"delete", "--force", id()}));
  }
  /// Replaces the world by a new one. The runtime is destroyed before the world it is in.
  void renew(std::unique_ptr<ContainerWorld> world = std::make_unique<ContainerWorld>()) {
    runtime_.reset();
    world_ = std::move(world);
    runtime_ = std::make_unique<Runtime>(GetParam(), world_->path("state"));
  }
  static std::string id(int number = 0) {
    return "heddle-" + std::to_string(::getpid()) + "-" + std::to_string(number);
  }
  /// Runs a container in a bundle of its own, to its end. `before`: a command that runs the
  /// runtime.
  RunResult start(const Json& config, const Strings& before = {}) {
    ++count_;
    return run(before + runtime_->run_command(
                            world_->bundle("bundle" + std::to_string(count_), config), id(count_)));
  }
  /// Runs /bin/app with `args` in a hooked container, to its end.
  RunResult start_app(const Strings& args = {}) {
    return start(world_->config(Strings{"/bin/app"} + args));
  }
  void expect_no_daemons() const {
    EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
  }
  void expect_nothing_left() const {
    expect_no_daemons();
    // On a busy machine the runtime may return before its namespace is destroyed.
    EXPECT_TRUE(wait_until(5s, [&] { return world_->mounts() == 0; })) << world_->mounts();
  }

  std::unique_ptr<ContainerWorld> world_;
  std::unique_ptr<Runtime> runtime_;
  int count_ = 0;
};

}  // namespace heddle::test
