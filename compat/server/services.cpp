// SPDX-License-Identifier: MIT
#include "compat/server/services.hpp"

#include <fmt/format.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>

#include <compat_v2.grpc.pb.h>
#include <compatibility.grpc.pb.h>
#include "base/escape.hpp"
#include "compat/server/token_file.hpp"

namespace heddle::compat {

namespace v1 = convergedcomputing::org::grpc::v1;

namespace {

/// Memory of all calls under way in gRPC's buffers; beyond it gRPC pushes back.
constexpr std::size_t kMostMemory = std::size_t{96} << 20;
/// Of requests that handlers hold; beyond it calls are turned away.
constexpr std::size_t kMostRequestBytes = std::size_t{128} << 20;
constexpr int kMostInBatch = 1000;
constexpr std::size_t kLongestUri = 256;

/// Constant time in the length of the secret: a peer learns nothing by timing.
bool same_token(std::string_view given, std::string_view wanted) {
  unsigned char differs = given.size() != wanted.size();
  for (std::size_t i = 0; i < wanted.size(); ++i)
    differs |= static_cast<unsigned char>(wanted[i] ^ (i < given.size() ? given[i] : 0));
  return differs == 0;
}

v2::Verdict to_v2(Verdict verdict) {
  constexpr v2::Verdict kVerdicts[] = {v2::COMPATIBLE, v2::DEGRADED, v2::INCOMPATIBLE};
  return kVerdicts[static_cast<std::size_t>(verdict)];
}

/// Result: the bytes that it takes.
std::size_t fill(const Answer& answer, const v2::CheckRequest& request, v2::CheckResponse& out) {
  out.set_id(request.id());
  out.set_generation(answer.generation);
  out.set_error(to_json_text(answer.error));
  if (!answer.error.empty()) return out.ByteSizeLong();
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
  out.set_more_reasons(answer.judgement.more);
  return out.ByteSizeLong();
}

/// Checks the token before any service sees the call, so that reflection, whose calls hold a thread
/// each, is for those who have it, too. Anybody may ask for health.
class TokenCheck final : public grpc::AuthMetadataProcessor {
 public:
  TokenCheck(const std::string& token, CompatServer::Counters& counters)
      : wanted_("Bearer " + token), counters_(counters) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    if (path != metadata.end() && path->second.starts_with("/grpc.health.v1."))
      return grpc::Status::OK;
    const auto given = metadata.find("authorization");
    if (given != metadata.end() &&
        same_token({given->second.data(), given->second.size()}, wanted_))
      return grpc::Status::OK;
    ++counters_.denied;
    return {grpc::StatusCode::UNAUTHENTICATED, "the token is missing or wrong"};
  }

 private:
  const std::string wanted_;
  CompatServer::Counters& counters_;
};

/// Streams that wait for their clients, and since when.
class IdleStreams {
 public:
  using Clock = std::chrono::steady_clock;
  void cancel(std::chrono::seconds idle) {
    const std::lock_guard lock(mutex_);
    for (const auto& [context, since] : since_)
      if (Clock::now() - since > idle) context->TryCancel();
  }

  /// In the list as long as this lives.
  class Stay {
   public:
    Stay(IdleStreams& all, grpc::ServerContext& context) : all_(all), context_(context) {
      const std::lock_guard lock(all_.mutex_);
      all_.since_[&context_] = Clock::now();
    }
    ~Stay() {
      const std::lock_guard lock(all_.mutex_);
      all_.since_.erase(&context_);
    }
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;

   private:
    IdleStreams& all_;
    grpc::ServerContext& context_;
  };

 private:
  std::mutex mutex_;
  std::map<grpc::ServerContext*, Clock::time_point> since_;
};

/// Bounds the calls, those of one client's address, and the bytes of their requests.
class Gate {
 public:
  Gate(const ServerOptions& options, CompatServer::Counters& counters)
      : most_calls_(options.most_checks),
        // An address of this node is many users'.
        most_of_address_(is_local(options.listen) ? most_calls_ : std::max(1, most_calls_ / 2)),
        most_bytes_(std::max(kMostRequestBytes, 2 * options.most_request_bytes)),
        counters_(counters) {}

  /// `calls`: 0 for one more request of a call that is in.
  grpc::Status enter(const std::string& address, int calls, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    counters_.calls += static_cast<unsigned>(calls);
    const auto known = of_address_.find(address);
    const bool full = counters_.under_way + calls > most_calls_ ||
                      (known != of_address_.end() && known->second + calls > most_of_address_);
    if ((calls > 0 && full) || bytes_ + bytes > most_bytes_) {
      ++counters_.turned_away;
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many checks at once: try again"};
    }
    of_address_[address] += calls;
    counters_.under_way += calls;
    bytes_ += bytes;
    return grpc::Status::OK;
  }
  void leave(const std::string& address, int calls, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if ((of_address_[address] -= calls) == 0) of_address_.erase(address);
    counters_.under_way -= calls;
    bytes_ -= bytes;
  }

 private:
  const int most_calls_, most_of_address_;
  const std::size_t most_bytes_;
  std::mutex mutex_;
  std::map<std::string, int> of_address_;  ///< calls under way
  std::size_t bytes_ = 0;
  CompatServer::Counters& counters_;
};

/// Enters now, leaves at the scope's end.
class Visit {
 public:
  Visit(Gate& gate, const grpc::ServerContext& context, std::size_t bytes, int calls = 1)
      : gate_(gate),
        address_(context.peer().substr(0, context.peer().rfind(':'))),  // without the port
        bytes_(bytes),
        calls_(calls),
        status(gate.enter(address_, calls, bytes)) {}
  ~Visit() {
    if (status.ok()) gate_.leave(address_, calls_, bytes_);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  Gate& gate_;
  const std::string address_;
  const std::size_t bytes_;
  const int calls_;

 public:
  const grpc::Status status;
};

std::function<bool()> is_cancelled(const grpc::ServerContext& context) {
  return [&context] { return context.IsCancelled(); };
}

class ServiceV1 final : public v1::CompatibilityService::Service {
 public:
  ServiceV1(JudgePool& judges, Gate& gate) : judges_(judges), gate_(gate) {}

  grpc::Status CheckCompatibility(grpc::ServerContext* context, const v1::CompatRequest* request,
                                  v1::Response* response) override {
    const Visit visit(gate_, *context, request->payload().size());
    if (!visit.status.ok()) return visit.status;
    const auto answer =
        judges_.check(request->payload(),
                      request->uri().empty() ? "payload" : request->uri().substr(0, kLongestUri),
                      is_cancelled(*context));
    if (!answer->error.empty()) {
      response->set_status(v1::Response::ERROR);
      response->set_payload(to_json_text(answer->error));
      return grpc::Status::OK;
    }
    auto text = to_lines(answer->judgement);
    text.pop_back();
    response->set_status(v1::Response::SUCCESS);
    response->set_compatible(answer->judgement.verdict != Verdict::incompatible);
    response->set_payload(std::move(text));
    return grpc::Status::OK;
  }

 private:
  JudgePool& judges_;
  Gate& gate_;
};

class ServiceV2 final : public v2::Compat::Service {
 public:
  ServiceV2(JudgePool& judges, Gate& gate) : judges_(judges), gate_(gate) {}

  grpc::Status Check(grpc::ServerContext* context, const v2::CheckRequest* request,
                     v2::CheckResponse* response) override {
    const Visit visit(gate_, *context, request->artifact().size());
    if (!visit.status.ok()) return visit.status;
    fill(*judges_.check(request->artifact(), "artifact", is_cancelled(*context)), *request,
         *response);
    return grpc::Status::OK;
  }

  grpc::Status CheckBatch(grpc::ServerContext* context, const v2::CheckBatchRequest* request,
                          v2::CheckBatchResponse* response) override {
    const Visit visit(gate_, *context, request->ByteSizeLong());
    if (!visit.status.ok()) return visit.status;
    if (request->requests_size() > kMostInBatch)
      return {grpc::StatusCode::INVALID_ARGUMENT,
              fmt::format("a batch has at most {} artifacts", kMostInBatch)};
    const auto cancelled = is_cancelled(*context);
    std::size_t bytes = 0;
    for (const auto& one : request->requests()) {
      if (context->IsCancelled()) return grpc::Status::CANCELLED;
      bytes += fill(*judges_.check(one.artifact(), "artifact", cancelled), one,
                    *response->add_responses());
      if (bytes > kMostAnswerBytes)
        return {grpc::StatusCode::RESOURCE_EXHAUSTED,
                "the batch's answers are too large together: ask for fewer at once"};
    }
    return grpc::Status::OK;
  }

  grpc::Status CheckStream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v2::CheckResponse, v2::CheckRequest>* stream) override {
    const Visit visit(gate_, *context, 0);
    if (!visit.status.ok()) return visit.status;
    const auto cancelled = is_cancelled(*context);
    for (;;) {
      v2::CheckRequest request;
      v2::CheckResponse response;
      {
        const IdleStreams::Stay stay(streams_, *context);
        if (!stream->Read(&request)) break;
      }
      {
        const Visit one(gate_, *context, request.artifact().size(), 0);
        if (!one.status.ok()) return one.status;
        fill(*judges_.check(request.artifact(), "artifact", cancelled), request, response);
      }
      const IdleStreams::Stay stay(streams_, *context);
      if (!stream->Write(response)) break;
    }
    return context->IsCancelled() ? grpc::Status::CANCELLED : grpc::Status::OK;
  }
  void cancel_idle(std::chrono::seconds idle) { streams_.cancel(idle); }

 private:
  IdleStreams streams_;
  JudgePool& judges_;
  Gate& gate_;
};

class Server final : public CompatServer {
 public:
  Server(JudgePool& judges, const ServerOptions& options)
      : options_(options), gate_(options, counters), one_(judges, gate_), two_(judges, gate_) {}
  ~Server() override { stop(0); }

  Result<void> listen() {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    grpc::ResourceQuota quota("compat-server");
    quota.Resize(kMostMemory).SetMaxThreads(std::max(8, options_.most_checks + 8));
    builder.SetResourceQuota(quota);
    builder.SetMaxReceiveMessageSize(static_cast<int>(options_.most_request_bytes));
    // Clients connect anew by themselves. One that does not read its answers holds their threads,
    // and nothing but its connection's age ends such calls.
    const auto grace = std::chrono::milliseconds(options_.connection_grace).count();
    for (const auto& [name, value] : std::initializer_list<std::pair<const char*, int>>{
             {GRPC_ARG_MAX_CONCURRENT_STREAMS, 64},
             {GRPC_ARG_ALLOW_REUSEPORT, 0},
             {GRPC_ARG_KEEPALIVE_TIME_MS, 30'000},  // a peer that went silent is asked
             {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000},
             {GRPC_ARG_MAX_CONNECTION_IDLE_MS, 600'000},
             {GRPC_ARG_MAX_CONNECTION_AGE_MS, 60'000},
             {GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, static_cast<int>(grace)},
             {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000}})
      builder.AddChannelArgument(name, value);
    int port = 0;
    builder.AddListeningPort(options_.listen, credentials(), &port);
    builder.RegisterService(&one_);
    builder.RegisterService(&two_);
    server_ = builder.BuildAndStart();
    const bool is_unix = options_.listen.starts_with("unix:");
    if (!server_ || (port == 0 && !is_unix))
      return fail(options_.listen, "cannot listen",
                  "the address is taken, or this process's user may not have it");
    address_ = options_.listen;
    if (!is_unix) address_ = fmt::format("{}:{}", address_.substr(0, address_.rfind(':')), port);
    return {};
  }
  const std::string& address() const override { return address_; }
  void tidy() override { two_.cancel_idle(options_.stream_idle); }
  void stop(int seconds) override {
    if (!server_) return;
    if (auto* health = server_->GetHealthCheckService()) health->SetServingStatus(false);
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
    server_->Wait();
    server_.reset();
  }

 private:
  std::shared_ptr<grpc::ServerCredentials> credentials() {
    std::shared_ptr<grpc::ServerCredentials> out;
    if (options_.tls_certificate.empty()) {
      // As without any, but for peers of this node only, and with the token.
      out = grpc::experimental::LocalServerCredentials(
          options_.listen.starts_with("unix:") ? UDS : LOCAL_TCP);
    } else {
      grpc::SslServerCredentialsOptions ssl;
      ssl.pem_key_cert_pairs.push_back({options_.tls_key, options_.tls_certificate});
      out = grpc::SslServerCredentials(ssl);
    }
    out->SetAuthMetadataProcessor(std::make_shared<TokenCheck>(options_.token, counters));
    return out;
  }

  const ServerOptions options_;
  Gate gate_;
  ServiceV1 one_;
  ServiceV2 two_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Result<void> CompatServer::check(const ServerOptions& options) {
  const bool is_unix = options.listen.starts_with("unix:");
  const auto colon = options.listen.rfind(':');
  if (!is_unix && (colon == options.listen.npos || colon + 1 == options.listen.size() ||
                   options.listen.find_first_not_of("0123456789", colon + 1) != std::string::npos))
    return fail(options.listen, "no address to listen on", "", "HOST:PORT or unix:PATH");
  if (!is_local(options.listen) && (options.tls_certificate.empty() || options.token.empty()))
    return fail_errno(options.listen, "will not listen beyond this node without TLS and a token",
                      EPERM, "--tls-cert, --tls-key and --token-file");
  return {};
}

Result<std::unique_ptr<CompatServer>> CompatServer::start(JudgePool& judges,
                                                          const ServerOptions& options) {
  TRY(check(options));
  auto server = std::make_unique<Server>(judges, options);
  TRY(server->listen());
  return server;
}

}  // namespace heddle::compat
