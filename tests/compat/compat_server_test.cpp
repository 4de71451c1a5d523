// SPDX-License-Identifier: MIT
//
// compat-server as a process, asked by clients made from the service definitions: also many at
// once, hostile ones, and ones that wait.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include <compat_v2.grpc.pb.h>
#include "base/sandbox/sanitized.hpp"
#include "tests/compat/compat_server.hpp"

namespace heddle::test {
namespace {

namespace v2 = ::heddle::compat::v2;
using ::testing::HasSubstr;

TEST_F(CompatServer, the_ancestors_client_gets_the_right_verdicts) {
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
  EXPECT_THAT(response.payload(), HasSubstr("no artifact"));
  EXPECT_EQ(end(), 0);
}

TEST_F(CompatServer, batches_and_streams_answer_in_order) {
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

/// A change of the libraries shows within two seconds.
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

TEST_F(CompatServerChanges, a_library_goes_comes_back_or_changes) {
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

TEST_F(CompatServerChanges, directories_made_anew_and_files_behind_links) {
  start();
  expect(good_, true);
  // A directory that was not there at the start: this CPU's libraries come first.
  build_library({.output = lib_ + "/glibc-hwcaps/x86-64-v2/libfar.so.1",
                 .source = "int other() { return 1; }",
                 .flags = {"-Wl,-soname,libfar.so.1"}});
  expect(good_, false);
  run_checked({"rm", "-r", lib_ + "/glibc-hwcaps"});
  expect(good_, true);
  // All directories go, and others come.
  move(lib_, lib_ + ".new");
  v1::Response response;
  const auto stub = v1::CompatibilityService::NewStub(channel());
  EXPECT_TRUE(wait_until(milliseconds(2000), [&] {
    return ask(*stub, good_, response).ok() && !response.compatible();
  }));
  run_checked({"cp", "-a", lib_ + ".new", lib_});
  expect(good_, true);
  // The file itself lies where nobody searches.
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

TEST_F(CompatServerChanges, a_library_in_a_directory_that_only_a_runpath_names) {
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

TEST_F(CompatServer, health_needs_no_token_and_reflection_does) {
  start();
  // grpc.health.v1: an empty request; status SERVING (1) in field 1.
  EXPECT_EQ(call_raw("/grpc.health.v1.Health/Check", ""), "\x08\x01");
  // grpc.reflection.v1alpha: list_services, field 7.
  const char* reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  EXPECT_EQ(call_raw(reflection, "\x3a\x01*"), "UNAUTHENTICATED");
  const auto services = call_raw(reflection, "\x3a\x01*", "Bearer 0123456789abcdef");
  EXPECT_THAT(services, HasSubstr("convergedcomputing.org.grpc.v1.CompatibilityService"));
  EXPECT_THAT(services, HasSubstr("heddle.compat.v2.Compat"));
}

TEST_F(CompatServer, beyond_this_node_it_wants_tls_and_a_token) {
  const auto refused =
      run({program_, "--listen", "0.0.0.0:0", "--rootfs", root_, "--index", dir_ / "index"});
  EXPECT_EQ(refused.status, 3);
  EXPECT_EQ(run({program_, "--listen", "127.0.0.1.example:0", "--rootfs", root_, "--index",
                 dir_ / "index"})
                .status,
            3);
  EXPECT_THAT(refused.err, HasSubstr("will not listen beyond this node without TLS and a token"));

  make_certificate("127.0.0.1", dir_ / "key", dir_ / "cert");
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
  // One address has at most half of the calls.
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

TEST_F(CompatServer, compat_check_asks_one_server_or_many_nodes) {
  start();
  const auto file = write_text_file(dir_ / "bad.json", bad_);
  auto done = run({check_, "--token-file", token_, "--server", address_, file});
  EXPECT_EQ(done.status, 1) << done.err;
  EXPECT_EQ(done.out, "incompatible\nbad: liblost.so.1: library not found\n");
  done = run({check_, "--token-file", token_, "--server", address_,
              write_text_file(dir_ / "good.json", good_)});
  EXPECT_EQ(done.status, 0);
  done = run({check_, "--token-file", token_, "--nodes", "localhost,127.0.0.1,127.0.0.1:1",
              "--server-port", port(), dir_ / "good.json"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out,
            "localhost:" + port() + "\tcompatible\n127.0.0.1:" + port() + "\tcompatible\n");
  EXPECT_THAT(done.err, HasSubstr("127.0.0.1:1: cannot reach the compat-server"));
  // Numbers of IPv6 have colons, and no ports of their own.
  done = run(
      {check_, "--token-file", token_, "--nodes", "::1,[::1],[::1]:2", "--server-port", "1", file});
  EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 3);
  EXPECT_THAT(done.err, HasSubstr(": [::1]:1: cannot reach"));
  EXPECT_THAT(done.err, HasSubstr(": [::1]:2: cannot reach"));
  done =
      run({check_, "--token-file", token_, "--nodes", "localhost", "--server-port", port(), file});
  EXPECT_EQ(done.status, 1);
}

TEST_F(CompatServer, without_a_server_there_is_one_line_within_two_seconds) {
  const auto file = write_text_file(dir_ / "good.json", good_);
  // One port refuses; the other's queue is full, so that the connection hangs.
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

TEST_F(CompatServer, metrics_count_what_was_done) {
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

TEST_F(CompatServer, ten_thousand_checks_from_32_connections_are_all_right) {
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
        // Spaces make other bytes of the same artifact: a verdict that is not kept yet.
        const auto text =
            (good ? good_ : bad_) + std::string(static_cast<std::size_t>(i % 50), ' ');
        failed += !ask(*stub, text, response).ok();
        wrong += response.compatible() != good;
      }
    });
  for (auto& client : clients) client.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(wrong, 0);
  // AddressSanitizer keeps what is freed for a while.
  const auto after = resident_kib();
  EXPECT_TRUE(kSanitized || after < before + 64 * 1024) << after << " KiB, before: " << before;
  EXPECT_EQ(end(), 0);
}

TEST_F(CompatServer, garbage_oversize_and_half_open_peers_stop_nobody) {
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

TEST_F(CompatServer, streams_that_idle_are_cut_and_do_not_keep_others_out) {
  // Long enough for all four to have begun when the first is cut.
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
