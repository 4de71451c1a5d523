// SPDX-License-Identifier: MIT
//
// compat-server as a process, asked by clients made from the service definitions.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>

#include <compat_v2.grpc.pb.h>
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

TEST_F(CompatServer, a_library_that_goes_comes_back_or_changes_shows_within_two_seconds) {
  start();
  ASSERT_TRUE(is_compatible(good_));
  const auto far = root_ + "/usr/lib/libfar.so.1";
  ASSERT_EQ(::rename(far.c_str(), (far + ".away").c_str()), 0);
  EXPECT_TRUE(wait_until(milliseconds(2000), [&] { return !is_compatible(good_); }));
  ASSERT_EQ(::rename((far + ".away").c_str(), far.c_str()), 0);
  EXPECT_TRUE(wait_until(milliseconds(2000), [&] { return is_compatible(good_); }));
  make_far("int other() { return 1; }");
  EXPECT_TRUE(wait_until(milliseconds(2000), [&] { return !is_compatible(good_); }));
  make_far("int far() { return 2; }");
  EXPECT_TRUE(wait_until(milliseconds(2000), [&] { return is_compatible(good_); }));
}

TEST_F(CompatServer, folders_made_anew_and_files_behind_links_show_as_soon) {
  start();
  const auto shows = [&](bool good) {
    EXPECT_TRUE(wait_until(milliseconds(2000), [&] { return is_compatible(good_) == good; }));
  };
  shows(true);
  const auto lib = root_ + "/usr/lib";
  // A folder that was not there at the start: this CPU's libraries come first.
  run_checked({"mkdir", "-p", lib + "/glibc-hwcaps/x86-64-v2"});
  build_library({.output = lib + "/glibc-hwcaps/x86-64-v2/libfar.so.1",
                 .source = "int other() { return 1; }",
                 .flags = {"-Wl,-soname,libfar.so.1"}});
  shows(false);
  run_checked({"rm", "-r", lib + "/glibc-hwcaps"});
  shows(true);
  // All folders go, and others come.
  ASSERT_EQ(::rename(lib.c_str(), (lib + ".new").c_str()), 0);
  v1::Response response;
  const auto stub = v1::CompatibilityService::NewStub(channel());
  EXPECT_TRUE(wait_until(milliseconds(2000), [&] {
    return ask(*stub, good_, response).ok() && !response.compatible();
  }));
  run_checked({"cp", "-a", lib + ".new", lib});
  shows(true);
  // The file itself lies where nobody searches.
  run_checked({"mkdir", "-p", root_ + "/opt/far"});
  ASSERT_EQ(::rename((lib + "/libfar.so.1").c_str(), (root_ + "/opt/far/libfar.so.1").c_str()), 0);
  ASSERT_EQ(::symlink("../../opt/far/libfar.so.1", (lib + "/libfar.so.1").c_str()), 0);
  shows(true);
  ASSERT_EQ(::rename((root_ + "/opt/far/libfar.so.1").c_str(), (root_ + "/opt/far/x").c_str()), 0);
  shows(false);
  ASSERT_EQ(::rename((root_ + "/opt/far/x").c_str(), (root_ + "/opt/far/libfar.so.1").c_str()), 0);
  shows(true);
}

TEST_F(CompatServer, a_library_in_a_folder_that_only_a_runpath_names_counts_as_soon) {
  const auto own = build_library({.output = root_ + "/opt/app/libown.so.1",
                                  .source = "int own() { return 1; }",
                                  .flags = {"-Wl,-soname,libown.so.1"}});
  build_program({.output = root_ + "/usr/bin/mine",
                 .source = "int own(); int main() { return own(); }",
                 .flags = {own, "-Wl,-rpath,/opt/app"}});
  const auto mine = artifact("mine");
  start({"--library-dir", "/opt/app"});
  ASSERT_TRUE(is_compatible(mine));
  ASSERT_EQ(::rename(own.c_str(), (own + ".away").c_str()), 0);
  EXPECT_TRUE(wait_until(milliseconds(2000), [&] { return !is_compatible(mine); }));
  ASSERT_EQ(::rename((own + ".away").c_str(), own.c_str()), 0);
  EXPECT_TRUE(wait_until(milliseconds(2000), [&] { return is_compatible(mine); }));
}

/// One call without the service's generated code.
std::string call_raw(grpc::Channel& channel, const std::string& method, const std::string& bytes,
                     const std::string& token = "") {
  grpc::GenericStub stub(std::shared_ptr<grpc::ChannelInterface>(&channel, [](auto*) {}));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  grpc::CompletionQueue queue;
  const auto next = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  if (!next()) return "";
  const grpc::Slice slice(bytes);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  if (!next()) return "";
  call->WritesDone(nullptr);
  next();
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  next();
  std::vector<grpc::Slice> slices;
  std::string out;
  if (answer.Valid() && answer.Dump(&slices).ok())
    for (const auto& one : slices)
      out.append(reinterpret_cast<const char*>(one.begin()), one.size());
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  return out;
}

TEST_F(CompatServer, health_answers_all_and_reflection_who_has_the_token) {
  start();
  const auto peer = channel();
  // grpc.health.v1: an empty request; status SERVING (1) in field 1.
  EXPECT_EQ(call_raw(*peer, "/grpc.health.v1.Health/Check", ""), "\x08\x01");
  // grpc.reflection.v1alpha: list_services, field 7.
  const char* reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  EXPECT_EQ(call_raw(*peer, reflection, "\x3a\x01*"), "");
  const auto services = call_raw(*peer, reflection, "\x3a\x01*", "0123456789abcdef");
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

  run_checked({"openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
               "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", dir_ / "key",
               "-out", dir_ / "cert"});
  const auto wrong = write_text_file(dir_ / "wrong", "0123456789abcdeX\n", 0600);
  start({"--tls-cert", dir_ / "cert", "--tls-key", dir_ / "key"}, "0.0.0.0:0");
  const auto file = write_text_file(dir_ / "good.json", good_);
  const auto server = "localhost:" + address_.substr(address_.rfind(':') + 1);
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
  // Who has no token is told of health, and of nothing else.
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = value_or_throw(read_file(dir_ / "cert"));
  const auto peer = grpc::CreateChannel(server, grpc::SslCredentials(ssl));
  EXPECT_EQ(call_raw(*peer, "/grpc.health.v1.Health/Check", ""), "\x08\x01");
  EXPECT_EQ(call_raw(*peer, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                     "\x3a\x01*"),
            "");
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
  const auto port = address_.substr(address_.rfind(':') + 1);
  done = run({check_, "--token-file", token_, "--nodes", "localhost,127.0.0.1,127.0.0.1:1",
              "--server-port", port, dir_ / "good.json"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, "localhost:" + port + "\tcompatible\n127.0.0.1:" + port + "\tcompatible\n");
  EXPECT_THAT(done.err, HasSubstr("127.0.0.1:1: cannot reach the compat-server"));
  // Numbers of IPv6 have colons, and no ports of their own.
  done = run(
      {check_, "--token-file", token_, "--nodes", "::1,[::1],[::1]:2", "--server-port", "1", file});
  EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 3);
  EXPECT_THAT(done.err, HasSubstr(": [::1]:1: cannot reach"));
  EXPECT_THAT(done.err, HasSubstr(": [::1]:2: cannot reach"));
  done = run({check_, "--token-file", token_, "--nodes", "localhost", "--server-port", port, file});
  EXPECT_EQ(done.status, 1);
}

TEST_F(CompatServer, without_a_server_there_is_one_line_within_two_seconds) {
  const auto file = write_text_file(dir_ / "good.json", good_);
  // One port refuses; the other's queue is full, so that the connection hangs.
  const Fd deaf(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(::bind(deaf.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  ASSERT_EQ(::listen(deaf.get(), 0), 0);
  ASSERT_EQ(::getsockname(deaf.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  for (const auto& server :
       {std::string("127.0.0.1:1"), "127.0.0.1:" + std::to_string(ntohs(at.sin_port)),
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
  Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(::bind(probe.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  ASSERT_EQ(::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  probe.reset();
  start({"--metrics", "127.0.0.1:" + std::to_string(ntohs(at.sin_port))});
  for (int i = 0; i < 3; ++i) is_compatible(bad_);
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  static_cast<void>(::send(fd.get(), "GET /metrics HTTP/1.0\r\n\r\n", 25, MSG_NOSIGNAL));
  const auto page = read_all(fd.get(), "metrics").value_or("");
  EXPECT_THAT(page, HasSubstr("200 OK"));
  EXPECT_THAT(page, HasSubstr("\nheddle_compat_checks_total 3\n"));
  EXPECT_THAT(page, HasSubstr("\nheddle_compat_checks_kept_total 2\n"));
  EXPECT_THAT(page, HasSubstr("\nheddle_compat_incompatible_total 3\n"));
}

}  // namespace
}  // namespace heddle::test
