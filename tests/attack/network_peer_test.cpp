// SPDX-License-Identifier: MIT
//
// Attacks by network peers: clients of compat-server, and registries that oci-client connects to.
#include <sys/mount.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include <compat_v2.grpc.pb.h>
#include "base/sandbox/sanitized.hpp"
#include "tests/compat/compat_server.hpp"
#include "tests/compat/registry.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

namespace v2 = ::heddle::compat::v2;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostKib = 512 * 1024;

class HostileClient : public CompatServer {
 protected:
  /// The artifact of a compatible program, to be modified.
  Json good() { return Json::parse(good_); }
  static Json& program(Json& artifact) { return artifact["heddle"]["programs"][0]; }
  static void need(Json& artifact, const std::string& name) {
    program(artifact)["needed"].push_back({{"kind", "needed"}, {"name", name}});
  }
  /// The answer's text, or the error's.
  std::string answer(const std::string& artifact) {
    v1::Response response;
    const auto stub = v1::CompatibilityService::NewStub(channel());
    const auto status = ask(*stub, artifact, response);
    return status.ok() ? response.payload() : status.error_message();
  }
  /// The server and its judges.
  Strings processes() {
    const auto server = std::to_string(server_->pid());
    Strings out = {server};
    for (const auto& entry : std::filesystem::directory_iterator("/proc"))
      if (line_of(entry.path().filename().string(), "PPid") == server)
        out.push_back(entry.path().filename().string());
    return out;
  }
  /// Asks for a compatible artifact, never the same bytes twice in a row, while `more` allows it;
  /// at most one of 10 answers may take longer than `limit`.
  void expect_prompt_answers(milliseconds limit, const std::function<bool(int)>& more) {
    int asked = 0, late = 0;
    for (; more(asked); ++asked) {
      const auto begin = Clock::now();
      EXPECT_TRUE(
          is_compatible(good_ + std::string(static_cast<std::size_t>(asked % 40 + 1), ' ')));
      late += Clock::now() - begin > limit;
    }
    EXPECT_LT(late * 10, asked) << late << " of " << asked;
  }
  void expect_little_memory() {
    if (kSanitized) return;
    for (const auto& pid : processes()) {
      const auto peak = line_of(pid, "VmHWM");
      EXPECT_LT(peak.empty() ? 0 : std::stoul(peak), kMostKib) << line_of(pid, "Name");
    }
  }
};

TEST_F(HostileClient, long_name_needed_500_times_costs_no_memory) {
  start();
  auto artifact = good();
  program(artifact)["name"] = std::string(2'000'000, 'n');
  for (int i = 0; i < 500; ++i) need(artifact, "libnone" + std::to_string(i) + ".so.1");
  EXPECT_THAT(answer(artifact.dump()), HasSubstr("`name` is too long"));
  expect_little_memory();
  // The longest name that is allowed: the answer is cut.
  program(artifact)["name"] = std::string(4096, 'n');
  for (int i = 0; i < 1500; ++i)
    need(artifact, "libnone" + std::to_string(i) + std::string(200, 'x') + ".so.1");
  const auto many = answer(artifact.dump());
  EXPECT_LT(many.size(), std::size_t{5} << 20);
  EXPECT_THAT(many.substr(many.rfind('\n')), HasSubstr("more reasons"));
  expect_little_memory();
  EXPECT_TRUE(is_compatible(good_));
}

TEST_F(HostileClient, sixteen_large_requests_cost_little_memory) {
  start();
  const auto size = (std::size_t{8} << 20) - 100;
  Strings shapes;
  const auto filled = [&](const std::string& head, const std::string& piece) {
    std::string out = head;
    while (out.size() + piece.size() < size) out += piece;
    return out;
  };
  shapes.push_back(filled("[", "[],"));
  shapes.push_back(filled("[", "{},"));
  shapes.push_back(filled("[", "0,"));
  shapes.push_back(filled("{", "\"\":{},"));
  shapes.push_back(filled("", "["));
  shapes.push_back(filled("[", "\"\\u0000\\u0000\\u0000\","));
  auto symbols = good();
  auto& names = program(symbols)["symbols"]["required"];
  names = Json::array({{{"version", ""}, {"names", Json::array()}}});
  while (names[0]["names"].size() < 700'000)
    names[0]["names"].push_back("s" + std::to_string(names[0]["names"].size()));
  shapes.push_back(symbols.dump());
  ASSERT_LT(shapes.back().size(), std::size_t{8} << 20);
  for (const auto& shape : shapes) answer(shape);
  expect_little_memory();
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < 16; ++i)
    clients.emplace_back([&, i] { answer(shapes[i % shapes.size()] + std::string(i, ' ')); });
  for (auto& client : clients) client.join();
  expect_little_memory();
  EXPECT_TRUE(is_compatible(good_));
}

TEST_F(HostileClient, thousand_requests_do_not_delay_others) {
  start();
  ASSERT_TRUE(is_compatible(good_));
  auto deep = good(), wide = good(), wild = good();
  program(deep)["rpath"] = std::string(60'000, ':');
  std::string path;
  while (path.size() < 60'000) path += "/usr/lib/x" + std::to_string(path.size()) + ":";
  program(wide)["rpath"] = path;
  for (int i = 0; i < 400; ++i) need(wide, "libnone" + std::to_string(i) + ".so.1");
  program(wild)["interpreter"] = "/dev/zero";
  const Strings hostile = {deep.dump(),
                           wide.dump(),
                           wild.dump(),
                           "[[[[[[",
                           "{}",
                           good_.substr(0, good_.size() / 2),
                           std::string(1 << 20, '[')};
  std::atomic<int> sent{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c)
    clients.emplace_back([&] {
      const auto stub = v1::CompatibilityService::NewStub(channel());
      for (int i = sent++; i < 1000; i = sent++) {
        v1::Response response;
        const auto n = static_cast<std::size_t>(i);
        // Never the same bytes twice, so that no verdict is cached.
        static_cast<void>(ask(*stub, hostile[n % hostile.size()] + std::string(n, ' '), response));
      }
    });
  int asked = 0, late = 0;
  const auto stub = v1::CompatibilityService::NewStub(channel());
  while (sent < 1000 || asked < 200) {
    v1::Response response;
    const auto begin = Clock::now();
    ASSERT_TRUE(ask(*stub, good_, response).ok());
    EXPECT_TRUE(response.compatible());
    ++asked;
    late += Clock::now() - begin > milliseconds(100);
    std::this_thread::yield();
  }
  for (auto& client : clients) client.join();
  // 5 %, since other processes may load the machine.
  EXPECT_LT(late * 20, asked) << late << " of " << asked;
  const auto begin = Clock::now();
  EXPECT_TRUE(is_compatible(good_));
  EXPECT_TRUE(is_compatible(good_ + " "));
  EXPECT_LT(Clock::now() - begin, milliseconds(2000));
  expect_little_memory();
}

TEST_F(HostileClient, client_that_reads_no_answer_blocks_nobody) {
  start();
  auto artifact = good();
  for (int i = 0; i < 1000; ++i) need(artifact, "libnone" + std::to_string(i) + ".so.1");
  v2::CheckRequest request;
  request.set_artifact(artifact.dump());  // some 200 KB, and so are the answers
  constexpr std::size_t kClients = 8;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::atomic<int> written{0};
  std::vector<std::thread> clients;
  for (std::size_t c = 0; c < kClients; ++c) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    show_token(*contexts.back());
    clients.emplace_back([&, context = contexts.back().get()] {
      const auto stub = v2::Compat::NewStub(channel());
      const auto stream = stub->CheckStream(context);
      // Until the server stops reading or ends the stream.
      for (int i = 0; i < 1000 && stream->Write(request); ++i) ++written;
      static_cast<void>(stream->Finish());
    });
  }
  EXPECT_TRUE(wait_until(milliseconds(20'000), [&] { return written > 2 * int{kClients}; }));
  const auto until = Clock::now() + 3s;
  expect_prompt_answers(2s, [&](int asked) { return Clock::now() < until || asked < 20; });
  expect_little_memory();
  for (const auto& context : contexts) context->TryCancel();
  for (auto& client : clients) client.join();
  EXPECT_TRUE(is_compatible(good_));
  EXPECT_EQ(end(), 0);
}

TEST_F(HostileClient, answers_do_not_reveal_which_files_exist) {
  start();
  // All of these exist, but the server must not look at them.
  run_checked({"mkdir", "-p", root_ + "/opt/other/lib", root_ + "/etc/there"});
  build_library({.output = root_ + "/opt/other/lib/libsecret.so.1",
                 .source = "int secret() { return 1; }",
                 .flags = {"-Wl,-soname,libsecret.so.1"}});
  write_text_file(root_ + "/etc/shadow", "x");
  const auto answer_with = [&](const std::string& key, const std::string& path) {
    auto artifact = good();
    auto& one = program(artifact);
    if (key == "needed") need(artifact, path);
    if (key == "rpath" || key == "runpath") {
      one[key] = path;
      need(artifact, "libsecret.so.1");
    }
    if (key == "interpreter") one[key] = path;
    if (key == "path") {
      one["path"] = path;
      one["runpath"] = "$ORIGIN/../lib";
      need(artifact, "libsecret.so.1");
    }
    if (key == "dlopened")
      one["libraries"].push_back(
          {{"soname", "libsecret.so.1"}, {"resolved", true}, {"path", path}, {"dlopened", true}});
    auto text = answer(artifact.dump());
    for (auto at = text.find(path); at != text.npos; at = text.find(path, at + 1))
      text.replace(at, path.size(), "PATH");
    // The names of the directories above too.
    for (const std::string word : {"absent", "other", "there"})
      for (auto at = text.find(word); at != text.npos; at = text.find(word))
        text.replace(at, word.size(), "?");
    return text;
  };
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"/opt/other/lib/libsecret.so.1", "/opt/other/lib/libabsent.so.1"},
      {"/etc/shadow", "/etc/absent"},
      {"/etc/there", "/etc/absent"},
      {"/usr/lib/../../etc/shadow", "/usr/lib/../../etc/absent"},
      {"/usr/lib/../../opt/other/lib/libsecret.so.1",
       "/usr/lib/../../opt/other/lib/libabsent.so.1"},
      {"/opt/other/lib", "/opt/absent/lib"}};
  for (const auto& [there, absent] : pairs)
    for (const char* key : {"needed", "rpath", "runpath", "interpreter", "dlopened"})
      EXPECT_EQ(answer_with(key, there), answer_with(key, absent)) << key << " " << there;
  // $ORIGIN of the program's own path.
  EXPECT_EQ(answer_with("path", "/opt/other/bin/app"), answer_with("path", "/opt/absent/bin/app"));
  // The server looks at directories that the administrator allows.
  end();
  start({"--library-dir", "/opt/other"});
  auto artifact = good();
  program(artifact)["runpath"] = "/opt/other/lib";
  need(artifact, "libsecret.so.1");
  EXPECT_TRUE(is_compatible(artifact.dump()));
}

TEST_F(HostileClient, program_with_a_librarys_path_changes_no_other_verdict) {
  start();
  auto liar = Json::parse(bad_);
  program(liar)["path"] = "/usr/lib/liblost.so.1";
  auto far = good();
  program(far)["path"] = "/usr/lib/libfar.so.1";
  program(far)["symbols"]["defined"] = Json::array({{{"version", ""}, {"names", {"nothing"}}}});
  answer(far.dump());
  answer(liar.dump());
  EXPECT_TRUE(is_compatible(good_));
  EXPECT_FALSE(is_compatible(bad_));
}

TEST_F(HostileClient, server_answers_only_health_without_the_token) {
  start();
  const auto peer = channel();
  for (const std::string token : {"", "Bearer ", "Bearer 0123456789abcdeX", "0123456789abcdef"}) {
    const auto context = [&] {
      auto out = std::make_unique<grpc::ClientContext>();
      if (!token.empty()) out->AddMetadata("authorization", token);
      out->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
      return out;
    };
    v1::CompatRequest one;
    v1::Response one_said;
    auto c = context();
    EXPECT_EQ(v1::CompatibilityService::NewStub(peer)
                  ->CheckCompatibility(c.get(), one, &one_said)
                  .error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
    v2::CheckRequest two;
    v2::CheckResponse two_said;
    c = context();
    EXPECT_EQ(v2::Compat::NewStub(peer)->Check(c.get(), two, &two_said).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
    c = context();
    const auto stream = v2::Compat::NewStub(peer)->CheckStream(c.get());
    stream->Write(two);
    EXPECT_FALSE(stream->Read(&two_said));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
    for (const std::string version : {"v1", "v1alpha"})
      EXPECT_EQ(call_raw("/grpc.reflection." + version + ".ServerReflection/ServerReflectionInfo",
                         "", token),
                "UNAUTHENTICATED");
  }
}

TEST_F(HostileClient, token_is_made_once_and_private_to_the_servers_user) {
  const auto directory = dir_ / "run";
  run_checked({"mkdir", directory});
  ::setenv("RUNTIME_DIRECTORY", directory.c_str(), 1);
  const Strings server{program_, "--listen", "127.0.0.1:0", "--rootfs",
                       root_,    "--index",  dir_ / "index"};
  start_with(server);
  struct stat st {};
  ASSERT_EQ(::stat((directory + "/token").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600U);
  const auto token = read_file(directory + "/token").value_or("");
  EXPECT_GE(token.size(), 64U);
  const auto file = write_text_file(dir_ / "good.json", good_);
  // A client that can read the token's file needs no option.
  EXPECT_EQ(run({check_, "--server", address_, file}).status, 0);
  EXPECT_EQ(run({check_, "--server", address_, file}, {.env = {"RUNTIME_DIRECTORY=/none"}}).status,
            3);
  end();
  start_with(server);
  EXPECT_EQ(read_file(directory + "/token").value_or(""), token);
  end();
  // The server refuses a token that others can read.
  ::chmod((directory + "/token").c_str(), 0644);
  const auto refused = run(server);
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("is readable by others"));
  ::unsetenv("RUNTIME_DIRECTORY");
}

TEST_F(HostileClient, roots_server_and_its_judges_have_no_rights) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root");
  start();
  answer(good_);
  const auto all = processes();
  EXPECT_GE(all.size(), 4U);  // itself, the watcher, two judges
  for (const auto& pid : all) {
    for (const char* set : {"CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"})
      EXPECT_EQ(line_of(pid, set), "0000000000000000") << set << " of " << line_of(pid, "Name");
    EXPECT_EQ(line_of(pid, "NoNewPrivs"), "1");
    EXPECT_THAT(line_of(pid, "Uid"), Not(HasSubstr("0\t0")));
    EXPECT_EQ(line_of(pid, "Groups"), " ");
  }
}

TEST_F(HostileClient, hanging_directory_blocks_only_its_own_requests) {
  const Fd device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  const auto hung = root_ + "/opt/hung";
  run_checked({"mkdir", "-p", hung});
  const auto options =
      "fd=" + std::to_string(device.get()) + ",rootmode=40000,user_id=0,group_id=0,allow_other";
  // No process serves the device, so every access hangs.
  if (!device || ::mount("hung", hung.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0)
    HEDDLE_SKIP("needs the right to mount FUSE");
  struct Unmount {
    std::string path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } const unmount{hung};
  start({"--library-dir", "/opt/hung", "--timeout", "2"});
  std::vector<std::thread> victims;
  std::atomic<int> given_up{0};
  for (int i = 0; i < 8; ++i)
    victims.emplace_back([&, i] {
      auto artifact = good();
      program(artifact)["runpath"] = "/opt/hung";
      v1::Response response;
      const auto stub = v1::CompatibilityService::NewStub(channel());
      const auto status =
          ask(*stub, artifact.dump() + std::string(static_cast<std::size_t>(i), ' '), response);
      given_up += status.ok() && (response.status() == v1::Response::ERROR ||
                                  response.payload().find("does not answer") != std::string::npos);
    });
  // Eight connections make all judges hang once; then the directory is known.
  ASSERT_TRUE(wait_until(milliseconds(20'000), [&] { return given_up > 0; }));
  const auto until = Clock::now() + 3s;
  expect_prompt_answers(1s, [&](int asked) { return Clock::now() < until || asked < 50; });
  for (auto& victim : victims) victim.join();
  EXPECT_EQ(given_up, 8);
  EXPECT_EQ(end(), 0);
}

TEST_F(HostileClient, slow_checks_over_many_connections_leave_a_judge_to_others) {
  start({"--timeout", "10"});
  // A small request of half a minute's work: each library is searched in each directory.
  auto slow = good();
  std::string path;
  while (path.size() < 60'000) path += "/usr/lib/x" + std::to_string(path.size()) + ":";
  program(slow)["rpath"] = path;
  for (int i = 0; i < 2000; ++i)
    program(slow)["libraries"].push_back({{"soname", "l" + std::to_string(i)},
                                          {"resolved", false},
                                          {"reason", ""},
                                          {"dlopened", true}});
  const auto text = slow.dump();
  ASSERT_LT(text.size(), 256U << 10) << "it would count as large from the start";
  constexpr int kConnections = 8;
  std::atomic<int> under_way{kConnections};
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < kConnections; ++i)
    clients.emplace_back([&, i] {
      answer(text + std::string(i, ' '));
      --under_way;
    });
  std::vector<milliseconds> waits;
  for (std::size_t i = 1; i <= 20 && under_way == kConnections; ++i) {
    const auto begin = Clock::now();
    EXPECT_TRUE(is_compatible(good_ + std::string(i, ' ')));  // not judged before
    waits.push_back(std::chrono::duration_cast<milliseconds>(Clock::now() - begin));
  }
  for (auto& client : clients) client.join();
  ASSERT_GE(waits.size(), 10U);
  std::sort(waits.begin(), waits.end());
  EXPECT_LT(waits[waits.size() / 2], milliseconds(1000));
  // Each slow one has a turn of half a second first, and its judge starts again.
  EXPECT_LT(waits.back(), std::chrono::seconds(10));
}

class HostileRegistry : public Registry {
 protected:
  /// A second server, which logs requests and asks for credentials; with TLS under a certificate
  /// that no key has signed.
  void start_storage(bool tls = false) {
    storage_port_ = free_port();
    if (tls) make_certificate("127.0.0.1", dir_ / "key", dir_ / "cert");
    const auto file = write_text_file(
        dir_ / "storage.py",
        "import http.server\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "  def log_message(self, *a): pass\n"
        "  def do_GET(self):\n"
        "    open('" +
            (dir_ / "requests") +
            "', 'a').write(self.path + ' ' + str(self.headers.get('Authorization')) + '\\n')\n"
            "    self.send_response(401)\n"
            "    self.send_header('WWW-Authenticate', 'Bearer realm=\"http://127.0.0.1:" +
            std::to_string(storage_port_) +
            "/token\"')\n"
            "    self.send_header('Content-Length', '0'); self.end_headers()\n"
            "  do_POST = do_GET\n"
            "s = http.server.ThreadingHTTPServer(('127.0.0.1', " +
            std::to_string(storage_port_) + "), H)\n" + (tls ? tls_context() : "") +
            (tls ? "s.socket = c.wrap_socket(s.socket, server_side=True)\n" : "") +
            "s.serve_forever()\n");
    storage_.emplace(value_or_throw(spawn("/usr/bin/python3", {"python3", file})));
    ASSERT_TRUE(
        wait_until(milliseconds(20'000), [&] { return connect_to(storage_port_).valid(); }));
  }
  void TearDown() override {
    if (storage_) ::kill(storage_->pid(), SIGKILL);
    Registry::TearDown();
  }
  std::string tls_context() {
    return "import ssl; c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\nc.load_cert_chain('" +
           (dir_ / "cert") + "', '" + (dir_ / "key") + "')\n";
  }
  /// Names the registry by an address that does not stand for this node, as an insecure one of
  /// registries.conf.
  void be_insecure() {
    host_ = "0.0.0.0:" + std::to_string(port_);
    run_checked({"mkdir", "-p", dir_ / ".config/containers"});
    write_text_file(dir_ / ".config/containers/registries.conf",
                    "[[registry]]\nlocation = '" + host_ + "'\ninsecure = true\n");
  }
  void have_password() {
    write_text_file(dir_ / "docker/config.json",
                    R"({"auths":{")" + host_ + R"(":{"auth":"dXNlcjpzZWNyZXQ="}}})");
  }
  std::string logged_requests() { return read_file(dir_ / "requests").value_or(""); }
  std::string elsewhere(const std::string& host = "127.0.0.1") {
    return "http://" + host + ":" + std::to_string(storage_port_);
  }
  RunResult pull(const Strings& env = {}, const std::string& wrap = "") {
    RunOptions options;
    options.env = {"XDG_CACHE_HOME=" + dir_ / "cache", "DOCKER_CONFIG=" + dir_ / "docker",
                   "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "HOME=" + dir_.path()};
    options.env.insert(options.env.end(), env.begin(), env.end());
    return run({"/bin/sh", "-c",
                wrap + " exec \"$0\" pull --type application/vnd.heddle.map.v1 \"$1\" >\"$2\"",
                staged_program("oci-client"), host_ + "/a:1", dir_ / "pulled"},
               options);
  }

  int storage_port_ = 0;
  std::optional<Child> storage_;
};

TEST_F(HostileRegistry, password_does_not_follow_a_redirection) {
  start_storage();
  have_password();
  for (const char* status : {"301", "302", "303", "307", "308"}) {
    start_odd(
        "    if '/manifests/' in self.path: return self.say(200, self.manifest(b'{}'))\n"
        "    self.say(" +
        std::string(status) + ", Location='" + elsewhere() + "/blob')\n");
    expect_failure(check("/a:1"), "HTTP status 401");
    stop();
    // The manifest itself, and before any challenge of the registry's own.
    start_odd("    self.say(" + std::string(status) + ", Location='" + elsewhere() +
              "/manifest')\n");
    expect_failure(check("/a:1"), "HTTP status 401");
    stop();
  }
  EXPECT_THAT(logged_requests(), HasSubstr("/blob None"));
  EXPECT_THAT(logged_requests(), HasSubstr("/manifest None"));
  EXPECT_THAT(logged_requests(), Not(HasSubstr("Basic")));
  EXPECT_THAT(logged_requests(), Not(HasSubstr("Bearer")));
  EXPECT_THAT(logged_requests(), Not(HasSubstr("/token")));
}

TEST_F(HostileRegistry, password_goes_to_no_other_site_named_by_a_challenge) {
  start_storage();
  have_password();
  for (const auto& realm : {elsewhere("localhost") + "/token", elsewhere("127.0.0.2") + "/token"}) {
    start_odd("    self.say(401, WWW_Authenticate='Bearer realm=\"" + realm + "\"')\n");
    expect_failure(check("/a:1"), "wants the password sent to");
    stop();
  }
  EXPECT_EQ(logged_requests(), "");
  // Unless the user allows it.
  start_odd("    self.say(401, WWW_Authenticate='Bearer realm=\"" + elsewhere("localhost") +
            "/token\"')\n");
  EXPECT_EQ(pull({"HEDDLE_TOKEN_HOSTS=localhost:" + std::to_string(storage_port_)}).status, 3);
  EXPECT_THAT(logged_requests(), HasSubstr("Basic dXNlcjpzZWNyZXQ="));
}

/// `insecure = true` is said of one host.
TEST_F(HostileRegistry, insecure_registry_names_a_realm_whose_certificate_is_checked) {
  start_storage(true);
  be_insecure();
  have_password();
  const auto realm = "127.0.0.1:" + std::to_string(storage_port_);
  start_odd("    self.say(401, WWW_Authenticate='Bearer realm=\"https://" + realm + "/token\"')\n");
  const auto done = pull({"HEDDLE_TOKEN_HOSTS=" + realm});
  EXPECT_EQ(done.status, 3);
  EXPECT_THAT(done.err, HasSubstr(realm + ": the registry failed"));
  EXPECT_EQ(logged_requests(), "");
}

/// A host on the way can end a connection, and then read what comes without TLS.
TEST_F(HostileRegistry, lost_connection_of_an_insecure_registry_sends_no_password_in_clear) {
  be_insecure();
  have_password();
  make_certificate("127.0.0.1", dir_ / "key", dir_ / "cert");
  const auto file = write_text_file(
      dir_ / "lossy.py",
      "import socket\n" + tls_context() + "l = socket.create_server(('127.0.0.1', " +
          std::to_string(port_) +
          "))\n"
          "answered = False\n"
          "while True:\n"
          "  s, _ = l.accept()\n"
          "  first = s.recv(1, socket.MSG_PEEK)\n"
          "  if first == b'\\x16' and not answered:\n"
          "    answered = True\n"
          "    s = c.wrap_socket(s, server_side=True)\n"
          "    s.recv(65536)\n"
          "    s.sendall(b'HTTP/1.1 401 No\\r\\nWWW-Authenticate: Basic realm=\"x\"\\r\\n'\n"
          "              b'Content-Length: 0\\r\\nConnection: close\\r\\n\\r\\n')\n"
          "  elif first not in (b'', b'\\x16'):\n"
          "    open('" +
          (dir_ / "requests") +
          "', 'ab').write(s.recv(65536))\n"
          "  s.close()\n");
  launch({"/usr/bin/python3", file});
  const auto done = pull();
  EXPECT_EQ(done.status, 3);
  EXPECT_THAT(done.err, HasSubstr(host_ + ": the registry failed"));
  EXPECT_EQ(logged_requests(), "");
}

TEST_F(HostileRegistry, long_challenges_and_deep_json_crash_nothing) {
  have_password();
  const Strings bodies = {
      "    self.say(401, WWW_Authenticate='Bearer realm=\"' + 'a' * 60000 + '\"')\n",
      "    self.say(401, WWW_Authenticate='Bearer ' + 'a=\"b\",' * 10000 + "
      "'realm=\"http://x/\"')\n",
      "    self.say(401, WWW_Authenticate='Bearer ' + ',' * 8000)\n",
      "    self.say(401, WWW_Authenticate='Bearer realm=\"\\\\')\n",
      "    self.say(401, b'[' * 1000000)\n",
      "    self.say(200, b'[' * 4000000)\n",
      "    self.say(200, b'{\"layers\":' + b'[' * 1000000 + b']' * 1000000 + b'}')\n",
      "    if '/referrers/' in self.path: return self.say(200, b'{\"manifests\":' * 300000)\n"
      "    self.say(200, b'{\"layers\":[]}')\n",
      "    self.say(200, "
      "b'{\"layers\":[{\"mediaType\":\"application/vnd.heddle.map.v1\",\"digest\":\"sha256:' + "
      "b'a' * 64 + b'\",\"size\":9223372036854775808}]}')\n",
      "    self.say(200, "
      "b'{\"layers\":[{\"mediaType\":\"application/vnd.heddle.map.v1\",\"digest\":\"sha256:' + "
      "b'a' * 64 + b'\",\"size\":-1}]}')\n",
      "    [self.send_response(200)] + [self.send_header('X%d' % i, 'y' * 1000) for i in "
      "range(250)]\n"
      "    self.end_headers()\n"};
  for (const auto& body : bodies) {
    start_odd(body);
    const auto done = pull({"HEDDLE_REGISTRY_TIMEOUT=10"});
    EXPECT_EQ(done.status, 3) << body << done.err;
    EXPECT_FALSE(done.timed_out);
    stop();
  }
}

TEST_F(HostileRegistry, deeply_nested_index_is_not_rewritten) {
  // push --attach reads the index of the fallback tag, adds a line and writes it.
  start_odd(
      "    if '/manifests/sha256-' in self.path:\n"
      "      return self.say(200, b'{\"manifests\":[],\"x\":' + b'[' * 500000 + b']' * 500000 + "
      "b'}')\n"
      "    if self.path.endswith('/manifests/image'): return self.say(200, b'{\"layers\":[]}')\n"
      "    self.say(404)\n"
      "  def do_HEAD(self): self.say(200)\n"
      "  def do_PUT(self):\n"
      "    self.rfile.read(int(self.headers['Content-Length'])); self.say(201)\n");
  const auto done =
      go({gen_, "--push", host_ + "/a:new", "--attach", host_ + "/a:image", "/usr/bin/xz"});
  EXPECT_TRUE(done.status == 0 || done.status == 3) << done.status << done.err;
  EXPECT_THAT(done.err, Not(HasSubstr("ended unexpectedly")));
}

TEST_F(HostileRegistry, trickling_registry_is_abandoned) {
  start_odd(
      "    import time\n"
      "    self.wfile.write(b'HTTP/1.1 200 OK\\r\\nContent-Length: 1000\\r\\n\\r\\n')\n"
      "    try:\n"
      "      for i in range(600): self.wfile.write(b' '); self.wfile.flush(); time.sleep(0.1)\n"
      "    except OSError: pass\n");
  const auto begin = Clock::now();
  const auto done = pull({"HEDDLE_REGISTRY_TIMEOUT=2"});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(done.status, 3);
  EXPECT_THAT(done.err, HasSubstr("cannot reach the registry"));
}

TEST_F(HostileRegistry, large_blob_takes_no_memory) {
  if (kSanitized) HEDDLE_SKIP("a sanitizer's shadow is larger than any limit");
  start_odd(
      "    global blob\n"
      "    try: blob\n"
      "    except NameError: blob = b'x' * 300000000\n"
      "    m = json.dumps({'layers': [{'mediaType': 'application/vnd.heddle.map.v1', 'digest': "
      "'sha256:' + hashlib.sha256(blob).hexdigest(), 'size': len(blob)}]}).encode()\n"
      "    self.say(200, m if '/manifests/' in self.path else blob)\n");
  // 256 MiB, less than the blob.
  const auto done = pull({}, "ulimit -v 262144;");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(std::filesystem::file_size(dir_ / "pulled"), 300'000'000U);
}

TEST_F(HostileRegistry, cache_entries_that_others_may_write_are_not_used) {
  start();
  ASSERT_EQ(go({gen_, "--push", host_ + "/app:1", "/usr/bin/xz"}).status, 0);
  const auto expect_unused = [&](const std::string& below,
                                 const std::function<void(const char*)>& spoil) {
    ASSERT_EQ(check("/app:1").status, 0);  // fills the cache
    stop();
    EXPECT_EQ(check("/app:1").out, "compatible\n");
    Strings files;
    for (const auto& file : std::filesystem::directory_iterator(dir_ / "cache/heddle/oci" + below))
      files.push_back(file.path().string());
    for (const auto& file : files) spoil(file.c_str());
    expect_failure(check("/app:1"), "cannot reach the registry");
    // Others' files are not removed either.
    for (const auto& file : files) EXPECT_EQ(::access(file.c_str(), F_OK), 0);
    start();
  };
  for (const char* below : {"/sha256", "/refs"}) {
    expect_unused(below, [](const char* file) { ::chmod(file, 0660); });
    if (::geteuid() == 0)
      expect_unused(below,
                    [](const char* file) { static_cast<void>(::chown(file, 65534, 65534)); });
  }
}

}  // namespace
}  // namespace heddle::test
