// SPDX-License-Identifier: MIT
// fs-mount --reload between versions: the other understands what it is handed over, or says in one
// line that it does not, and the mount goes on as it was.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/packet.hpp"
#include "fuseovl/supervise/reload_protocol.hpp"
#include "resolver/map/map_writer.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ReloadVersion : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    HEDDLE_NEEDS_EPOCHS();
    // The daemon hands its environment on.
    ::setenv("HEDDLE_OTHER_VERSION", (dir_ / "how").c_str(), 1);
    for (const char* name : {"one", "two"}) {
      write_text_file(dir_ / std::string(name) + "/file", name);
      MapMaker maker;
      maker.add_folder("v", dir_ / name);
      maker.write(dir_ / std::string("map-") + name);
    }
    mount_.emplace(dir_ / "map-one", dir_ / "mnt",
                   std::vector<std::string>{"--log", dir_ / "log", "--prefetch", "0"});
  }
  /// By an fs-mount of another version, which is different as `how` says.
  Result<ReloadReply> reload(const std::string& how, const std::string& map = {}) const {
    write_text_file(dir_ / "how", how);
    ReloadRequest request;
    request.program = value_or_throw(open_file(std::getenv("HEDDLE_OTHER_FS_MOUNT"), O_PATH));
    if (!map.empty()) {
      request.map_path = map;
      request.map = value_or_throw(open_file(map, O_RDONLY));
    }
    const auto socket = value_or_throw(connect_abstract(mount_->stat_text("control")));
    value_or_throw(send_request(socket.get(), request));
    return receive_reply(socket.get());
  }
  std::string served() const { return read_uncached(*mount_ / "file").value_or("an error"); }
  /// Whoever was there before gets the old names for two seconds more.
  bool serves(const std::string& text) const {
    return wait_until(10s, [&] { return served() == text; });
  }

  TestDir dir_;
  std::optional<Mount> mount_;
};

TEST_F(ReloadVersion, what_an_older_one_does_not_say_has_a_default) {
  const auto reply = value_or_throw(reload("less"));
  EXPECT_TRUE(reply.done) << reply.text;
  EXPECT_EQ(served(), "one");
  const auto other = value_or_throw(reload("less", dir_ / "map-two"));
  EXPECT_TRUE(other.done) << other.text;
  EXPECT_TRUE(serves("two"));
  const int worker = mount_->worker();
  ::kill(worker, SIGKILL);
  EXPECT_TRUE(serves("two"));
  EXPECT_NE(mount_->worker(), worker);
}

TEST_F(ReloadVersion, what_a_newer_one_says_beyond_is_left_aside) {
  for (const auto& map : {std::string(), dir_ / "map-two"}) {
    const auto reply = value_or_throw(reload("more", map));
    EXPECT_TRUE(reply.done) << reply.text;
  }
  EXPECT_TRUE(serves("two"));
}

TEST_F(ReloadVersion, what_is_not_understood_is_refused_in_a_line_and_the_mount_goes_on) {
  const int worker = mount_->worker(), supervisor = mount_->pid();
  const std::pair<const char*, const char*> cases[] = {
      {"newer", "cannot take the mount over: it is served by another version: 99, not 1"},
      {"newer-content", "cannot take the mount over: it is served by another version: 99, not 2"},
      {"newer-serving", "cannot take the mount over: it is served by another version: 99, not 1"},
      {"other-task", "it is to do what this version does not know: dance"},
      {"options", "this version does not know the options it was made with"},
      {"nonsense", "its loader ended without a word"},
      {"dies", "its loader ended without a word"}};
  for (const auto& [how, why] : cases) {
    SCOPED_TRACE(how);
    const auto reply = value_or_throw(reload(how, dir_ / "map-two"));
    EXPECT_FALSE(reply.done);
    EXPECT_THAT(reply.text, AllOf(HasSubstr(why), Not(HasSubstr("\n"))));
    EXPECT_FALSE(reply.hint.empty());
    EXPECT_EQ(served(), "one");
  }
  EXPECT_EQ(mount_->worker(), worker);
  EXPECT_EQ(mount_->pid(), supervisor);
  EXPECT_EQ(mount_->stat_number("reloads"), 0U);
  EXPECT_EQ(run({fs_mount(), "--reload", mount_->path()}).status, 0);
}

TEST_F(ReloadVersion, patches_are_handed_to_none_that_does_not_know_them) {
  EXPECT_TRUE(value_or_throw(reload("older")).done);
  MapMaker maker;
  maker.add_name("v", "file", write_text_file(dir_ / "image/file", "a plain one"));
  auto content = maker.content();
  auto& object = content.objects.at(0);
  object.path = "/file";
  object.in_image = true;
  object.patches = {{2, "plain", "swept"}};
  content.paths.clear();
  value_or_throw(write_map(content, dir_ / "patched"));
  mount_.emplace(dir_ / "patched", dir_ / "mnt",
                 std::vector<std::string>{"--image", dir_ / "image", "--prefetch", "0"});
  const int worker = mount_->worker();
  const auto refused = value_or_throw(reload("older"));
  EXPECT_FALSE(refused.done);
  EXPECT_THAT(refused.text, HasSubstr("it is served by another version"));
  EXPECT_EQ(mount_->worker(), worker);
  EXPECT_EQ(served(), "a swept one");
  EXPECT_TRUE(value_or_throw(reload("")).done);
  EXPECT_EQ(served(), "a swept one");
}

TEST_F(ReloadVersion, a_request_of_another_version_is_refused) {
  const auto socket = value_or_throw(connect_abstract(mount_->stat_text("control")));
  std::string bytes;
  nlohmann::json::to_cbor({{"version", 2}}, bytes);
  const auto program = value_or_throw(open_file(fs_mount(), O_PATH));
  const int fds[] = {program.get()};
  value_or_throw(send_packet(socket.get(), bytes, fds));
  const auto reply = value_or_throw(receive_reply(socket.get()));
  EXPECT_FALSE(reply.done);
  EXPECT_THAT(reply.text, HasSubstr("it is asked by another version: 2, not 1"));
  EXPECT_EQ(served(), "one");
}

}  // namespace
}  // namespace heddle::test
