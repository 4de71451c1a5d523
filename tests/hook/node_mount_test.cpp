// SPDX-License-Identifier: MIT
//
// fs-mount --node: the containers of a node share one mount a map, and do not depend on the
// service.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/hook/node_service.hpp"
#include "tests/hook/runtime_test.hpp"
#include "tests/hook/started_container.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;
namespace fs = std::filesystem;

class NodeMount : public RuntimeTest {
 protected:
  NodeService serve() const { return {world_->path("stage/bin/fs-mount"), world_->path("node")}; }
  std::string start(const std::vector<std::string>& args) {
    return RuntimeTest::start(world_->config(args)).out;
  }
  StartedContainer start_waiting() {
    return {*runtime_, world_->bundle("waiting", world_->config({"/bin/app", "wait"})), id()};
  }
  /// The statistics as a container sees it at its end.
  Json stats() {
    const auto out = start({"/bin/app", "/dev/heddle"});
    EXPECT_THAT(out, StartsWith("host\n")) << world_->log_text();
    return Json::parse(out.substr(out.find('\n') + 1), nullptr, false);
  }
};

TEST_P(NodeMount, containers_share_one_mount_and_read_a_file_once) {
  auto service = serve();
  const auto first = stats();
  const auto size = fs::file_size(world_->path("host/libmpi.so.12"));
  EXPECT_GT(first["bytes_read"], 0U);
  // The map's own files are small, and read in each container.
  constexpr std::size_t kMany = 4;
  for (std::size_t i = 0; i < kMany; ++i) {
    const auto later = stats();
    EXPECT_EQ(later["supervisor_pid"], first["supervisor_pid"]);
    EXPECT_LT(later["bytes_read"], 2 * size) << "a second container reads it from memory";
  }
  ASSERT_EQ(service.maps().size(), 1U);
  EXPECT_THAT(world_->log_text(), HasSubstr("by the node's mount"));
  EXPECT_EQ(world_->questions(), 1U);
  EXPECT_EQ(service.end(SIGTERM), 0);
  EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
  EXPECT_FALSE(fs::exists(world_->path("node")));
  EXPECT_EQ(world_->mounts(), 0U);
}

TEST_P(NodeMount, many_that_start_at_once_share_it) {
  constexpr int kMany = 8;
  const auto service = serve();
  std::vector<std::unique_ptr<StartedContainer>> all;
  for (int i = 1; i <= kMany; ++i)
    all.push_back(std::make_unique<StartedContainer>(
        *runtime_, world_->bundle("b" + std::to_string(i), world_->config({"/bin/app"})), id(i)));
  for (auto& started : all) {
    EXPECT_EQ(started->ends(60s), 0) << started->text() << world_->log_text();
    EXPECT_EQ(started->text(), "host\n");
  }
  EXPECT_EQ(service.maps().size(), 1U);
  EXPECT_THAT(world_->log_text(), Not(HasSubstr("a mount of its own")));
}

TEST_P(NodeMount, a_container_keeps_it_when_the_service_ends) {
  auto service = serve();
  auto started = start_waiting();
  ASSERT_TRUE(started.says("host\n")) << started.text() << world_->log_text();
  const auto library = "/proc/" + std::to_string(started.init()) + "/root/usr/lib/libmpi.so.12";
  EXPECT_EQ(service.end(SIGTERM), 0);
  EXPECT_FALSE(fs::exists(world_->path("node")));
  EXPECT_EQ(value_or_throw(read_file(library)),
            value_or_throw(read_file(world_->path("host/libmpi.so.12"))));
  EXPECT_EQ(start({"/bin/app"}), "host\n") << "by a mount of its own";
  ::kill(started.init(), SIGKILL);
  EXPECT_TRUE(started.ends(10s).has_value());
  EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
}

TEST_P(NodeMount, a_service_that_is_killed_leaves_its_mounts_to_the_next) {
  auto service = serve();
  const auto first = stats();
  service.end(SIGKILL);
  // Nobody listens: said, and served by a mount of its own.
  const auto alone = stats();
  EXPECT_NE(alone["supervisor_pid"], first["supervisor_pid"]);
  EXPECT_THAT(world_->log_text(), HasSubstr("a mount of its own for this container"));
  auto next = serve();
  EXPECT_EQ(stats()["supervisor_pid"], first["supervisor_pid"]);
  // A daemon that was killed is followed by another.
  for (const int daemon : world_->daemons())
    if (daemon != next.pid()) ::kill(daemon, SIGKILL);
  EXPECT_NE(stats()["supervisor_pid"], first["supervisor_pid"]);
  EXPECT_EQ(next.maps().size(), 1U);
  EXPECT_EQ(next.end(SIGTERM), 0);
  EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
}

TEST_P(NodeMount, a_host_file_that_changed_is_decided_on_anew) {
  auto service = serve();
  const auto first = stats();
  ASSERT_TRUE(first.contains("supervisor_pid"));
  // Another file under the name, as an upgrade makes it; a map of it is handed out from now on.
  const auto library = world_->path("host/libmpi.so.12");
  write_text_file(library + ".new", value_or_throw(read_file(library)) + "x", 0755);
  fs::rename(library + ".new", library);
  world_->answer(world_->swap());
  const auto second = stats();
  EXPECT_NE(second["supervisor_pid"], first["supervisor_pid"]);
  EXPECT_THAT(world_->log_text(), HasSubstr("does not fit this node"));
  EXPECT_EQ(world_->questions(), 2U);
  EXPECT_EQ(service.maps().size(), 1U) << "the old one has left the tree";
}

TEST_P(NodeMount, a_directory_that_others_may_write_to_is_not_used) {
  run_checked({"mkdir", world_->path("node")});
  ::chmod(world_->path("node").c_str(), 0777);
  EXPECT_EQ(start({"/bin/app"}), "host\n");
  EXPECT_THAT(world_->log_text(), HasSubstr("others may write to it"));
  const auto refused = run({world_->path("stage/bin/fs-mount"), "--node", world_->path("node")});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("others may write to it"));
}

TEST_P(NodeMount, a_second_service_is_refused) {
  const auto service = serve();
  const auto second = run({world_->path("stage/bin/fs-mount"), "--node", world_->path("node")});
  EXPECT_EQ(second.status, 3);
  EXPECT_THAT(second.err, HasSubstr("an fs-mount --node runs already"));
}

INSTANTIATE_TEST_SUITE_P(Oci, NodeMount, ::testing::Values("runc", "crun"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace heddle::test
