// SPDX-License-Identifier: MIT
//
// Containers of one image, or of images that look alike, which start at the same time.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>

#include "tests/hook/container_world.hpp"
#include "tests/hook/started_container.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
namespace fs = std::filesystem;

class SharedDecision : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto reason = why_not(GetParam()); !reason.empty()) HEDDLE_SKIP(reason);
    world_ = std::make_unique<ContainerWorld>();
    runtime_ = std::make_unique<Runtime>(GetParam(), world_->path("state"));
  }
  static std::string id(int number) {
    return "heddle-shared-" + std::to_string(::getpid()) + "-" + std::to_string(number);
  }

  std::unique_ptr<ContainerWorld> world_;
  std::unique_ptr<Runtime> runtime_;
};

/// Somebody else's comparison may take as long as his image's libraries are many.
TEST_P(SharedDecision, a_known_image_starts_while_another_is_compared) {
  const auto bundle = world_->bundle("bundle", world_->config({"/bin/app"}));
  ASSERT_EQ(runtime_->run(bundle, id(1)).out, "host\n");
  std::vector<Fd> others;
  for (const auto& file : fs::directory_iterator(world_->path("cache")))
    if (file.path().extension() == ".lock") {
      others.push_back(value_or_throw(open_file(file.path(), O_RDONLY)));
      ASSERT_EQ(::flock(others.back().get(), LOCK_SH | LOCK_NB), 0);
    }
  ASSERT_FALSE(others.empty());
  StartedContainer started(*runtime_, bundle, id(2));
  EXPECT_EQ(started.ends(20s), 0) << started.text();
  EXPECT_EQ(started.text(), "host\n");
}

/// Two images that differ in a library only: the second is decided on while the first, of which
/// there was a decision, waits for its daemon.
TEST_P(SharedDecision, a_map_stays_its_own_while_a_like_image_is_decided_on) {
  const auto spare = world_->path("host/libspare.so");
  fs::copy_file(world_->path("host/libmpi.so.12"), spare);
  auto mine = world_->swap();
  mine["asked"] = {"/opt/lib/libcore.so.1"};
  auto others = mine;
  mine["binds"][0]["source"] = "libspare.so";
  world_->add_plugin("libspare.so", spare);
  world_->answer(mine);
  const auto bundle = world_->bundle("mine", world_->config({"/bin/app"}));
  ASSERT_EQ(runtime_->run(bundle, id(1)).out, "host\n") << world_->log_text();

  world_->forget_plugins();
  world_->answer(others);
  auto config = world_->config({"/bin/app"});
  config["root"]["path"] = world_->path("copy");
  fs::copy(world_->rootfs(), world_->path("copy"), fs::copy_options::recursive);
  write_text_file(world_->path("copy/opt/lib/libcore.so.1"), "");
  const auto at = world_->path("stage/bin/");
  fs::rename(at + "fs-mount", at + "fs-mount-real");
  write_text_file(at + "fs-mount",
                  "#!/bin/sh\nif mkdir " + at + "waits 2>/dev/null; then until [ -e " + at +
                      "go ]; do sleep 0.01; done; fi\nexec " + at + "fs-mount-real \"$@\"\n",
                  0755);
  StartedContainer waits(*runtime_, bundle, id(2));
  ASSERT_TRUE(wait_until(20s, [&] { return fs::exists(at + "waits"); })) << world_->log_text();
  EXPECT_EQ(runtime_->run(world_->bundle("others", config), id(3)).out, "host\n")
      << world_->log_text();
  EXPECT_EQ(world_->questions(), 2U);
  write_text_file(at + "go", "");
  EXPECT_EQ(waits.ends(20s), 0) << waits.text() << world_->log_text();
  EXPECT_EQ(waits.text(), "host\n");
  EXPECT_TRUE(wait_until(5s, [&] { return world_->processes().empty(); }));
  EXPECT_EQ(world_->mounts(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Oci, SharedDecision, ::testing::Values("runc", "crun"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace heddle::test
