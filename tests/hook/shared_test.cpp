// SPDX-License-Identifier: MIT
//
// What containers share: with fs-mount --node one mount per map, which outlives the service; and
// one decision for all containers of one image that start at once.

#include "tests/hook/node_service.hpp"
#include "tests/hook/runtime_test.hpp"
#include "tests/hook/started_container.hpp"
#include "tests/support/occurrences.hpp"

namespace heddle::test {
namespace {

class NodeMount : public RuntimeTest {
 protected:
  NodeService serve() const { return {world_->path("stage/bin/fs-mount"), world_->path("node")}; }
  StartedContainer start_waiting() {
    return {*runtime_, world_->bundle("waiting", world_->config({"/bin/app", "wait"})), id()};
  }
  /// The statistics that a container reads.
  Json stats() {
    const auto out = start_app({"/dev/heddle"}).out;
    EXPECT_THAT(out, StartsWith("host\n")) << world_->log_text();
    return Json::parse(out.substr(out.find('\n') + 1), nullptr, false);
  }
};

TEST_P(NodeMount, containers_share_one_mount_and_read_a_file_once) {
  auto service = serve();
  const auto first = stats();
  const auto size = fs::file_size(world_->path("host/libmpi.so.12"));
  EXPECT_GT(first["bytes_read"], 0U);
  // Each container reads the map's generated files, which are small.
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
  expect_no_daemons();
  EXPECT_FALSE(fs::exists(world_->path("node")));
  EXPECT_EQ(world_->mounts(), 0U);
}

TEST_P(NodeMount, container_keeps_its_mount_when_the_service_ends) {
  auto service = serve();
  auto started = start_waiting();
  ASSERT_TRUE(started.says("host\n")) << started.text() << world_->log_text();
  const auto library = "/proc/" + std::to_string(started.init()) + "/root/usr/lib/libmpi.so.12";
  EXPECT_EQ(service.end(SIGTERM), 0);
  EXPECT_FALSE(fs::exists(world_->path("node")));
  EXPECT_EQ(value_or_throw(read_file(library)),
            value_or_throw(read_file(world_->path("host/libmpi.so.12"))));
  EXPECT_EQ(start_app().out, "host\n") << "by a mount of its own";
  ::kill(started.init(), SIGKILL);
  EXPECT_TRUE(started.ends(10s).has_value());
  expect_no_daemons();
}

TEST_P(NodeMount, killed_service_leaves_its_mounts_to_the_next) {
  auto service = serve();
  const auto first = stats();
  service.end(SIGKILL);
  // Without a service a container gets a mount of its own.
  const auto alone = stats();
  EXPECT_NE(alone["supervisor_pid"], first["supervisor_pid"]);
  EXPECT_THAT(world_->log_text(), HasSubstr("a mount of its own for this container"));
  auto next = serve();
  EXPECT_EQ(stats()["supervisor_pid"], first["supervisor_pid"]);
  // The service replaces a killed daemon.
  for (const int daemon : world_->daemons())
    if (daemon != next.pid()) ::kill(daemon, SIGKILL);
  EXPECT_NE(stats()["supervisor_pid"], first["supervisor_pid"]);
  EXPECT_EQ(next.maps().size(), 1U);
  EXPECT_EQ(next.end(SIGTERM), 0);
  expect_no_daemons();
}

TEST_P(NodeMount, changed_host_file_is_decided_on_again) {
  auto service = serve();
  const auto first = stats();
  ASSERT_TRUE(first.contains("supervisor_pid"));
  // An upgrade replaces the file; later maps have the new one.
  const auto library = world_->path("host/libmpi.so.12");
  write_text_file(library + ".new", value_or_throw(read_file(library)) + "x", 0755);
  fs::rename(library + ".new", library);
  world_->answer(world_->swap());
  const auto second = stats();
  EXPECT_NE(second["supervisor_pid"], first["supervisor_pid"]);
  EXPECT_THAT(world_->log_text(), HasSubstr("does not fit this node"));
  EXPECT_EQ(world_->questions(), 2U);
  EXPECT_EQ(service.maps().size(), 1U) << "the old mount is detached";
}

TEST_P(NodeMount, writable_node_directory_is_not_used) {
  run_checked({"mkdir", world_->path("node")});
  ::chmod(world_->path("node").c_str(), 0777);
  EXPECT_EQ(start_app().out, "host\n");
  EXPECT_THAT(world_->log_text(), HasSubstr("others may write to it"));
  const auto refused = run({world_->path("stage/bin/fs-mount"), "--node", world_->path("node")});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("others may write to it"));
}

INSTANTIATE_TEST_SUITE_P(Oci, NodeMount, ::testing::Values("runc", "crun"), kParameterName);

class SharedDecision : public RuntimeTest {
 protected:
  /// Makes each start of the installed `program` wait for open_gate().
  void close_gate(const std::string& program) const {
    const auto path = world_->path("stage/bin/" + program);
    world_->precede_program(
        program, ">>" + path + "-came echo\nuntil [ -e " + path + "-go ]; do sleep 0.01; done");
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
  /// The number of processes that have a lock file of the cache open: they decide or wait.
  std::size_t at_the_lock() const {
    const auto count =
        run({"sh", "-c", "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c \"$0/[0-9a-f]*[.]lock$\"",
             world_->path("cache")});
    return std::stoul(count.out);
  }
  std::size_t lines_with(const std::string& words) const {
    return occurrences(world_->log_text(), words);
  }
  static constexpr int kMany = 12;
};

/// Two images differ in one library. The second is decided on while a container of the first,
/// already decided on, waits for its daemon.
TEST_P(SharedDecision, map_survives_the_decision_on_a_similar_image) {
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
  world_->precede_program("fs-mount", "if mkdir " + at + "waits 2>/dev/null; then until [ -e " +
                                          at + "go ]; do sleep 0.01; done; fi");
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

TEST_P(SharedDecision, changed_host_files_are_decided_on_once_for_all) {
  ASSERT_EQ(start_app().out, "host\n");
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

TEST_P(SharedDecision, refusal_reaches_waiting_containers_and_no_later_one) {
  world_->answer_incompatible();
  close_gate("fs-resolve");
  const auto all = start_many();
  EXPECT_TRUE(wait_until(20s, [&] { return at_the_lock() >= kMany; }));
  open_gate("fs-resolve");
  for (const auto& each : all) EXPECT_NE(each->ends(20s), 0) << each->text();
  EXPECT_EQ(lines_with("error: the reason"), std::size_t{kMany});
  EXPECT_EQ(world_->questions(), 1U);
  world_->answer(world_->swap());
  EXPECT_EQ(start_app().out, "host\n");
}

INSTANTIATE_TEST_SUITE_P(Oci, SharedDecision, ::testing::Values("crun"), kParameterName);

}  // namespace
}  // namespace heddle::test
