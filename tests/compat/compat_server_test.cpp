// SPDX-License-Identifier: MIT
//
// compat-server as a process, with clients generated from the service definitions: concurrent,
// hostile and idle ones too.

#include <atomic>
#include <mutex>

#include <compat_v2.grpc.pb.h>
#include "base/sandbox/sanitized.hpp"
#include "tests/compat/compat_server.hpp"

namespace heddle::test {
namespace {

namespace v2 = ::heddle::compat::v2;

TEST_F(CompatServer, answers_clients_of_protocol_v1) {
  start();
  EXPECT_TRUE(is_compatible(good_));
  EXPECT_FALSE(is_compatible(bad_));
  v1::Response response;
  const auto stub = v1::CompatibilityService::NewStub(channel());
  ASSERT_TRUE(ask(*stub, bad_, response).ok());
  EXPECT_EQ(response.payload(), "incompatible\nbad: liblost.so.1: library not found");
  ASSERT_TRUE(ask(*stub, "{}", response).ok());
  EXPECT_EQ(response.status(), v1::Response::ERROR);
  EXPECT_FALSE(response.compatible());
  EXPECT_EQ(end(), 0);
}

TEST_F(CompatServer, answers_batches_and_streams_in_order) {
  start();
  const auto stub = v2::Compat::NewStub(channel());
  const auto artifact = [&](int i) { return i % 3 == 0 ? bad_ : i % 3 == 1 ? good_ : "nonsense"; };
  const auto right = [](const v2::CheckResponse& response, int i) {
    EXPECT_EQ(response.id(), std::to_string(i));
    EXPECT_EQ(response.verdict(), i % 3 == 0   ? v2::INCOMPATIBLE
                                  : i % 3 == 1 ? v2::COMPATIBLE
                                               : v2::VERDICT_UNSPECIFIED);
    EXPECT_EQ(response.error().empty(), i % 3 != 2);
  };
  v2::CheckBatchRequest batch;
  for (int i = 0; i < 30; ++i) {
    auto& one = *batch.add_requests();
    one.set_id(std::to_string(i));
    one.set_artifact(artifact(i));
  }
  v2::CheckBatchResponse answers;
  grpc::ClientContext context;
  show_token(context);
  ASSERT_TRUE(stub->CheckBatch(&context, batch, &answers).ok());
  ASSERT_EQ(answers.responses_size(), 30);
  for (int i = 0; i < 30; ++i) right(answers.responses(i), i);
  EXPECT_EQ(answers.responses(0).reasons(0).kind(), "library_missing");
  EXPECT_EQ(answers.responses(0).reasons(0).subject(), "liblost.so.1");
  grpc::ClientContext other;
  show_token(other);
  const auto stream = stub->CheckStream(&other);
  for (const auto& request : batch.requests()) ASSERT_TRUE(stream->Write(request));
  stream->WritesDone();
  v2::CheckResponse response;
  int at = 0;
  while (stream->Read(&response)) right(response, at++);
  EXPECT_EQ(at, 30);
  EXPECT_TRUE(stream->Finish().ok());
}

/// The server notices changes of the libraries within two seconds.
class CompatServerChanges : public CompatServer {
 protected:
  void expect(const std::string& artifact, bool compatible) {
    EXPECT_TRUE(
        wait_until(milliseconds(2000), [&] { return is_compatible(artifact) == compatible; }));
  }
  static void move(const std::string& from, const std::string& to) {
    ASSERT_EQ(::rename(from.c_str(), to.c_str()), 0) << from;
  }
  const std::string lib_ = root_ + "/usr/lib", far_ = lib_ + "/libfar.so.1";
};

TEST_F(CompatServerChanges, are_noticed_when_a_library_goes_returns_or_changes) {
  start();
  ASSERT_TRUE(is_compatible(good_));
  move(far_, far_ + ".away");
  expect(good_, false);
  move(far_ + ".away", far_);
  expect(good_, true);
  make_far("int other() { return 1; }");
  expect(good_, false);
  make_far("int far() { return 2; }");
  expect(good_, true);
}

TEST_F(CompatServerChanges, are_noticed_in_new_directories_and_behind_links) {
  start();
  expect(good_, true);
  // A directory that is made after the start. This CPU's libraries come first.
  build_library({.output = lib_ + "/glibc-hwcaps/x86-64-v2/libfar.so.1",
                 .source = "int other() { return 1; }",
                 .flags = {"-Wl,-soname,libfar.so.1"}});
  expect(good_, false);
  run_checked({"rm", "-r", lib_ + "/glibc-hwcaps"});
  expect(good_, true);
  // Another directory takes the old one's place.
  move(lib_, lib_ + ".new");
  v1::Response response;
  const auto stub = v1::CompatibilityService::NewStub(channel());
  EXPECT_TRUE(wait_until(milliseconds(2000), [&] {
    return ask(*stub, good_, response).ok() && !response.compatible();
  }));
  run_checked({"cp", "-a", lib_ + ".new", lib_});
  expect(good_, true);
  // The link's target is outside all search directories.
  const auto opt = root_ + "/opt/far";
  run_checked({"mkdir", "-p", opt});
  move(far_, opt + "/libfar.so.1");
  ASSERT_EQ(::symlink("../../opt/far/libfar.so.1", far_.c_str()), 0);
  expect(good_, true);
  move(opt + "/libfar.so.1", opt + "/x");
  expect(good_, false);
  move(opt + "/x", opt + "/libfar.so.1");
  expect(good_, true);
}

TEST_F(CompatServerChanges, are_noticed_in_a_directory_that_only_a_runpath_names) {
  const auto own = build_library({.output = root_ + "/opt/app/libown.so.1",
                                  .source = "int own() { return 1; }",
                                  .flags = {"-Wl,-soname,libown.so.1"}});
  build_program({.output = root_ + "/usr/bin/mine",
                 .source = "int own(); int main() { return own(); }",
                 .flags = {own, "-Wl,-rpath,/opt/app"}});
  const auto mine = artifact("mine");
  start({"--library-dir", "/opt/app"});
  ASSERT_TRUE(is_compatible(mine));
  move(own, own + ".away");
  expect(mine, false);
  move(own + ".away", own);
  expect(mine, true);
}

TEST_F(CompatServer, requires_a_token_for_reflection_but_not_for_health) {
  start();
  // An empty request; status SERVING (1) in field 1.
  EXPECT_EQ(call_raw("/grpc.health.v1.Health/Check", ""), "\x08\x01");
  // list_services, field 7.
  for (const std::string version : {"v1", "v1alpha"}) {
    const auto reflection =
        "/grpc.reflection." + version + ".ServerReflection/ServerReflectionInfo";
    EXPECT_EQ(call_raw(reflection, "\x3a\x01*"), "UNAUTHENTICATED");
    const auto services = call_raw(reflection, "\x3a\x01*", "Bearer 0123456789abcdef");
    EXPECT_THAT(services, HasSubstr("convergedcomputing.org.grpc.v1.CompatibilityService"));
    EXPECT_THAT(services, HasSubstr("heddle.compat.v2.Compat"));
    // file_containing_symbol, field 4.
    const std::string symbol = "heddle.compat.v2.Compat";
    EXPECT_THAT(
        call_raw(reflection, "\x22" + std::string(1, static_cast<char>(symbol.size())) + symbol,
                 "Bearer 0123456789abcdef"),
        HasSubstr("compat_v2.proto"));
  }
}

TEST_F(CompatServer, requires_tls_and_a_token_beyond_this_node) {
  for (const char* listen : {"0.0.0.0:0", "127.0.0.1.example:0"})
    EXPECT_EQ(
        run({program_, "--listen", listen, "--rootfs", root_, "--index", dir_ / "index"}).status,
        3);

  make_certificate("127.0.0.1", dir_ / "key", dir_ / "cert");
  // Files that hold no certificate must not turn TLS off.
  const auto empty = write_text_file(dir_ / "empty", "");
  for (const auto& [cert, key] : {std::pair(empty, empty),
                                  {empty, dir_ / "key"},
                                  {dir_ / "cert", empty},
                                  {dir_ / "key", dir_ / "cert"}}) {
    const auto done =
        run({program_, "--listen", "127.0.0.1:0", "--rootfs", root_, "--index", dir_ / "index",
             "--tls-cert", cert, "--tls-key", key, "--token-file", token_});
    EXPECT_EQ(done.status, 3) << done.err;
    EXPECT_THAT(done.err, HasSubstr("holds no "));
  }
  const auto wrong = write_text_file(dir_ / "wrong", "0123456789abcdeX\n", 0600);
  start({"--tls-cert", dir_ / "cert", "--tls-key", dir_ / "key", "--max-checks", "2"}, "0.0.0.0:0");
  const auto file = write_text_file(dir_ / "good.json", good_);
  const auto server = "localhost:" + port();
  const auto check = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {check_, "--server", server, file});
    return run(more);
  };
  const auto right = check({"--ca", dir_ / "cert", "--token-file", token_});
  EXPECT_EQ(right.status, 0) << right.err;
  EXPECT_EQ(right.out, "compatible\n");
  for (const auto& more :
       std::vector<std::vector<std::string>>{{},
                                             {"--token-file", token_},
                                             {"--ca", dir_ / "cert"},
                                             {"--ca", dir_ / "cert", "--token-file", wrong}}) {
    const auto done = check(more);
    EXPECT_EQ(done.status, 3) << to_shell(more);
    EXPECT_EQ(done.out, "");
  }
  // One address gets at most half of the calls.
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = value_or_throw(read_file(dir_ / "cert"));
  const auto stub = v2::Compat::NewStub(grpc::CreateChannel(server, grpc::SslCredentials(ssl)));
  grpc::ClientContext first, second;
  show_token(first);
  show_token(second);
  v2::CheckRequest request;
  v2::CheckResponse response;
  const auto stream = stub->CheckStream(&first);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(stub->Check(&second, request, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(CompatServer, answers_compat_check_for_one_server_or_many_nodes) {
  start();
  const auto file = write_text_file(dir_ / "bad.json", bad_);
  const auto check = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {check_, "--token-file", token_});
    return run(words);
  };
  auto done = check({"--server", address_, file});
  EXPECT_EQ(done.status, 1) << done.err;
  EXPECT_EQ(done.out, "incompatible\nbad: liblost.so.1: library not found\n");
  const auto good = write_text_file(dir_ / "good.json", good_);
  EXPECT_EQ(check({"--server", address_, good}).status, 0);
  done = check({"--nodes", "localhost,127.0.0.1,127.0.0.1:1", "--server-port", port(), good});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out,
            "localhost:" + port() + "\tcompatible\n127.0.0.1:" + port() + "\tcompatible\n");
  EXPECT_THAT(done.err, HasSubstr("127.0.0.1:1: "));
  // An IPv6 address has colons; only one in brackets may have a port.
  done = check({"--nodes", "::1,[::1],[::1]:2", "--server-port", "1", file});
  EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 3);
  EXPECT_THAT(done.err, HasSubstr(": [::1]:1: "));
  EXPECT_THAT(done.err, HasSubstr(": [::1]:2: "));
  EXPECT_EQ(check({"--nodes", "localhost", "--server-port", port(), file}).status, 1);
}

TEST_F(CompatServer, missing_server_is_reported_within_two_seconds) {
  const auto file = write_text_file(dir_ / "good.json", good_);
  // One port refuses; the other's queue is full, so the connection hangs.
  const auto deaf = bind_loopback();
  ASSERT_EQ(::listen(deaf.fd.get(), 0), 0);
  for (const auto& server : {std::string("127.0.0.1:1"), "127.0.0.1:" + std::to_string(deaf.port),
                             "unix:" + dir_ / "nobody"}) {
    const auto start = std::chrono::steady_clock::now();
    const auto done = run({check_, "--server", server, file});
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2)) << server;
    EXPECT_EQ(done.status, 3) << server;
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
    EXPECT_THAT(done.err, HasSubstr(server));
  }
}

TEST_F(CompatServer, address_token_or_socket_that_cannot_be_used_is_refused) {
  const auto serve = [&](const std::string& listen, const std::string& token) {
    return run({program_, "--listen", listen, "--rootfs", root_, "--index", dir_ / "index",
                "--token-file", token});
  };
  for (const std::string listen :
       {"127.0.0.1", "foo", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x"})
    EXPECT_EQ(serve(listen, token_).status, 2) << listen;
  EXPECT_EQ(serve("unix:/" + std::string(120, 'a'), token_).status, 2);
  for (const char* metrics :
       {"127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "0.0.0.0:9090", "unix:/tmp/m"})
    EXPECT_EQ(run({program_, "--metrics", metrics}).status, 2) << metrics;
  // What gRPC cannot send ends a client by abort().
  const auto file = write_text_file(dir_ / "good.json", good_);
  // Started by root, the server runs as the user nobody.
  fs::create_directory(dir_ / "sockets");
  ASSERT_EQ(::chmod((dir_ / "sockets").c_str(), 01777), 0);
  start({}, "unix:" + dir_ / "sockets/one");
  for (const std::string& text :
       {std::string("0123456789abcdef\n0123456789abcdef\n"), std::string("0123456789abcde\xc3\xa9"),
        std::string("0123456789 abcdef"), std::string("0123456789abcdef\0x", 18)}) {
    const auto odd = write_text_file(dir_ / "odd", text, 0600);
    EXPECT_EQ(serve("127.0.0.1:0", odd).status, 3) << text;
    EXPECT_EQ(run({check_, "--server", address_, "--token-file", odd, file}).status, 3) << text;
  }
  // A second server does not take the first one's socket.
  EXPECT_EQ(serve(address_, token_).status, 3);
  EXPECT_EQ(run({check_, "--server", address_, "--token-file", token_, file}).out, "compatible\n");
}

TEST_F(CompatServer, counts_checks_in_its_metrics) {
  const int metrics_port = free_port();
  start({"--metrics", "127.0.0.1:" + std::to_string(metrics_port)});
  for (int i = 0; i < 3; ++i) is_compatible(bad_);
  const Fd fd = connect_to(metrics_port);
  ASSERT_TRUE(fd.valid());
  static_cast<void>(::send(fd.get(), "GET /metrics HTTP/1.0\r\n\r\n", 25, MSG_NOSIGNAL));
  const auto page = read_all(fd.get(), "metrics").value_or("");
  EXPECT_THAT(page, HasSubstr("200 OK"));
  EXPECT_THAT(page, HasSubstr("\nheddle_compat_checks_total 3\n"));
  EXPECT_THAT(page, HasSubstr("\nheddle_compat_checks_kept_total 2\n"));
  EXPECT_THAT(page, HasSubstr("\nheddle_compat_incompatible_total 3\n"));
}

TEST_F(CompatServer, answers_10000_checks_from_32_connections_correctly) {
  start();
  ASSERT_TRUE(is_compatible(good_));
  const auto before = resident_kib();
  std::atomic<int> wrong{0}, failed{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 32; ++c)
    clients.emplace_back([&, c] {
      const auto stub = v1::CompatibilityService::NewStub(channel());
      for (int i = 0; i < 313; ++i) {
        v1::Response response;
        const bool good = (c + i) % 2 == 0;
        // Spaces change the bytes, so that no cached verdict fits.
        const auto text =
            (good ? good_ : bad_) + std::string(static_cast<std::size_t>(i % 50), ' ');
        failed += !ask(*stub, text, response).ok();
        wrong += response.compatible() != good;
      }
    });
  for (auto& client : clients) client.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(wrong, 0);
  // AddressSanitizer delays the reuse of freed memory.
  const auto after = resident_kib();
  EXPECT_TRUE(kSanitized || after < before + 64 * 1024) << after << " KiB, before: " << before;
  EXPECT_EQ(end(), 0);
}

TEST_F(CompatServer, ends_calls_in_order_at_sigterm) {
  for (int round = 0; round < 3; ++round) {
    start();
    ASSERT_TRUE(is_compatible(good_));
    std::map<grpc::StatusCode, int> ended;
    std::mutex mutex;
    std::atomic<int> answered{0}, wrong{0};
    std::vector<std::thread> clients;
    for (int c = 0; c < 32; ++c)
      clients.emplace_back([&, c] {
        const auto stub = v1::CompatibilityService::NewStub(channel());
        for (int i = 0;; ++i) {
          grpc::ClientContext context;
          show_token(context);
          v1::CompatRequest request;
          // Spaces make other bytes of the same artifact: a verdict that is not cached yet.
          request.set_payload(good_ + std::string(static_cast<std::size_t>(32 * i + c), ' '));
          v1::Response response;
          const auto status = stub->CheckCompatibility(&context, request, &response);
          answered += status.ok();
          wrong += status.ok() && !response.compatible();
          if (status.ok()) continue;
          const std::lock_guard lock(mutex);
          ++ended[status.error_code()];
          return;
        }
      });
    EXPECT_TRUE(wait_until(milliseconds(10'000), [&] { return answered > 200; }));
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(end(), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
    for (auto& client : clients) client.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(ended, (std::map<grpc::StatusCode, int>{{grpc::StatusCode::UNAVAILABLE, 32}}));
  }
}

TEST_F(CompatServer, ends_a_stream_at_sigterm_with_unavailable) {
  start();
  const auto stub = v2::Compat::NewStub(channel());
  grpc::ClientContext context;
  show_token(context);
  const auto stream = stub->CheckStream(&context);
  v2::CheckRequest request;
  request.set_artifact(good_);
  v2::CheckResponse response;
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  ::kill(server_->pid(), SIGTERM);
  ASSERT_TRUE(wait_until(milliseconds(5'000), [&] {
    return read_file(dir_ / "log").value_or("").find("ending") != std::string::npos;
  }));
  ASSERT_TRUE(stream->Write(request));
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(end(), 0);
}

TEST_F(CompatServer, survives_garbage_oversize_and_half_open_connections) {
  start({"--max-request", "65536"});
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connect_raw());
  for (int i = 0; i < 20; ++i) {
    const auto fd = connect_raw();
    const std::string garbage(1000, static_cast<char>(i * 13));
    static_cast<void>(::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL));
  }
  for (int i = 0; i < 20; ++i) {
    silent.push_back(connect_raw());
    static_cast<void>(
        ::send(silent.back().get(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24, MSG_NOSIGNAL));
  }
  v1::Response response;
  const auto stub = v1::CompatibilityService::NewStub(channel());
  const auto status = ask(*stub, std::string(100'000, ' '), response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_TRUE(is_compatible(good_));
  EXPECT_FALSE(is_compatible(bad_));
}

TEST_F(CompatServer, closes_idle_streams_so_that_others_are_served) {
  // The limit is long enough for all four streams to begin.
  start({"--max-checks", "4", "--stream-idle", kSanitized ? "6" : "1"});
  const auto peer = channel();
  const auto stub = v2::Compat::NewStub(peer);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v2::CheckRequest, v2::CheckResponse>>>
      streams;
  v2::CheckRequest request;
  v2::CheckResponse response;
  request.set_artifact(good_);
  for (int i = 0; i < 4; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    show_token(*contexts.back());
    streams.push_back(stub->CheckStream(contexts.back().get()));
    ASSERT_TRUE(streams.back()->Write(request)) << streams.back()->Finish().error_message();
    ASSERT_TRUE(streams.back()->Read(&response));
  }
  grpc::ClientContext fifth;
  show_token(fifth);
  EXPECT_EQ(stub->Check(&fifth, request, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(wait_until(milliseconds(20000), [&] {
    grpc::ClientContext context;
    show_token(context);
    return stub->Check(&context, request, &response).ok();
  }));
  for (auto& stream : streams) {
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
}

}  // namespace
}  // namespace heddle::test
