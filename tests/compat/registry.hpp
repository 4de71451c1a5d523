// SPDX-License-Identifier: MIT
#pragma once

#include "tests/compat/loopback.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

using std::chrono::milliseconds;

/// Debian's docker-registry, faulty registries, and the programs that use them.
class Registry : public ::testing::Test {
 protected:
  void SetUp() override {
    gen_ = staged_program("compat-gen");
    check_ = staged_program("compat-check");
    resolve_ = staged_program("fs-resolve");
    if (gen_.empty() || check_.empty()) HEDDLE_SKIP("compat-gen is not installed in $HEDDLE_STAGE");
    if (::access("/usr/bin/docker-registry", X_OK) != 0)
      HEDDLE_SKIP("docker-registry is not installed");
    port_ = free_port();
    host_ = "127.0.0.1:" + std::to_string(port_);
  }
  void TearDown() override { stop(); }

  /// Debian's registry on a loopback port. `auth`: the auth section of its configuration; `http`:
  /// additions to its http section.
  void start(const std::string& auth = "", const std::string& http = "") {
    const auto file = write_text_file(
        dir_ / "registry.yml",
        "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: " +
            (dir_ / "storage") + "\n  delete:\n    enabled: true\nhttp:\n  addr: " + host_ + "\n" +
            http + auth);
    launch({"/usr/bin/docker-registry", "serve", file});
  }
  /// A faulty registry: Python's http.server with this body of do_GET.
  void start_odd(const std::string& body) {
    const auto file = write_text_file(
        dir_ / "odd.py",
        "import http.server, json, hashlib, sys\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "  def log_message(self, *a): pass\n"
        "  def say(self, code, body=b'', length=None, **headers):\n"
        "    self.send_response(code)\n"
        "    for k, v in headers.items(): self.send_header(k.replace('_', '-'), v)\n"
        "    self.send_header('Content-Length', str(len(body) if length is None else length))\n"
        "    self.end_headers(); self.wfile.write(body)\n"
        "  def manifest(self, blob, size=None):\n"
        "    return json.dumps({'schemaVersion': 2, 'layers': [{'mediaType': "
        "'application/vnd.heddle.compat.v1+json', 'digest': 'sha256:' + "
        "hashlib.sha256(blob).hexdigest(), 'size': size or len(blob)}]}).encode()\n"
        "  def do_GET(self):\n" +
            body + "\nhttp.server.ThreadingHTTPServer(('127.0.0.1', " + std::to_string(port_) +
            "), H).serve_forever()\n");
    launch({"/usr/bin/python3", file});
  }
  void launch(const std::vector<std::string>& argv) {
    Fd log = value_or_throw(open_file(dir_ / "registry.log", O_WRONLY | O_CREAT | O_APPEND));
    server_.emplace(
        value_or_throw(spawn(argv[0], argv, {.fds = {{log.get(), 1}, {log.get(), 2}}})));
    ASSERT_TRUE(wait_until(milliseconds(20'000), [&] { return connect_to(port_).valid(); }))
        << read_file(dir_ / "registry.log").value_or("");
  }
  void stop() {
    if (!server_) return;
    ::kill(server_->pid(), SIGTERM);
    static_cast<void>(server_->wait_for(milliseconds(5000)));
    server_.reset();
  }
  RunResult go(const std::vector<std::string>& argv) {
    return run(argv, {.env = {"XDG_CACHE_HOME=" + dir_ / cache_, "DOCKER_CONFIG=" + dir_ / "docker",
                              "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "HOME=" + dir_.path(),
                              "LD_LIBRARY_PATH"}});
  }
  RunResult push() { return go({gen_, "--push", host_ + "/tools/xz:v1", "/usr/bin/xz"}); }
  /// Pushes a map of xz; the map's file.
  std::string push_map(const std::string& rest) {
    const auto map = dir_ / "a.map";
    EXPECT_EQ(go({resolve_, "build", "-o", map, "/usr/bin/xz"}).status, 0);
    const auto pushed = go({resolve_, "push", map, host_ + rest});
    EXPECT_EQ(pushed.status, 0) << pushed.err;
    return map;
  }
  RunResult check(const std::string& rest) { return go({check_, "oci:" + host_ + rest}); }
  void expect_failure(const RunResult& done, const std::string& words) {
    EXPECT_EQ(done.status, 3) << done.out;
    EXPECT_EQ(done.out, "");
    EXPECT_THAT(done.err, ::testing::HasSubstr(words));
    EXPECT_LE(std::count(done.err.begin(), done.err.end(), '\n'), 2) << done.err;
  }

  TestDir dir_;
  std::string gen_, check_, resolve_, host_, cache_ = "cache";
  int port_ = 0;
  std::optional<Child> server_;
};

}  // namespace heddle::test
