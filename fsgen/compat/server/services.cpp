// SPDX-License-Identifier: MIT
#include "fsgen/compat/server/services.hpp"

#include <fmt/format.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>

#include <compat_v2.grpc.pb.h>
#include <compatibility.grpc.pb.h>
#include "base/escape.hpp"
#include "base/fd.hpp"

namespace heddle::compat {

namespace v1 = convergedcomputing::org::grpc::v1;
namespace v2 = ::heddle::compat::v2;

namespace {

/// Memory of all calls under way (gRPC's buffers); beyond it gRPC pushes back.
constexpr std::size_t kMostMemory = std::size_t{256} << 20;
constexpr int kMostInBatch = 1000;

/// Constant time in the length of the secret: a peer learns nothing by timing.
bool same_token(std::string_view given, std::string_view wanted) {
  unsigned char differs = given.size() != wanted.size();
  for (std::size_t i = 0; i < wanted.size(); ++i)
    differs |= static_cast<unsigned char>(wanted[i] ^ (i < given.size() ? given[i] : 0));
  return differs == 0;
}

v2::Verdict to_v2(Verdict verdict) {
  switch (verdict) {
    case Verdict::compatible:
      return v2::COMPATIBLE;
    case Verdict::degraded:
      return v2::DEGRADED;
    case Verdict::incompatible:
      return v2::INCOMPATIBLE;
  }
  return v2::INCOMPATIBLE;
}

void fill(const Answer& answer, const v2::CheckRequest& request, v2::CheckResponse& out) {
  out.set_id(request.id());
  out.set_generation(answer.generation);
  out.set_error(to_json_text(answer.error));
  if (!answer.error.empty()) return;
  out.set_verdict(to_v2(answer.judgement.verdict));
  for (const auto& reason : answer.judgement.reasons) {
    auto& one = *out.add_reasons();
    one.set_kind(to_string(reason.kind));
    one.set_weight(to_v2(reason.weight));
    one.set_program(to_json_text(reason.program));
    one.set_subject(to_json_text(reason.subject));
    one.set_library(to_json_text(reason.library));
    one.set_required_by(to_json_text(reason.required_by));
    one.set_path(to_json_text(reason.path));
    one.set_package(to_json_text(reason.package));
    one.set_detail(to_json_text(reason.detail));
    one.set_text(to_text(reason));
  }
}

/// What every call goes through: token, number of calls, count.
class Gate {
 public:
  Gate(const ServerOptions& options, CompatServer::Counters& counters)
      : options_(options), counters_(counters) {}

  grpc::Status enter(const grpc::ServerContext& context) {
    ++counters_.calls;
    if (!options_.token.empty()) {
      const auto& metadata = context.client_metadata();
      const auto given = metadata.find("authorization");
      const std::string wanted = "Bearer " + options_.token;
      if (given == metadata.end() ||
          !same_token({given->second.data(), given->second.size()}, wanted)) {
        ++counters_.denied;
        return {grpc::StatusCode::UNAUTHENTICATED, "the token is missing or wrong"};
      }
    }
    if (++counters_.under_way <= options_.most_checks) return grpc::Status::OK;
    --counters_.under_way;
    ++counters_.turned_away;
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many checks at once: try again"};
  }
  void leave() { --counters_.under_way; }

 private:
  const ServerOptions& options_;
  CompatServer::Counters& counters_;
};

/// Enters now, leaves at the scope's end.
class Visit {
 public:
  Visit(Gate& gate, const grpc::ServerContext& context)
      : gate_(gate), status(gate.enter(context)) {}
  ~Visit() {
    if (status.ok()) gate_.leave();
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  Gate& gate_;

 public:
  const grpc::Status status;
};

class ServiceV1 final : public v1::CompatibilityService::Service {
 public:
  ServiceV1(NodeIndex& index, Gate& gate) : index_(index), gate_(gate) {}

  grpc::Status CheckCompatibility(grpc::ServerContext* context, const v1::CompatRequest* request,
                                  v1::Response* response) override {
    const Visit visit(gate_, *context);
    if (!visit.status.ok()) return visit.status;
    const auto answer =
        index_.check(request->payload(), request->uri().empty() ? "payload" : request->uri());
    if (!answer->error.empty()) {
      response->set_status(v1::Response::ERROR);
      response->set_payload(to_json_text(answer->error));
      return grpc::Status::OK;
    }
    std::string text = to_string(answer->judgement.verdict);
    for (const auto& reason : answer->judgement.reasons) text += "\n" + to_text(reason);
    response->set_status(v1::Response::SUCCESS);
    response->set_compatible(answer->judgement.verdict != Verdict::incompatible);
    response->set_payload(std::move(text));
    return grpc::Status::OK;
  }

 private:
  NodeIndex& index_;
  Gate& gate_;
};

class ServiceV2 final : public v2::Compat::Service {
 public:
  ServiceV2(NodeIndex& index, Gate& gate) : index_(index), gate_(gate) {}

  grpc::Status Check(grpc::ServerContext* context, const v2::CheckRequest* request,
                     v2::CheckResponse* response) override {
    const Visit visit(gate_, *context);
    if (!visit.status.ok()) return visit.status;
    fill(*index_.check(request->artifact(), "artifact"), *request, *response);
    return grpc::Status::OK;
  }

  grpc::Status CheckBatch(grpc::ServerContext* context, const v2::CheckBatchRequest* request,
                          v2::CheckBatchResponse* response) override {
    const Visit visit(gate_, *context);
    if (!visit.status.ok()) return visit.status;
    if (request->requests_size() > kMostInBatch)
      return {grpc::StatusCode::INVALID_ARGUMENT,
              fmt::format("a batch has at most {} artifacts", kMostInBatch)};
    for (const auto& one : request->requests()) {
      if (context->IsCancelled()) return grpc::Status::CANCELLED;
      fill(*index_.check(one.artifact(), "artifact"), one, *response->add_responses());
    }
    return grpc::Status::OK;
  }

  grpc::Status CheckStream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v2::CheckResponse, v2::CheckRequest>* stream) override {
    const Visit visit(gate_, *context);
    if (!visit.status.ok()) return visit.status;
    v2::CheckRequest request;
    while (stream->Read(&request)) {
      v2::CheckResponse response;
      fill(*index_.check(request.artifact(), "artifact"), request, response);
      if (!stream->Write(response)) break;
    }
    return grpc::Status::OK;
  }

 private:
  NodeIndex& index_;
  Gate& gate_;
};

Result<std::shared_ptr<grpc::ServerCredentials>> credentials(const ServerOptions& options) {
  if (options.tls_certificate.empty()) return grpc::InsecureServerCredentials();
  auto certificate = read_file(options.tls_certificate, std::size_t{1} << 20);
  if (!certificate) return fail(std::move(certificate.error()));
  auto key = read_file(options.tls_key, std::size_t{1} << 20);
  if (!key) return fail(std::move(key.error()));
  grpc::SslServerCredentialsOptions ssl;
  ssl.pem_key_cert_pairs.push_back({std::move(*key), std::move(*certificate)});
  return grpc::SslServerCredentials(ssl);
}

}  // namespace

bool is_local(const std::string& address) {
  if (address.starts_with("unix:")) return true;
  const auto host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host.starts_with("127.") || host == "[::1]";
}

struct CompatServer::State {
  State(NodeIndex& index, const ServerOptions& o)
      : options(o), gate(options, counters), one(index, gate), two(index, gate) {}
  ServerOptions options;
  Counters counters;
  Gate gate;
  ServiceV1 one;
  ServiceV2 two;
  std::string address;
  std::unique_ptr<grpc::Server> server;
};

CompatServer::CompatServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
CompatServer::~CompatServer() { stop(0); }
const std::string& CompatServer::address() const { return state_->address; }
const CompatServer::Counters& CompatServer::counters() const { return state_->counters; }

Result<std::unique_ptr<CompatServer>> CompatServer::start(NodeIndex& index,
                                                          const ServerOptions& options) {
  if (!is_local(options.listen) && (options.tls_certificate.empty() || options.token.empty()))
    return fail_errno(options.listen, "will not listen beyond this node without TLS and a token",
                      EPERM, "--tls-cert, --tls-key and --token-file");
  auto secret = credentials(options);
  if (!secret) return fail(std::move(secret.error()));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  auto state = std::make_unique<State>(index, options);
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("compat-server");
  quota.Resize(kMostMemory).SetMaxThreads(std::max(8, options.most_checks + 8));
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.most_request_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 64);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A peer that went silent is asked, and dropped.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 600'000);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  int port = 0;
  builder.AddListeningPort(options.listen, *secret, &port);
  builder.RegisterService(&state->one);
  builder.RegisterService(&state->two);
  state->server = builder.BuildAndStart();
  if (!state->server || (port == 0 && !options.listen.starts_with("unix:")))
    return fail(options.listen, "cannot listen", "the address is taken, or not ours");
  state->address = options.listen;
  if (!options.listen.starts_with("unix:"))
    state->address =
        fmt::format("{}:{}", options.listen.substr(0, options.listen.rfind(':')), port);
  return std::unique_ptr<CompatServer>(new CompatServer(std::move(state)));
}

void CompatServer::stop(int seconds) {
  if (!state_->server) return;
  if (auto* health = state_->server->GetHealthCheckService()) health->SetServingStatus(false);
  state_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
  state_->server->Wait();
  state_->server.reset();
}

}  // namespace heddle::compat
