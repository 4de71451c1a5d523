// SPDX-License-Identifier: MIT
//
// Pushing to and pulling from a registry; faulty registries, a full disk, and concurrent clients.
#include <fcntl.h>
#include <signal.h>

#include <atomic>

#include "ship/registry/credentials.hpp"
#include "ship/registry/registries.hpp"
#include "tests/compat/registry.hpp"

namespace heddle::test {
namespace {

using registry::parse_reference;
using ::testing::MatchesRegex;

TEST(RegistryReference, is_parsed_as_docker_writes_it) {
  const auto read = [](const std::string& text) { return value_or_throw(parse_reference(text)); };
  EXPECT_EQ(read("localhost:5000/a/b-c:v1.0").tag, "v1.0");
  EXPECT_EQ(read("localhost:5000/a/b-c:v1.0").host, "localhost:5000");
  EXPECT_EQ(read("reg.example/a").tag, "latest");
  EXPECT_EQ(read("reg.example/a").scheme(), "https");
  EXPECT_EQ(read("127.0.0.1:5000/a").scheme(), "http");
  EXPECT_EQ(read("[::1]:5000/a").scheme(), "http");
  EXPECT_EQ(read("127.0.0.1.example/a").scheme(), "https");
  const auto digest = "sha256:" + std::string(64, 'a');
  EXPECT_EQ(read("h:1/a:t@" + digest).version(), digest);
  for (const char* wrong : {"", "a", "a/b", "h:1/", "h:1/A", "h:1/a:", "h:1/a@sha256:12", "h:x/a",
                            "h:1/a//b", "h:1/../b", "h:1/a:-t", "http://h:1/a", "h:1/a b"})
    EXPECT_FALSE(parse_reference(wrong)) << wrong;
  EXPECT_EQ(read("h:1/a:t@" + digest).text(), "h:1/a@" + digest);
  EXPECT_EQ(read("[2001:db8::1]/a/b").host, "[2001:db8::1]");
  EXPECT_EQ(read("localhost/a_b.c-d/e:_T").tag, "_T");
  for (const char* wrong :
       {"[]:1/a", "[::1/a", "[::1]5/a", "[::g]/a", "h:/a", "h:1/-a", "h:1/a-", "h:1/a/", "h:1//a",
        "h:1/a@", "h:1/a:b:c", "h:1/a:b/c", "h_x.y/a", "h:1/a\n"})
    EXPECT_FALSE(parse_reference(wrong)) << wrong;
  EXPECT_TRUE(parse_reference("h:1/a:" + std::string(128, 't')));
  EXPECT_FALSE(parse_reference("h:1/a:" + std::string(129, 't')));
}

TEST(RegistryReference, may_be_long) {
  std::string parts = "h:1/a";
  while (parts.size() < (1U << 20)) parts += "/a";
  EXPECT_TRUE(parse_reference(parts));
  EXPECT_FALSE(parse_reference(parts + "/"));
  EXPECT_FALSE(parse_reference(parts + "/" + std::string(1U << 20, '.')));
}

TEST(RegistryCredentials, are_found_in_the_file_of_docker) {
  const std::string file =
      R"({"auths":{"https://h:1/v1/":{"auth":"dXNlcjpwYXNz"},"i":{"identitytoken":"t"},"j":{}}})";
  const auto in = [](std::string_view text, const char* host, const char* repository = "r") {
    return registry::credentials_in(text, host, repository);
  };
  ASSERT_TRUE(in(file, "h:1"));
  EXPECT_EQ(in(file, "h:1")->basic, "dXNlcjpwYXNz");
  EXPECT_EQ(in(file, "i")->identity_token, "t");
  for (const char* host : {"h", "h:2", "j"}) EXPECT_FALSE(in(file, host));
  for (const char* text : {"", "{", "[]", R"({"auths":3})", R"({"auths":{"h":{"auth":"!"}}})",
                           R"({"auths":{"h":{"auth":"YQ==\r\nX: y"}}})"})
    EXPECT_FALSE(in(text, "h"));
  // podman's keys: the longest match counts.
  const std::string paths =
      R"({"auths":{"h/a":{"auth":"1"},"h":{"auth":"2"},"h/a/b":{"auth":"3"}}})";
  EXPECT_EQ(in(paths, "h", "a/c")->basic, "1");
  EXPECT_EQ(in(paths, "h", "ab")->basic, "2");
  EXPECT_EQ(in(paths, "h", "a/b")->basic, "3");
  EXPECT_FALSE(in(paths, "h2", "a"));
}

TEST_F(Registry, serves_an_artifact_by_tag_and_by_digest) {
  start();
  const auto pushed = push();
  ASSERT_EQ(pushed.status, 0) << pushed.err;
  EXPECT_THAT(pushed.out, MatchesRegex("127.0.0.1:[0-9]+/tools/xz@sha256:[0-9a-f]+\n"));
  auto done = check("/tools/xz:v1");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, "compatible\n");
  const auto by_digest = pushed.out.substr(0, pushed.out.size() - 1);
  EXPECT_EQ(go({check_, "oci:" + by_digest}).out, "compatible\n");
  // A second push gives the same digest.
  EXPECT_EQ(push().out, pushed.out);
  expect_failure(check("/tools/none:v1"), "/tools/none:v1: cannot pull: HTTP status 404");
}

TEST_F(Registry, cache_serves_pulled_artifacts_without_the_registry) {
  start();
  const auto pushed = push();
  ASSERT_EQ(check("/tools/xz:v1").status, 0);
  stop();
  const auto done = check("/tools/xz:v1");
  EXPECT_EQ(done.out, "compatible\n");
  EXPECT_THAT(done.err, HasSubstr("using the copy of sha256:"));
  const auto silent = go({check_, "oci:" + pushed.out.substr(0, pushed.out.size() - 1)});
  EXPECT_EQ(silent.out, "compatible\n");
  EXPECT_EQ(silent.err, "");
  // A damaged copy is ignored.
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "cache/heddle/oci/sha256"))
    write_text_file(entry.path().string(), "damage");
  expect_failure(check("/tools/xz:v1"), "cannot reach the registry");
  cache_ = "another";
  expect_failure(check("/tools/xz:v1"), "cannot reach the registry");
}

TEST_F(Registry, finds_an_artifact_by_the_image_it_is_attached_to) {
  start();
  // Any manifest serves as the image.
  ASSERT_EQ(go({gen_, "--push", host_ + "/apps/lmp:image", "/bin/true"}).status, 0);
  push_map("/apps/lmp:map");
  // The map's manifest has no artifact, so only attached ones count.
  expect_failure(check("/apps/lmp:map"), "nor attached to it");
  const auto pushed = go({gen_, "--push", host_ + "/apps/lmp:xz-compat", "--attach",
                          host_ + "/apps/lmp:map", "/usr/bin/xz"});
  ASSERT_EQ(pushed.status, 0) << pushed.err;
  const auto done = check("/apps/lmp:map");
  EXPECT_EQ(done.out, "compatible\n") << done.err;
  stop();
  EXPECT_EQ(check("/apps/lmp:map").out, "compatible\n");
}

/// `--push REPO` alone means the tag latest, which is the image's.
TEST_F(Registry, attaching_moves_no_tag) {
  start();
  const auto map = read_file(push_map("/apps/lmp:latest")).value_or("");
  const auto latest = [&] {
    const auto copy = dir_ / "latest.map";
    std::filesystem::remove(copy);
    (void)go({resolve_, "pull", host_ + "/apps/lmp:latest", "-o", copy});
    return read_file(copy).value_or("");
  };
  ASSERT_EQ(latest(), map);
  const auto image = host_ + "/apps/lmp";
  ASSERT_EQ(go({gen_, "--push", image, "--attach", image, "/bin/true"}).status, 0);
  EXPECT_EQ(latest(), map);
  expect_failure(
      go({gen_, "--push", image + ":latest", "--attach", image + ":latest", "/bin/true"}),
      "the tag names another type of artifact");
  EXPECT_EQ(latest(), map);
  EXPECT_EQ(check("/apps/lmp").out, "compatible\n");
}

TEST_F(Registry, serves_a_map_unchanged_and_damaged_ones_are_refused) {
  start();
  const auto map = push_map("/maps/xz");
  const auto copy = dir_ / "b.map";
  const auto pulled = go({resolve_, "pull", host_ + "/maps/xz", "-o", copy});
  ASSERT_EQ(pulled.status, 0) << pulled.err;
  const auto old = read_file(copy).value_or("");
  EXPECT_EQ(old, read_file(map).value_or("x"));
  expect_failure(go({resolve_, "push", "/etc/passwd", host_ + "/maps/no"}), "/etc/passwd");
  // An artifact is not a map.
  ASSERT_EQ(push().status, 0);
  expect_failure(go({resolve_, "pull", host_ + "/tools/xz:v1", "-o", copy}),
                 "there is nothing of type");
  for (const auto& damage : {std::string(5000, 'x'), old.substr(0, 4096), std::string()}) {
    const auto file = write_text_file(dir_ / "damage", damage);
    const auto pushed =
        go({"sh", "-c", "\"$0\" push --type application/vnd.heddle.map.v1 \"$1\" <\"$2\"",
            staged_program("oci-client"), host_ + "/m:1", file});
    ASSERT_EQ(pushed.status, 0) << pushed.err;
    expect_failure(go({resolve_, "pull", host_ + "/m:1", "-o", copy}), "/m:1: cannot be used: ");
  }
  EXPECT_EQ(read_file(copy).value_or(""), old);
}

TEST_F(Registry, serves_a_bundle_unchanged) {
  start();
  const auto map = push_map("/maps/xz");
  const auto bundle = dir_ / "a.bundle";
  ASSERT_EQ(go({resolve_, "pack", map, "-o", bundle}).status, 0);
  const auto pushed = go({resolve_, "push", bundle, host_ + "/bundles/xz:1"});
  ASSERT_EQ(pushed.status, 0) << pushed.err;
  const auto pulled = go({resolve_, "pull", host_ + "/bundles/xz:1", "-o", dir_ / "b.bundle"});
  ASSERT_EQ(pulled.status, 0) << pulled.err;
  EXPECT_EQ(read_file(dir_ / "b.bundle").value_or(""), read_file(bundle).value_or("x"));
  EXPECT_EQ(go({resolve_, "verify", dir_ / "b.bundle"}).status, 0);
}

TEST_F(Registry, serves_no_bundle_with_a_damaged_frame) {
  start();
  const auto map = push_map("/maps/xz");
  const auto bundle = dir_ / "a.bundle";
  ASSERT_EQ(go({resolve_, "pack", map, "-o", bundle}).status, 0);
  const auto file = value_or_throw(open_file(bundle, O_RDWR));
  ASSERT_EQ(::pwrite(file.get(), "damage", 6, 1000), 6);
  expect_failure(go({resolve_, "push", bundle, host_ + "/bundles/xz:1"}),
                 "frames have other bytes");
  const auto pushed =
      go({"sh", "-c", "\"$0\" push --type application/vnd.heddle.map.v1 \"$1\" <\"$2\"",
          staged_program("oci-client"), host_ + "/bundles/xz:1", bundle});
  ASSERT_EQ(pushed.status, 0) << pushed.err;
  expect_failure(go({resolve_, "pull", host_ + "/bundles/xz:1", "-o", dir_ / "b.bundle"}),
                 "cannot be used: damaged bundle: 1 of ");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "b.bundle"));
}

TEST_F(Registry, client_ends_with_the_program_that_started_it) {
  start_odd("    import time; time.sleep(100)\n");
  auto puller = value_or_throw(spawn(
      resolve_, {"fs-resolve", "pull", "--no-cache", host_ + "/a:1", "-o", dir_ / "out.map"}));
  const auto pid = std::to_string(puller.pid());
  std::string child;
  EXPECT_TRUE(wait_until(milliseconds(20'000), [&] {
    child = read_file("/proc/" + pid + "/task/" + pid + "/children").value_or("");
    if (!child.empty()) child.pop_back();
    return !child.empty() && read_file("/proc/" + child + "/comm").value_or("") == "oci-client\n";
  }));
  ::kill(puller.pid(), SIGKILL);
  (void)puller.wait();
  EXPECT_TRUE(wait_until(milliseconds(20'000), [&] { return !is_running(std::stoi(child)); }));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out.map"));
}

TEST_F(Registry, client_authenticates_by_the_credential_file) {
  // user:secret-word, by htpasswd -B.
  const auto passwords = run_checked({"/usr/bin/python3", "-W", "ignore", "-c",
                                      "import crypt; print('user:' + crypt.crypt('secret-word', "
                                      "'$2b$05$abcdefghijklmnopqrstuu'))"});
  write_text_file(dir_ / "htpasswd", passwords.out);
  start("auth:\n  htpasswd:\n    realm: test\n    path: " + (dir_ / "htpasswd") + "\n");
  expect_failure(push(), "HTTP status 401");
  EXPECT_THAT(push().err, HasSubstr("podman login " + host_));
  const std::string own = R"("credHelpers":{")" + host_ + R"(":"vault"},"auths":{})";
  for (const std::string& helpers : {std::string(R"("credsStore":"vault")"), own}) {
    write_text_file(dir_ / "docker/config.json", "{" + helpers + "}");
    expect_failure(push(), "docker-credential-vault of " + (dir_ / "docker/config.json") +
                               ": credential helpers are not started");
  }
  write_text_file(dir_ / "docker/config.json",
                  R"({"auths":{")" + host_ + R"(":{"auth":"dXNlcjpzZWNyZXQtd29yZA=="}}})");
  const auto done = push();
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(check("/tools/xz:v1").out, "compatible\n");
}

TEST_F(Registry, client_sends_a_bearer_token_to_its_registry_only) {
  const auto port = std::to_string(port_);
  start_odd(
      "    given = self.headers.get('Authorization')\n"
      "    if self.path.startswith('/token'):\n"
      "      good = given == 'Basic dXNlcjpzZWNyZXQ='\n"
      "      return self.say(200, b'{\"token\":\"T0K\"}') if good else self.say(401)\n"
      "    if self.path == '/elsewhere': return self.say(500 if given else 200, b'{}')\n"
      "    if given != 'Bearer T0K':\n"
      "      return self.say(401, WWW_Authenticate='Bearer realm=\"http://127.0.0.1:" +
      port +
      "/token\",service=\"s\"')\n"
      "    if '/manifests/' in self.path: return self.say(200, self.manifest(b'{}'))\n"
      "    self.say(307, Location='http://localhost:" +
      port + "/elsewhere')\n");
  expect_failure(check("/a:1"), "cannot log in");
  write_text_file(dir_ / "docker/config.json",
                  R"({"auths":{")" + host_ + R"(":{"auth":"dXNlcjpzZWNyZXQ="}}})");
  // The blob comes from the other host and is not an artifact.
  expect_failure(check("/a:1"), "it has no `heddle` part");
}

TEST_F(Registry, client_uses_the_referrers_api_where_it_exists) {
  // Serves the referrers API only: the fallback tag would get 404.
  const auto artifact = dir_ / "xz.json";
  ASSERT_EQ(go({gen_, "--out", artifact, "/usr/bin/xz"}).status, 0);
  start_odd(
      "    blob = open('" + artifact +
      "', 'rb').read()\n"
      "    one = self.manifest(blob)\n"
      "    name = 'sha256:' + hashlib.sha256(one).hexdigest()\n"
      "    if self.path.endswith('/manifests/image'): return self.say(200, b'{\"layers\":[]}')\n"
      "    if '/referrers/sha256:' in self.path:\n"
      "      return self.say(200, json.dumps({'manifests': [{'digest': 'sha256:' + 'a' * 64,\n"
      "        'artifactType': 'other/type'}, {'digest': name, 'artifactType':\n"
      "        'application/vnd.heddle.compat.v1+json'}]}).encode())\n"
      "    if self.path.endswith('/manifests/' + name): return self.say(200, one)\n"
      "    if '/blobs/' in self.path: return self.say(200, blob)\n"
      "    self.say(404)\n");
  const auto done = check("/a:image");
  EXPECT_EQ(done.out, "compatible\n") << done.err;
}

TEST_F(Registry, client_trusts_a_site_authority_for_https) {
  make_certificate("127.0.0.1", dir_ / "key", dir_ / "cert");
  start("", "  tls:\n    certificate: " + (dir_ / "cert") + "\n    key: " + (dir_ / "key") + "\n");
  expect_failure(push(), "certs.d/" + host_ + "/ca.crt");  // http to an https port
  const auto directory = dir_ / (".config/containers/certs.d/" + host_);
  run_checked({"mkdir", "-p", directory});
  make_certificate("127.0.0.3", dir_ / "key2", directory + "/ca.crt");
  expect_failure(push(), "SSL certificate problem");
  run_checked({"cp", dir_ / "cert", directory + "/ca.crt"});
  const auto done = push();
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(check("/tools/xz:v1").out, "compatible\n");
}

TEST(RegistryEntries, reader_takes_registry_tables_alone) {
  const auto entries = registry::registry_entries(
      "unqualified-search-registries = [\"docker.io\",\n  \"quay.io\"]\ninsecure = true\n"
      "[[registry]]  # the site's\nprefix = 'hub.example/a'\nlocation=\"in.example:5000/b\" # x\n"
      "insecure = true\n  [[registry.mirror]]\n  location = \"mirror.example\"\n  insecure = true\n"
      "[[registry]]\nlocation = \"plain.example\"\nblocked = true\ninsecure = maybe\n"
      "[[registry]]\ninsecure = true\n[aliases]\n\"x\" = \"y\"\n");
  EXPECT_EQ(entries, (std::vector<registry::RegistryEntry>{
                         {"hub.example/a", "in.example:5000/b", true, false},
                         {"plain.example", "plain.example", false, true}}));
}

/// The entries of `text`, without the warnings.
std::vector<registry::RegistryEntry> silent_entries(const std::string& text) {
  ::testing::internal::CaptureStderr();
  auto out = registry::registry_entries(text);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << text;
  return out;
}

TEST(RegistryEntries, reader_takes_all_spellings_of_a_blocked_registry) {
  for (const auto& text : std::vector<std::string>{
           "[[registry]]\nprefix = 'h.x/a/'\nblocked = true\n",
           "\xEF\xBB\xBF[[registry]]\r\nlocation = \"h.x/a\"\r\nblocked = true\r\n",
           "[[ \"registry\" ]] # x\n\t\"prefix\"='h.x/a'\n'blocked'=true# x\n",
           "[[registry]]\nblocked = true # " + std::string(100'000, 'x') + "\nlocation='h.x/a'"}) {
    const auto entries = silent_entries(text);
    ASSERT_EQ(entries.size(), 1U) << text.substr(0, 100);
    EXPECT_EQ(entries[0].prefix, "h.x/a");
    EXPECT_TRUE(entries[0].blocked);
  }
}

TEST(RegistryEntries, reader_warns_of_what_it_does_not_understand) {
  for (const std::string line :
       {"location = \"h\\u002Ex\"", "location = \"\"\"h.x\"\"\"", "mirror = [{location = 'x'}]",
        "blocked = True", "blocked", "location = 'x' 'y'"}) {
    ::testing::internal::CaptureStderr();
    static_cast<void>(registry::registry_entries("[[registry]]\n" + line + "\n", "FILE"));
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("warning: FILE:2: ignored"))
        << line;
  }
  ::testing::internal::CaptureStderr();
  static_cast<void>(registry::registry_entries("registry = [{prefix = 'x', blocked = true}]\n"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("registries.conf:1: ignored"));
  silent_entries(
      "unqualified-search-registries = [\n'registry = 1',\n]\n[[registry]]\n\n # x\n"
      "mirror-by-digest-only = true\n[[registry.mirror]]\nodd [\n");
}

TEST(RegistryEntries, prefix_ends_at_a_port_tag_or_digest) {
  const std::vector<registry::RegistryEntry> entries = {
      {"h.x", "", false, true}, {"*.lab.x", "", false, true}, {"ok.x/a:old", "", false, true}};
  const auto is_blocked = [&](const std::string& text) {
    return !registry::locate(value_or_throw(parse_reference(text)), entries);
  };
  for (const char* text :
       {"h.x/a", "h.x:5000/a", "c.lab.x:5000/a", "c.lab.x.lab.x/a", "ok.x/a:old"})
    EXPECT_TRUE(is_blocked(text)) << text;
  for (const char* text : {"h.xy/a", "lab.x/a", "ok.x/a.lab.x/b", "ok.x/a:older", "ok.x/a"})
    EXPECT_FALSE(is_blocked(text)) << text;
}

TEST(RegistryEntries, docker_hub_is_searched_by_its_full_name) {
  const auto located = [](const char* text, const registry::RegistryEntry& entry) {
    const auto there = registry::locate(value_or_throw(parse_reference(text)), {entry});
    return there ? there->at.text() + " " + there->host : there.error().message();
  };
  const registry::RegistryEntry mirror{"docker.io/library", "in.x/hub", false, false};
  EXPECT_EQ(located("docker.io/xz", mirror), "in.x/hub/xz:latest in.x");
  EXPECT_EQ(located("index.docker.io/xz", mirror), "in.x/hub/xz:latest in.x");
  EXPECT_EQ(located("docker.io/a/xz", mirror), "docker.io/a/xz:latest registry-1.docker.io");
  EXPECT_THAT(located("index.docker.io/a/xz", {"docker.io", "", false, true}),
              HasSubstr("registries.conf blocks docker.io"));
  EXPECT_EQ(located("in.x/hub/xz", {"in.x/hub", "docker.io", false, false}),
            "docker.io/xz:latest registry-1.docker.io");
}

TEST(RegistryEntries, locate_by_the_longest_prefix_and_docker_hub_by_its_name) {
  const std::vector<registry::RegistryEntry> entries = {
      {"hub.example", "one.example", false, false},
      {"hub.example/a", "two.example:1/b", true, false},
      {"hub.example/no", "", false, true},
      {"*.lab.example", "", true, false},
      {"hub.example/bad", "not a host", false, false}};
  const auto located = [&](const char* text) {
    const auto there = registry::locate(value_or_throw(parse_reference(text)), entries);
    if (!there) return there.error().message();
    return there->at.text() + " " + there->host + (there->insecure ? " insecure" : "");
  };
  EXPECT_EQ(located("hub.example/x:1"), "one.example/x:1 one.example");
  EXPECT_EQ(located("hub.example/a/x"), "two.example:1/b/x:latest two.example:1 insecure");
  EXPECT_EQ(located("hub.example/ab/x"), "one.example/ab/x:latest one.example");
  EXPECT_EQ(located("c.lab.example/x"), "c.lab.example/x:latest c.lab.example insecure");
  EXPECT_EQ(located("lab.example/x"), "lab.example/x:latest lab.example");
  EXPECT_EQ(located("docker.io/xz"), "docker.io/library/xz:latest registry-1.docker.io");
  EXPECT_EQ(located("index.docker.io/a/xz"), "docker.io/a/xz:latest registry-1.docker.io");
  EXPECT_THAT(located("hub.example/no/x"), HasSubstr("registries.conf blocks hub.example/no"));
  EXPECT_THAT(located("hub.example/bad/x"), HasSubstr("not a registry reference"));
}

TEST_F(Registry, client_reaches_an_insecure_registry_of_registries_conf) {
  start();
  // Not one of the names that stand for this node: reached by TLS.
  const std::string host = "0.0.0.0:" + std::to_string(port_);
  const auto push_there = [&] {
    return go({gen_, "--push", host + "/tools/xz:v1", "/usr/bin/xz"});
  };
  expect_failure(push_there(), "`insecure = true` for it in registries.conf");
  run_checked({"mkdir", "-p", dir_ / ".config/containers/registries.conf.d"});
  const auto entry = [&](const std::string& text) {
    write_text_file(dir_ / ".config/containers/registries.conf.d/site.conf",
                    "[[registry]]\n" + text);
  };
  entry("location = '" + host + "'\ninsecure = true\n");
  const auto done = push_there();
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(go({check_, "oci:" + host + "/tools/xz:v1"}).out, "compatible\n");
  entry("prefix = 'hub.example/t'\nlocation = '" + host + "/tools'\ninsecure = true\n");
  EXPECT_EQ(go({check_, "oci:hub.example/t/xz:v1"}).out, "compatible\n");
  entry("location = '" + host + "'\nblocked = true\n");
  expect_failure(push_there(), "registries.conf blocks " + host);
  // With TLS and a certificate that no authority signed.
  stop();
  make_certificate("127.0.0.9", dir_ / "key", dir_ / "cert");
  start("", "  tls:\n    certificate: " + (dir_ / "cert") + "\n    key: " + (dir_ / "key") + "\n");
  entry("location = 'nowhere.example'\n");
  expect_failure(push_there(), "certs.d/HOST[:PORT]/ca.crt");
  entry("location = '" + host + "'\ninsecure = true\n");
  EXPECT_EQ(push_there().status, 0);
}

TEST_F(Registry, client_refuses_invalid_answers_and_leaves_no_file) {
  // A manifest of `blob`, and `answer` to the request of the blob.
  const auto serving = [](const std::string& blob, const std::string& answer) {
    return "    if '/manifests/' in self.path: return self.say(200, self.manifest(" + blob +
           "))\n    " + answer + "\n";
  };
  const std::string blob = "b'x' * 1000";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {serving(blob, "self.say(200, b'y' * 1000)"), "its digest"},
      {"    self.say(200, self.manifest(b''), Docker_Content_Digest='sha256:' + 'a' * 64)\n",
       "its digest"},
      // Fewer bytes than HTTP, then the manifest, announces; then more.
      {serving(blob, "self.say(200, b'x' * 500, 1000); self.connection.close()"),
       "the registry failed"},
      {serving(blob + ", 2000", "self.say(200, " + blob + ")"), "the blob is truncated"},
      {serving(blob, "self.say(200, b'x' * 5000)"), "the registry sent too much"},
      {"    self.say(302, Location=self.path)\n", "the registry failed"},
      {"    self.say(302, Location='file:///etc/passwd')\n", "the registry failed"},
      {"    self.say(200, b'<html>')\n", "damaged manifest"},
      {"    self.say(500, b'oops')\n", "HTTP status 500"},
  };
  for (const auto& [body, words] : cases) {
    start_odd(body);
    expect_failure(check("/a:1"), words);
    if (words == "HTTP status 500") expect_failure(push(), "cannot push: HTTP status 500");
    const auto out = dir_ / "out.map";
    EXPECT_EQ(go({resolve_, "pull", host_ + "/a:1", "-o", out}).status, 3);
    EXPECT_FALSE(std::filesystem::exists(out));
    stop();
  }
  expect_failure(check("/a:1"), "cannot reach the registry");
  expect_failure(push(), "cannot reach the registry");
}

TEST_F(Registry, client_sends_no_password_without_tls_to_another_host) {
  start_odd("    self.say(401, WWW_Authenticate='Bearer realm=\"http://reg.example/token\"')\n");
  expect_failure(check("/a:1"), "wants the password sent without TLS");
}

TEST_F(Registry, serves_64_clients_that_share_a_cache) {
  start();
  const auto map = push_map("/maps/xz");
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

TEST_F(Registry, keeps_artifacts_of_concurrent_attachments) {
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
  // Debian's registry has no referrers API: the index is behind a tag of the image's digest.
  EXPECT_EQ(run({"/usr/bin/python3", "-c", R"(if True:
      import json, sys, urllib.request as web
      base = 'http://' + sys.argv[1] + '/v2/a/'
      tags = json.load(web.urlopen(base + 'tags/list'))['tags']
      index = web.Request(base + 'manifests/' + [tag for tag in tags if tag.startswith('sha256-')][0],
                          headers={'Accept': 'application/vnd.oci.image.index.v1+json'})
      print(len(json.load(web.urlopen(index))['manifests']))
      )",
                 host_})
                .out,
            "12\n");
}

TEST_F(Registry, client_reports_unwritable_outputs_and_leaves_no_file) {
  start();
  const auto map = push_map("/maps/xz");
  expect_failure(go({resolve_, "pull", host_ + "/maps/xz", "-o", dir_ / "no/such/x.map"}),
                 "No such file or directory");
  expect_failure(go({resolve_, "push", dir_ / "none.map", host_ + "/maps/xz"}), "none.map");
  ASSERT_EQ(push().status, 0);
  const auto full = run({"/bin/sh", "-c", "exec \"$0\" \"$@\" >/dev/full", gen_, "--push",
                         host_ + "/tools/xz:v1", "/usr/bin/xz"},
                        {.env = {"XDG_CACHE_HOME=" + dir_ / "cache", "HOME=" + dir_.path()}});
  EXPECT_EQ(full.status, 3);
  EXPECT_THAT(full.err, HasSubstr("No space left on device"));
  const auto directory = dir_ / "small";
  const auto small = go({"unshare", "--mount", "--propagation", "private", "sh", "-c",
                         "mkdir $0; mount -t tmpfs -o size=8k none $0 || exit 9; " + resolve_ +
                             " pull " + host_ + "/maps/xz -o $0/x.map; echo $? $(ls -A $0)",
                         directory});
  EXPECT_EQ(small.out, "3\n");
  EXPECT_THAT(small.err, HasSubstr(directory + "/x.map: cannot write: No space left on device"));
  // A cache that cannot be written does not fail the pull.
  write_text_file(dir_ / "file", "");
  cache_ = "file";
  EXPECT_EQ(check("/tools/xz:v1").out, "compatible\n");
}

}  // namespace
}  // namespace heddle::test
