// SPDX-License-Identifier: MIT
#include "compat/server/ask.hpp"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include <compat_v2.grpc.pb.h>
#include "base/fd.hpp"
#include "compat/server/token_file.hpp"

namespace heddle::compat {

namespace {

constexpr std::size_t kMostAtOnce = 64;

Verdict from_v2(v2::Verdict verdict) {
  if (verdict == v2::COMPATIBLE) return Verdict::compatible;
  return verdict == v2::DEGRADED ? Verdict::degraded : Verdict::incompatible;
}

Judgement from_v2(const v2::CheckResponse& response) {
  Judgement out;
  for (const auto& one : response.reasons()) {
    Reason reason;
    reason.kind = reason_kind(one.kind()).value_or(Reason::Kind::not_judged);
    reason.weight = from_v2(one.weight());
    reason.program = one.program();
    reason.subject = one.subject();
    reason.library = one.library();
    reason.required_by = one.required_by();
    reason.path = one.path();
    reason.package = one.package();
    reason.detail = one.detail();
    out.add(std::move(reason));
  }
  out.verdict = from_v2(response.verdict());
  out.more = response.more_reasons();
  return out;
}

Result<std::shared_ptr<grpc::Channel>> connect(const std::string& address,
                                               const AskOptions& options) {
  auto credentials = grpc::InsecureChannelCredentials();
  if (!options.ca.empty()) {
    auto pem = read_file(options.ca, std::size_t{1} << 20);
    if (!pem) return fail(std::move(pem.error()));
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = std::move(*pem);
    credentials = grpc::SslCredentials(ssl);
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(16 << 20);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  auto channel = grpc::CreateCustomChannel(address, credentials, arguments);
  // A refused connection is an answer: only one under way is waited for.
  const auto deadline = std::chrono::system_clock::now() + options.connect;
  for (auto state = channel->GetState(true); state != GRPC_CHANNEL_READY;
       state = channel->GetState(true)) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN)
      return fail_errno(address, "cannot reach the compat-server", ECONNREFUSED);
    if (!channel->WaitForStateChange(state, deadline))
      return fail_errno(address, "cannot reach the compat-server", ETIMEDOUT);
  }
  return channel;
}

}  // namespace

Result<Judgement> ask(const std::string& address, const std::string& artifact,
                      const AskOptions& options) {
  const auto channel = connect(address, options);
  if (!channel) return fail(channel.error());
  const auto stub = v2::Compat::NewStub(*channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + options.answer);
  const auto& token =
      options.token.empty() && is_local(address) ? options.own_token : options.token;
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  v2::CheckRequest request;
  request.set_artifact(artifact);
  v2::CheckResponse response;
  const auto status = stub->Check(&context, request, &response);
  if (!status.ok()) return fail(address, "the compat-server refused", status.error_message());
  if (!response.error().empty()) return fail(address, "no verdict", response.error());
  return from_v2(response);
}

std::vector<Result<Judgement>> ask_all(const std::vector<std::string>& addresses,
                                       const std::string& artifact, const AskOptions& options) {
  std::vector<Result<Judgement>> out(addresses.size(), fail("", "not asked"));
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (auto i = next++; i < addresses.size(); i = next++)
      out[i] = ask(addresses[i], artifact, options);
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < std::min(addresses.size(), kMostAtOnce); ++i)
    threads.emplace_back(work);
  for (auto& thread : threads) thread.join();
  return out;
}

}  // namespace heddle::compat
