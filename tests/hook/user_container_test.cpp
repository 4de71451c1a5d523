// SPDX-License-Identifier: MIT
//
// Containers of a user who is not root, and of podman, as both are on most nodes: /dev/fuse is
// open to all, cgroups are the administrator's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/fd.hpp"
#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class UserContainer : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("only root can become another user");
    if (const auto reason = why_not(GetParam()); !reason.empty()) HEDDLE_SKIP(reason);
    world_ = std::make_unique<ContainerWorld>();
    for (const char* directory : {"user", "user/run", "user/home"}) {
      fs::create_directory(world_->path(directory));
      ASSERT_EQ(::chown(world_->path(directory).c_str(), kUser, kUser), 0);
      ::chmod(world_->path(directory).c_str(), 0700);
    }
  }
  nlohmann::json config(const std::string& stage, const std::vector<std::string>& args) const {
    auto config = world_->config(args);
    auto hook = world_->hook_json(stage);
    hook["args"] = {
        "fs-hook", "oci",     "--allow-annotations",      "/",     "--stage",
        stage,     "--cache", world_->path("user/cache"), "--log", world_->path("user/hook.log")};
    config["hooks"] = {{stage, {hook}}};
    config["linux"]["namespaces"].push_back({{"type", "user"}});
    for (const char* map : {"uidMappings", "gidMappings"})
      config["linux"][map] = {{{"containerID", 0}, {"hostID", kUser}, {"size", 1}}};
    return config;
  }
  RunResult start(const nlohmann::json& config, const std::string& fuse = "open") const {
    const auto id = "heddle-user-" + std::to_string(::getpid());
    auto argv = words_of({world_->path("user/home"), world_->path("user/run"), kUser, fuse});
    argv.insert(argv.end(), {GetParam(), "--root", world_->path("user/run/state")});
    if (GetParam() == "crun") argv.insert(argv.end(), {"--cgroup-manager", "disabled"});
    argv.insert(argv.end(), {"run", "--bundle", world_->bundle("bundle", config), id});
    return run(argv);
  }
  std::string log() const { return read_file(world_->path("user/hook.log")).value_or(""); }
  void expect_nothing_left() const {
    EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
    EXPECT_EQ(world_->mounts(), 0U);
    EXPECT_TRUE(!fs::exists(world_->path("user/run/state")) ||
                fs::is_empty(world_->path("user/run/state")));
  }
  std::unique_ptr<ContainerWorld> world_;
};

TEST_P(UserContainer, runs_on_the_hosts_library) {
  const auto before = world_->image_state();
  // crun's process is hidden from a user's createRuntime hook.
  const auto ran =
      start(config(GetParam() == "crun" ? "createContainer" : "createRuntime", {"/bin/app"}));
  EXPECT_EQ(ran.out, "host\n") << ran.err << log();
  EXPECT_EQ(world_->image_state(), before);
  expect_nothing_left();
}

TEST_P(UserContainer, runs_on_it_from_inside_too) {
  EXPECT_EQ(start(config("createContainer", {"/bin/app"})).out, "host\n") << log();
  expect_nothing_left();
}

TEST_P(UserContainer, a_device_that_is_absent_is_named) {
  const auto ran = start(config("createContainer", {"/bin/app"}), "absent");
  EXPECT_NE(ran.status, 0);
  EXPECT_THAT(log(),
              HasSubstr("/dev/fuse: cannot open: No such file or directory (load the module"));
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Oci, UserContainer, ::testing::Values("runc", "crun"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace heddle::test
