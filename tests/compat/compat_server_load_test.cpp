// SPDX-License-Identifier: MIT
//
// compat-server with many clients, with hostile ones, and with ones that wait.

#include <atomic>
#include <thread>

#include <compat_v2.grpc.pb.h>
#include "base/sandbox/sanitized.hpp"
#include "tests/compat/compat_server.hpp"

namespace heddle::test {
namespace {

namespace v2 = ::heddle::compat::v2;

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

TEST_F(CompatServer, it_can_be_killed_and_started_again_under_load) {
  // Where the unprivileged user that it becomes may make a socket.
  run_checked({"mkdir", "-m", "777", dir_ / "run"});
  start({}, "unix:" + dir_ / "run/sock");
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0}, right{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c)
    clients.emplace_back([&] {
      const auto stub = v1::CompatibilityService::NewStub(channel());
      while (!done) {
        v1::Response response;
        if (ask(*stub, bad_, response).ok()) ++(response.compatible() ? wrong : right);
      }
    });
  for (int round = 0; round < 3; ++round) {
    const int before = right;
    // Long: a server with a sanitizer takes seconds to start, and answers slowly.
    EXPECT_TRUE(wait_until(milliseconds(30000), [&] { return right > before + 20; }));
    if (round == 1) {
      EXPECT_EQ(end(), 0);  // SIGTERM: those under way are answered
    } else {
      ::kill(server_->pid(), SIGKILL);
      static_cast<void>(server_->wait());
      server_.reset();
    }
    start({}, "unix:" + dir_ / "run/sock");
  }
  done = true;
  for (auto& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(is_compatible(good_));
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
