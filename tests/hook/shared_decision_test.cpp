// SPDX-License-Identifier: MIT
//
// Containers of one image, or of images that look alike, which start at the same time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/hook/runtime_test.hpp"
#include "tests/hook/started_container.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
namespace fs = std::filesystem;

class SharedDecision : public RuntimeTest {
 protected:
  /// From now on `program` of ours goes on when its gate is opened, however often it is started.
  void close_gate(const std::string& program) const {
    const auto path = world_->path("stage/bin/" + program);
    fs::rename(path, path + "-now");
    write_text_file(path,
                    "#!/bin/sh\n>>" + path + "-came echo\nuntil [ -e " + path +
                        "-go ]; do sleep 0.01; done\nexec " + path + "-now \"$@\"\n",
                    0755);
  }
  void open_gate(const std::string& program) const {
    write_text_file(world_->path("stage/bin/" + program + "-go"), "");
  }
  std::size_t came(const std::string& program) const {
    return read_file(world_->path("stage/bin/" + program + "-came")).value_or("").size();
  }
  std::vector<std::unique_ptr<StartedContainer>> start_many() const {
    std::vector<std::unique_ptr<StartedContainer>> out;
    for (int i = 0; i < kMany; ++i)
      out.push_back(std::make_unique<StartedContainer>(
          *runtime_, world_->bundle("many" + std::to_string(i), world_->config({"/bin/app"})),
          id(100 + i)));
    return out;
  }
  /// Processes that have a lock of the cache's open: who decides and who waits for him.
  std::size_t at_the_lock() const {
    const auto count =
        run({"sh", "-c", "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c \"$0/[0-9a-f]*[.]lock$\"",
             world_->path("cache")});
    return std::stoul(count.out);
  }
  std::size_t lines_with(const std::string& words) const {
    const auto log = world_->log_text();
    std::size_t count = 0;
    for (auto at = log.find(words); at != log.npos; at = log.find(words, at + 1)) ++count;
    return count;
  }
  static constexpr int kMany = 12;
};

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

TEST_P(SharedDecision, one_decides_anew_for_all_when_the_hosts_files_have_changed) {
  ASSERT_EQ(runtime_->run(world_->bundle("first", world_->config({"/bin/app"})), id(1)).out,
            "host\n");
  std::ofstream(world_->path("host/libmpi.so.12"), std::ios::app) << "newer";
  world_->answer(world_->swap());
  close_gate("fs-resolve");
  close_gate("fs-mount");
  const auto all = start_many();
  EXPECT_TRUE(wait_until(20s, [&] { return came("fs-mount") >= kMany; })) << world_->log_text();
  open_gate("fs-mount");
  EXPECT_TRUE(wait_until(20s, [&] { return at_the_lock() >= kMany; }));
  open_gate("fs-resolve");
  for (const auto& each : all) {
    EXPECT_EQ(each->ends(20s), 0) << each->text() << world_->log_text();
    EXPECT_EQ(each->text(), "host\n");
  }
  EXPECT_EQ(lines_with("file differs"), std::size_t{kMany});
  EXPECT_EQ(world_->questions(), 2U);
}

TEST_P(SharedDecision, a_refusal_is_for_all_that_waited_for_it_and_for_nobody_later) {
  auto decision = world_->swap();
  decision["outcome"] = "incompatible";
  decision["reason"] = "the reason";
  world_->answer(decision, 1);
  close_gate("fs-resolve");
  const auto all = start_many();
  EXPECT_TRUE(wait_until(20s, [&] { return at_the_lock() >= kMany; }));
  open_gate("fs-resolve");
  for (const auto& each : all) EXPECT_NE(each->ends(20s), 0) << each->text();
  EXPECT_EQ(lines_with("error: the reason"), std::size_t{kMany});
  EXPECT_EQ(world_->questions(), 1U);
  world_->answer(world_->swap());
  EXPECT_EQ(runtime_->run(world_->bundle("later", world_->config({"/bin/app"})), id(1)).out,
            "host\n");
}

INSTANTIATE_TEST_SUITE_P(Oci, SharedDecision, ::testing::Values("runc", "crun"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace heddle::test
