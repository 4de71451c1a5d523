// SPDX-License-Identifier: MIT
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <future>

#include <compatibility.grpc.pb.h>
#include "tests/compat/loopback.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

namespace v1 = convergedcomputing::org::grpc::v1;
using std::chrono::milliseconds;

/// A root file system with this machine's loader and libc and with libfar.so.1, artifacts of a good
/// and a bad program for it, and a server for it.
class CompatServer : public ::testing::Test {
 protected:
  void SetUp() override {
    gen_ = staged_program("compat-gen");
    check_ = staged_program("compat-check");
    program_ = staged_program("compat-server");
    if (program_.empty()) HEDDLE_SKIP("compat-server is not installed in $HEDDLE_STAGE");
    // The server drops root's rights.
    run_checked({"chmod", "755", dir_.path()});
    write_text_file(token_, "0123456789abcdef\n", 0600);
    run_checked(
        {"mkdir", "-p", root_ + "/lib64", root_ + "/usr/lib", root_ + "/usr/bin", root_ + "/etc"});
    run_checked({"ln", "-s", "usr/lib", root_ + "/lib"});
    run_checked({"cp", "-L", "/lib64/ld-linux-x86-64.so.2", root_ + "/lib64/"});
    run_checked({"cp", "-L", "/lib/x86_64-linux-gnu/libc.so.6", root_ + "/usr/lib/"});
    make_far("int far() { return 1; }");
    build_program({.output = root_ + "/usr/bin/good",
                   .source = "int far(); int main() { return far(); }",
                   .flags = {root_ + "/usr/lib/libfar.so.1"}});
    const auto lost = build_library({.output = dir_ / "liblost.so.1",
                                     .source = "int lost() { return 1; }",
                                     .flags = {"-Wl,-soname,liblost.so.1"}});
    build_program({.output = root_ + "/usr/bin/bad",
                   .source = "int lost(); int main() { return lost(); }",
                   .flags = {lost}});
    good_ = artifact("good");
    bad_ = artifact("bad");
  }
  void TearDown() override { end(); }

  void make_far(const std::string& source) {
    const auto made = build_library(
        {.output = dir_ / "libfar.so.1", .source = source, .flags = {"-Wl,-soname,libfar.so.1"}});
    run_checked({"mv", made, root_ + "/usr/lib/libfar.so.1"});
  }
  std::string artifact(const std::string& name) {
    return run_checked({gen_, "--rootfs", root_, "/usr/bin/" + name},
                       {.env = {"XDG_CACHE_HOME=" + dir_ / "cache"}})
        .out;
  }

  /// Starts the server and waits until it listens; address_ is where.
  void start(std::vector<std::string> more = {}, const std::string& listen = "127.0.0.1:0") {
    std::vector<std::string> argv = {program_, "--listen",     listen,         "--rootfs",
                                     root_,    "--index",      dir_ / "index", "--grace",
                                     "2",      "--token-file", token_};
    argv.insert(argv.end(), more.begin(), more.end());
    start_with(argv);
  }
  void start_with(const std::vector<std::string>& argv) {
    const auto log = dir_ / "log";
    Fd out = value_or_throw(open_file(log, O_WRONLY | O_CREAT | O_TRUNC));
    server_.emplace(value_or_throw(spawn(program_, argv, {.fds = {{out.get(), 2}}})));
    wait_for_address(log);
  }
  void wait_for_address(const std::string& log) {
    ASSERT_TRUE(wait_until(milliseconds(60'000), [&] {
      const auto text = read_file(log).value_or("");
      const std::string word = "listening on ";
      const auto at = text.find(word);
      const auto end = text.find(',', at);
      if (at == text.npos || end == text.npos) return false;
      address_ = text.substr(at + word.size(), end - at - word.size());
      return true;
    })) << read_file(log).value_or("");
  }
  /// Ends the server by SIGTERM; its exit status.
  int end() {
    if (!server_) return 0;
    ::kill(server_->pid(), SIGTERM);
    const auto status = value_or_throw(server_->wait_for(milliseconds(10'000)));
    server_.reset();
    return status.value_or(-1);
  }

  std::shared_ptr<grpc::Channel> channel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // one connection a channel
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    for (const char* backoff :
         {GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS})
      arguments.SetInt(backoff, 100);
    return grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
  }
  static grpc::Status ask(v1::CompatibilityService::Stub& stub, const std::string& artifact,
                          v1::Response& response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    context.set_wait_for_ready(true);
    show_token(context);
    v1::CompatRequest request;
    request.set_payload(artifact);
    return stub.CheckCompatibility(&context, request, &response);
  }
  static void show_token(grpc::ClientContext& context) {
    context.AddMetadata("authorization", "Bearer 0123456789abcdef");
  }
  bool is_compatible(const std::string& artifact) {
    v1::Response response;
    const auto stub = v1::CompatibilityService::NewStub(channel());
    const auto status = ask(*stub, artifact, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.status(), v1::Response::SUCCESS) << response.payload();
    return response.compatible();
  }
  /// The answer to a request of these bytes, without generated code of the service.
  std::string call_raw(const std::string& method, const std::string& bytes,
                       const std::string& authorization = "") {
    grpc::GenericStub stub(channel());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer answer;
    std::promise<grpc::Status> status;
    stub.UnaryCall(&context, method, {}, &request, &answer,
                   [&](const grpc::Status& done) { status.set_value(done); });
    if (status.get_future().get().error_code() == grpc::StatusCode::UNAUTHENTICATED)
      return "UNAUTHENTICATED";
    grpc::Slice whole;
    if (!answer.Valid() || !answer.DumpToSingleSlice(&whole).ok()) return "";
    return {reinterpret_cast<const char*>(whole.begin()), whole.size()};
  }
  /// A line of a process's /proc/PID/status, without its name.
  static std::string line_of(const std::string& pid, const std::string& name) {
    std::ifstream status("/proc/" + pid + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(name + ":\t")) return line.substr(name.size() + 2);
    return "";
  }
  std::size_t resident_kib() {
    return std::stoul(line_of(std::to_string(server_->pid()), "VmRSS"));
  }
  std::string port() const { return address_.substr(address_.rfind(':') + 1); }
  Fd connect_raw() {
    Fd fd = connect_to(std::stoi(port()));
    EXPECT_TRUE(fd.valid());
    return fd;
  }

  TestDir dir_;
  std::string root_ = dir_ / "root", token_ = dir_ / "token";
  std::string gen_, check_, program_, good_, bad_, address_;
  std::optional<Child> server_;
};

}  // namespace heddle::test
