// SPDX-License-Identifier: MIT
// fs-mount --node with --stage and --reload, with clients like fs-hook. tests/hook has containers.

#include <nlohmann/json.hpp>

#include "base/content_hash.hpp"
#include "base/mount_service.hpp"
#include "base/run_directory.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/overlay/origin_fs.hpp"
#include "tests/overlay/overlay_support.hpp"

namespace heddle::test {
namespace {

class Node : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    fs::create_directory(dir_ / "copies");
    write_text_file(dir_ / "src/file", text_);
    write_text_file(dir_ / "near/file", "near");
    origin_.emplace(dir_ / "src", dir_ / "far");
    MapMaker far, near;
    far.add_name("v", "file", *origin_ / "file");
    far.write(dir_ / "map");
    near.add_name("v", "file", dir_ / "near/file");
    near.write(dir_ / "near-map");
  }
  void TearDown() override {
    origin_->answer();
    end();
  }
  void start(Strings options) {
    Strings argv{"fs-mount", "--prefetch", "0", "--log", dir_ / "log", "--node", dir_ / "node"};
    argv.insert(argv.begin() + 1, options.begin(), options.end());
    service_.emplace(start_silently(fs_mount(), argv));
    ASSERT_TRUE(wait_until(10s, [&] { return static_cast<bool>(connect()); }));
  }
  void end() {
    if (!service_) return;
    ::kill(service_->pid(), SIGTERM);
    EXPECT_EQ(value_or_throw(service_->wait_for(10s)), std::optional<int>(0));
    service_.reset();
  }
  Fd connect() const {
    const auto directory = RunDirectory::find(dir_ / "node");
    auto socket = directory ? directory->connect_to("socket") : Fd();
    return socket ? std::move(*socket) : Fd();
  }
  std::string id(const std::string& map) const {
    return hash_bytes(value_or_throw(read_file(dir_ / map))).hex();
  }
  /// A copy of the mount, as for a container.
  Result<Fd> ask(const std::string& map) const { return ask(map, id(map)); }
  Result<Fd> ask(const std::string& map, const std::string& id) const {
    return answer(begin_to_ask(map, id));
  }
  static Result<Fd> answer(const Fd& client) {
    auto reply = receive_record<MountReply>(client.get(), 20s);
    if (!reply) return fail(std::move(reply.error()));
    if (!reply->message.good) return fail(std::move(reply->message.failure));
    return std::move(reply->fds.at(0));
  }
  /// Sends a request; answer() receives the reply.
  Fd begin_to_ask(const std::string& map, const std::string& id) const {
    Fd socket = connect();
    const auto file = value_or_throw(open_file(dir_ / map, O_RDONLY));
    const int fd = file.get();
    (void)send_record(socket.get(), MountRequest{.verb = MountRequest::Verb::want, .map_id = id},
                      {&fd, 1});
    return socket;
  }
  /// Another map is mounted: requests are handled in order, so earlier ones have been read.
  void expect_others_served() {
    EXPECT_EQ(value_or_throw(read(value_or_throw(ask("near-map")))), "near");
  }
  static Result<std::string> read(const Fd& tree) {
    const Fd file(::openat(tree.get(), "v/file", O_RDONLY | O_CLOEXEC));
    if (!file) return fail_errno("v/file", "cannot open");
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    return read_all(file.get(), "v/file");
  }
  std::string place(const std::string& map) const { return dir_ / "node/" + id(map); }
  nlohmann::json stats(const std::string& map) const {
    return nlohmann::json::parse(value_or_throw(read_stats_text(place(map))));
  }
  std::string log() const { return read_file(dir_ / "log").value_or(""); }

  TestDir dir_;
  const std::string text_ = std::string(300'000, 't');
  std::optional<OriginFs> origin_;
  std::optional<Child> service_;
};

TEST_F(Node, staged_copies_serve_containers_when_the_origin_is_gone) {
  HEDDLE_NEEDS_OPEN_TREE();
  HEDDLE_NEEDS_RESEND();
  start({"--stage", dir_ / "copies"});
  const auto tree = value_or_throw(ask("map"));
  ASSERT_TRUE(wait_until(10s, [&] { return stats("map").at("staging") == "done"; })) << log();
  origin_->disconnect();
  EXPECT_EQ(value_or_throw(read(tree)), text_);
}

TEST_F(Node, mount_of_one_map_cannot_be_reloaded_with_another) {
  HEDDLE_NEEDS_OPEN_TREE();
  start({});
  const auto tree = value_or_throw(ask("map"));
  EXPECT_EQ(run({fs_mount(), "--reload", dir_ / "near-map", place("map")}).status, 3);
  EXPECT_EQ(value_or_throw(read(tree)), text_);
  expect_others_served();
  EXPECT_EQ(run({fs_mount(), "--reload", dir_ / "map", place("map")}).status, 0);
}

TEST_F(Node, hung_files_and_maps_fail_only_their_own_clients) {
  HEDDLE_NEEDS_OPEN_TREE();
  fs::copy_file(dir_ / "near-map", origin_->source() + "/far-map");
  fs::create_symlink(*origin_ / "far-map", dir_ / "far-map");
  const auto far = id("far-map");
  start({"--origin-timeout", "0.3"});
  const auto tree = value_or_throw(ask("map"));
  origin_->hang();
  const auto again = ask("map");
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message(), HasSubstr("its file system has not answered for 300 ms"));
  origin_->answer();
  origin_->hang_reads();
  const auto refused = ask("far-map", far);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("far-map: cannot be read: its file system has not answered for 300 ms"));
  expect_others_served();
  origin_->answer();
  EXPECT_EQ(value_or_throw(read(value_or_throw(ask("map")))), text_);
}

TEST_F(Node, clients_of_one_map_share_one_check_and_one_mount) {
  HEDDLE_NEEDS_OPEN_TREE();
  start({});
  const auto far = id("map");
  origin_->hang();
  std::vector<Fd> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(begin_to_ask("map", far));
  expect_others_served();
  EXPECT_EQ(children_of(service_->pid()).size(), 1U);
  origin_->answer();
  for (const auto& client : clients)
    EXPECT_EQ(value_or_throw(read(value_or_throw(answer(client)))), text_);
  EXPECT_EQ(stats("map").at("workers_lost"), 0);
}

TEST_F(Node, client_arriving_during_a_check_gets_a_later_check) {
  HEDDLE_NEEDS_OPEN_TREE();
  MapMaker both;
  both.add_name("v", "file", *origin_ / "file");
  both.add_name("v", "near", dir_ / "near/file");
  both.write(dir_ / "both");
  start({});
  (void)value_or_throw(ask("both"));
  const auto wanted = id("both");
  origin_->hang();
  const auto first = begin_to_ask("both", wanted);
  // Files of local disks are checked before those that may hang.
  ASSERT_TRUE(wait_until(10s, [&] { return origin_->held() > 0; }));
  write_text_file(dir_ / "near/file", "another");
  const auto second = begin_to_ask("both", wanted);
  origin_->answer();
  EXPECT_EQ(value_or_throw(read(value_or_throw(answer(first)))), text_);
  const auto stale = answer(second);
  ASSERT_FALSE(stale);
  EXPECT_THAT(stale.error().message(), HasSubstr("does not fit this node"));
}

TEST_F(Node, second_service_in_one_directory_is_refused) {
  start({});
  const auto second = run({fs_mount(), "--node", dir_ / "node"}, {.deadline = 10s});
  EXPECT_EQ(second.status, 3);
  EXPECT_THAT(second.err, HasSubstr("an fs-mount --node runs already"));
  EXPECT_TRUE(connect());
}

TEST_F(Node, client_waits_while_the_service_is_out_of_descriptors) {
  HEDDLE_NEEDS_OPEN_TREE();
  start({});
  (void)value_or_throw(ask("map"));
  std::optional<WithoutDescriptors> full(service_->pid());
  const auto client = begin_to_ask("map", id("map"));
  expect_rest(service_->pid());
  full.reset();
  EXPECT_EQ(value_or_throw(read(value_or_throw(answer(client)))), text_);
}

TEST_F(Node, service_ended_while_mounting_leaves_nothing) {
  start({});
  origin_->hang();
  const auto client = begin_to_ask("map", id("map"));
  ASSERT_TRUE(wait_until(10s, [&] { return origin_->held() > 0; }));
  end();
  EXPECT_FALSE(fs::exists(dir_ / "node"));
  EXPECT_FALSE(answer(client));
}

}  // namespace
}  // namespace heddle::test
