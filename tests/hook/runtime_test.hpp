// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {

/// A case in a small world, of the runtime that is its parameter.
class RuntimeTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto reason = why_not(GetParam()); !reason.empty()) HEDDLE_SKIP(reason);
    renew();
  }
  /// A container that a case left.
  void TearDown() override {
    if (runtime_) (void)run(runtime_->command({"delete", "--force", id()}));
  }
  /// A world in which nothing has happened yet. The runtime goes before the world it is in.
  void renew(std::unique_ptr<ContainerWorld> world = std::make_unique<ContainerWorld>()) {
    runtime_.reset();
    world_ = std::move(world);
    runtime_ = std::make_unique<Runtime>(GetParam(), world_->path("state"));
  }
  static std::string id(int number = 0) {
    return "heddle-" + std::to_string(::getpid()) + "-" + std::to_string(number);
  }
  /// In a bundle of its own, to its end. `before`: words before the runtime's.
  RunResult start(const nlohmann::json& config, const std::vector<std::string>& before = {}) {
    ++count_;
    auto argv = before;
    const auto command = runtime_->run_command(
        world_->bundle("bundle" + std::to_string(count_), config), id(count_));
    argv.insert(argv.end(), command.begin(), command.end());
    return run(argv);
  }
  void expect_nothing_left() const {
    EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return world_->daemons().empty(); }));
    // A runtime that was held up for long may have returned before its namespace has gone.
    EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return world_->mounts() == 0; }))
        << world_->mounts();
  }

  std::unique_ptr<ContainerWorld> world_;
  std::unique_ptr<Runtime> runtime_;
  int count_ = 0;
};

}  // namespace heddle::test
