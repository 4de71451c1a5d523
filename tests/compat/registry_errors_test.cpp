// SPDX-License-Identifier: MIT
//
// Registries that misbehave, a full disk, and many at once.
#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/compat/registry.hpp"

namespace heddle::test {
namespace {

using ::testing::HasSubstr;

TEST_F(Registry, wrong_digests_truncated_blobs_and_loops_are_told_and_leave_nothing) {
  const std::string blob = "b'x' * 1000";
  const std::vector<std::pair<std::string, std::string>> cases = {
      // Another content than the digest's.
      {"    m = self.manifest(" + blob +
           ")\n"
           "    self.say(200, m if '/manifests/' in self.path else b'y' * 1000)\n",
       "the blob is not what its digest says"},
      {"    self.say(200, self.manifest(" + blob +
           "), Docker_Content_Digest='sha256:' + 'a' * 64)\n",
       "the manifest is not what its digest says"},
      // Fewer bytes than announced, by HTTP and by the manifest.
      {"    m = self.manifest(" + blob +
           ")\n"
           "    if '/manifests/' in self.path: return self.say(200, m)\n"
           "    self.say(200, b'x' * 500, 1000); self.connection.close()\n",
       "the registry failed"},
      {"    m = self.manifest(" + blob +
           ", 2000)\n"
           "    self.say(200, m if '/manifests/' in self.path else " +
           blob + ")\n",
       "the blob is truncated"},
      {"    m = self.manifest(" + blob +
           ")\n"
           "    self.say(200, m if '/manifests/' in self.path else b'x' * 5000)\n",
       "the registry sent too much"},
      {"    self.say(302, Location=self.path)\n", "the registry failed"},
      {"    self.say(302, Location='file:///etc/passwd')\n", "the registry failed"},
      {"    self.say(200, b'<html>')\n", "damaged manifest"},
      {"    self.say(500, b'oops')\n", "HTTP status 500"},
  };
  for (const auto& [body, words] : cases) {
    start_odd(body);
    expect_failure(check("/a:1"), words);
    const auto out = dir_ / "out.map";
    EXPECT_EQ(go({resolve_, "pull", host_ + "/a:1", "-o", out}).status, 3);
    EXPECT_FALSE(std::filesystem::exists(out));
    stop();
  }
  expect_failure(check("/a:1"), "cannot reach the registry");
  expect_failure(push(), "cannot reach the registry");
}

TEST_F(Registry, a_password_is_not_sent_in_the_clear_to_another_host) {
  start_odd("    self.say(401, WWW_Authenticate='Bearer realm=\"http://reg.example/token\"')\n");
  expect_failure(check("/a:1"), "wants the password sent without TLS");
}

TEST_F(Registry, a_token_stays_with_the_host_it_is_for) {
  start_odd(
      "    if self.path.startswith('/token'): return self.say(200, b'{\"token\":\"T0K\"}')\n"
      "    given = self.headers.get('Authorization')\n"
      "    if self.path == '/elsewhere': return self.say(500 if given else 200, b'{}')\n"
      "    if given != 'Bearer T0K':\n"
      "      return self.say(401, WWW_Authenticate='Bearer realm=\"http://127.0.0.1:" +
      std::to_string(port_) +
      "/token\"')\n"
      "    if '/manifests/' in self.path: return self.say(200, self.manifest(b'{}'))\n"
      "    self.say(307, Location='http://localhost:" +
      std::to_string(port_) + "/elsewhere')\n");
  expect_failure(check("/a:1"), "it has no `heddle` part");
}

TEST_F(Registry, sixty_four_at_once_share_a_cache) {
  start();
  const auto map = dir_ / "a.map";
  ASSERT_EQ(go({resolve_, "build", "-o", map, "/usr/bin/xz"}).status, 0);
  ASSERT_EQ(go({resolve_, "push", map, host_ + "/maps/xz"}).status, 0);
  std::vector<std::thread> nodes;
  std::atomic<int> good{0};
  const auto wanted = read_file(map).value_or("x");
  for (int i = 0; i < 64; ++i)
    nodes.emplace_back([&, out = dir_ / ("copy" + std::to_string(i))] {
      const auto done = go({resolve_, "pull", host_ + "/maps/xz", "--out", out});
      good += done.status == 0 && done.err.empty() && read_file(out).value_or("") == wanted;
    });
  for (auto& node : nodes) node.join();
  EXPECT_EQ(good, 64);
}

TEST_F(Registry, many_attach_to_one_image_at_once) {
  start();
  ASSERT_EQ(go({gen_, "--push", host_ + "/a:image", "/bin/true"}).status, 0);
  std::vector<std::thread> pushers;
  std::atomic<int> good{0};
  for (int i = 0; i < 12; ++i)
    pushers.emplace_back([&, program = dir_ / ("p" + std::to_string(i))] {
      std::filesystem::copy_file("/usr/bin/xz", program);
      good += go({gen_, "--push", host_ + "/a:" + program.substr(program.rfind('/') + 1),
                  "--attach", host_ + "/a:image", program})
                  .status == 0;
    });
  for (auto& pusher : pushers) pusher.join();
  EXPECT_EQ(good, 12);
}

TEST_F(Registry, a_full_disk_or_a_forbidden_folder_is_told_and_leaves_nothing) {
  start();
  const auto map = dir_ / "a.map";
  ASSERT_EQ(go({resolve_, "build", "-o", map, "/usr/bin/xz"}).status, 0);
  ASSERT_EQ(go({resolve_, "push", map, host_ + "/maps/xz"}).status, 0);
  expect_failure(go({resolve_, "pull", host_ + "/maps/xz", "-o", dir_ / "no/such/x.map"}),
                 "No such file or directory");
  expect_failure(go({resolve_, "push", dir_ / "none.map", host_ + "/maps/xz"}), "none.map");
  ASSERT_EQ(push().status, 0);
  const auto full = run({"/bin/sh", "-c", "exec \"$0\" \"$@\" >/dev/full", gen_, "--push",
                         host_ + "/tools/xz:v1", "/usr/bin/xz"},
                        {.env = {"XDG_CACHE_HOME=" + dir_ / "cache", "HOME=" + dir_.path()}});
  EXPECT_EQ(full.status, 3);
  EXPECT_THAT(full.err, HasSubstr("No space left on device"));
  const auto folder = dir_ / "small";
  const auto small = go({"unshare", "--mount", "--propagation", "private", "sh", "-c",
                         "mkdir $0; mount -t tmpfs -o size=8k none $0 || exit 9; " + resolve_ +
                             " pull " + host_ + "/maps/xz -o $0/x.map; echo $? $(ls -A $0)",
                         folder});
  EXPECT_EQ(small.out, "3\n");
  EXPECT_THAT(small.err, HasSubstr("No space left on device"));
  // What cannot be kept is still handed on.
  write_text_file(dir_ / "file", "");
  cache_ = "file";
  EXPECT_EQ(check("/tools/xz:v1").out, "compatible\n");
}

}  // namespace
}  // namespace heddle::test
