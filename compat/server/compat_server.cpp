// SPDX-License-Identifier: MIT
//
// The program compat-server. gRPC's threads call the services below. Each call passes the token
// check and the Gate, then asks the JudgePool, whose processes open files and parse artifacts. The
// main thread handles signals, the watcher and metrics.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>

#include <compat_v2.grpc.pb.h>
#include <compatibility.grpc.pb.h>
#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/notify_ready.hpp"
#include "base/run_main.hpp"
#include "base/sandbox/privileges.hpp"
#include "base/trusted_path.hpp"
#include "compat/server/judge_pool.hpp"
#include "compat/server/reflection_v1.hpp"
#include "compat/server/token_file.hpp"

namespace heddle::compat {

namespace v1 = convergedcomputing::org::grpc::v1;

namespace {

using Clock = std::chrono::steady_clock;

/// Interval of the watcher's and idle streams' checks, in milliseconds.
constexpr int kTendEvery = 700;
/// A call's time for sending and receiving.
constexpr std::chrono::seconds kBesideJudging{5};
/// Least time for the calls of a connection at its maximum age.
constexpr std::chrono::seconds kConnectionGrace{15};
/// gRPC's buffers for all calls; beyond it gRPC pushes back.
constexpr std::size_t kMostMemory = std::size_t{96} << 20;
/// Requests in handlers; beyond it calls are refused.
constexpr std::size_t kMostRequestBytes = std::size_t{128} << 20;
constexpr int kMostInBatch = 1000;
constexpr std::size_t kLongestUri = 256;

struct Options {
  std::string listen = "127.0.0.1:50051";  ///< or unix:/path
  std::string tls_certificate, tls_key;    ///< PEM files, then their contents; both or none
  std::string token;                       ///< required of clients; never empty
  std::size_t most_request_bytes = std::size_t{8} << 20;
  int most_checks = 64;  ///< at once; more are refused
  NodeIndexOptions index;
  std::string token_file, metrics, user = "nobody";
  int grace = 5;
  unsigned stream_idle = 60, timeout = 10;
};

struct Counters {
  std::atomic<std::uint64_t> calls{0}, denied{0}, turned_away{0};
  std::atomic<int> under_way{0};
};

/// The time depends on the length of `wanted` only: it reveals nothing of the secret.
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

/// Result: the response's size in bytes.
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

/// Checks the token before any service, so that reflection, whose calls hold a thread each, needs
/// it too. Health needs none.
class TokenCheck final : public grpc::AuthMetadataProcessor {
 public:
  TokenCheck(const std::string& token, Counters& counters)
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
  Counters& counters_;
};

/// Limits the calls, those of one client's address, and the bytes of their requests.
class Gate {
 public:
  Gate(const Options& options, Counters& counters)
      : most_calls_(options.most_checks),
        // Many users share a local address.
        most_of_address_(is_local(options.listen) ? most_calls_ : std::max(1, most_calls_ / 2)),
        most_bytes_(std::max(kMostRequestBytes, 2 * options.most_request_bytes)),
        counters_(counters) {}

  /// Admits a call, or one more request of a stream (`calls` 0), until the result is released;
  /// null: refused.
  std::shared_ptr<void> enter(const grpc::ServerContext& context, std::size_t bytes,
                              int calls = 1) {
    const auto peer = context.peer();
    const auto address = peer.substr(0, peer.rfind(':'));  // without its port
    std::unique_lock lock(mutex_);
    counters_.calls += static_cast<unsigned>(calls);
    if (ending_) {
      last_refused_ = Clock::now();
      while (Clock::now() < refuse_at_) changed_.wait_until(lock, refuse_at_);
      return nullptr;
    }
    const auto known = of_address_.find(address);
    const bool full = counters_.under_way + calls > most_calls_ ||
                      (known != of_address_.end() && known->second + calls > most_of_address_);
    if ((calls > 0 && full) || bytes_ + bytes > most_bytes_) {
      ++counters_.turned_away;
      return nullptr;
    }
    add(address, calls);
    bytes_ += bytes;
    return {this, [this, address, bytes, calls](void*) {
              const std::lock_guard hold(mutex_);
              add(address, -calls);
              bytes_ -= bytes;
            }};
  }

  /// What to answer when enter() admits nothing.
  grpc::Status refusal() {
    const std::lock_guard lock(mutex_);
    if (ending_) return {grpc::StatusCode::UNAVAILABLE, "the server is ending: ask another"};
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many checks at once: try again"};
  }

  /// Admits nothing more. New calls wait until a moment after the return, so that clients do not
  /// send more of them. Returns when none has come for a moment, or at `end`.
  void hold(Clock::time_point end) {
    constexpr std::chrono::milliseconds kMoment{100}, kGoAway{50};
    std::unique_lock lock(mutex_);
    ending_ = true;
    refuse_at_ = end + kGoAway;
    last_refused_ = Clock::now();
    while (Clock::now() < std::min(end, last_refused_ + kMoment))
      changed_.wait_until(lock, std::min(end, last_refused_ + kMoment));
    refuse_at_ = Clock::now() + kGoAway;
    changed_.notify_all();
  }

 private:
  void add(const std::string& address, int calls) {
    counters_.under_way += calls;
    if ((of_address_[address] += calls) == 0) of_address_.erase(address);
  }
  const int most_calls_, most_of_address_;
  const std::size_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  Clock::time_point last_refused_, refuse_at_;  ///< at the end
  std::map<std::string, int> of_address_;       ///< calls under way
  std::size_t bytes_ = 0;
  Counters& counters_;
};

std::function<bool()> is_cancelled(const grpc::ServerContext& context) {
  return [&context] { return context.IsCancelled(); };
}

/// compat-lib's service.
class ServiceV1 final : public v1::CompatibilityService::Service {
 public:
  ServiceV1(JudgePool& judges, Gate& gate) : judges_(judges), gate_(gate) {}

  grpc::Status CheckCompatibility(grpc::ServerContext* context, const v1::CompatRequest* request,
                                  v1::Response* response) override {
    const auto visit = gate_.enter(*context, request->payload().size());
    if (!visit) return gate_.refusal();
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
    const auto visit = gate_.enter(*context, request->artifact().size());
    if (!visit) return gate_.refusal();
    fill(*judges_.check(request->artifact(), "artifact", is_cancelled(*context)), *request,
         *response);
    return grpc::Status::OK;
  }

  grpc::Status CheckBatch(grpc::ServerContext* context, const v2::CheckBatchRequest* request,
                          v2::CheckBatchResponse* response) override {
    const auto visit = gate_.enter(*context, request->ByteSizeLong());
    if (!visit) return gate_.refusal();
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
    const auto visit = gate_.enter(*context, 0);
    if (!visit) return gate_.refusal();
    const auto cancelled = is_cancelled(*context);
    for (;;) {
      v2::CheckRequest request;  // freed before the next wait
      if (!wait_for_client(*context, [&] { return stream->Read(&request); })) break;
      v2::CheckResponse response;
      {
        const auto one = gate_.enter(*context, request.artifact().size(), 0);
        if (!one) return gate_.refusal();
        fill(*judges_.check(request.artifact(), "artifact", cancelled), request, response);
      }
      if (!wait_for_client(*context, [&] { return stream->Write(response); })) break;
    }
    return context->IsCancelled() ? grpc::Status::CANCELLED : grpc::Status::OK;
  }
  /// Cancels streams that have waited for their client for longer.
  void cancel_idle(std::chrono::seconds idle) {
    const std::lock_guard lock(mutex_);
    for (const auto& [context, since] : waiting_)
      if (Clock::now() - since > idle) context->TryCancel();
  }

 private:
  bool wait_for_client(grpc::ServerContext& context, const std::function<bool()>& io) {
    {
      const std::lock_guard lock(mutex_);
      waiting_[&context] = Clock::now();
    }
    const bool done = io();
    const std::lock_guard lock(mutex_);
    waiting_.erase(&context);
    return done;
  }

  std::mutex mutex_;
  std::map<grpc::ServerContext*, Clock::time_point> waiting_;  ///< streams, and since when
  JudgePool& judges_;
  Gate& gate_;
};

/// Whether a server listens at the Unix socket `path`.
bool answers(const std::string& path) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  if (path.size() >= sizeof at.sun_path) return false;
  std::memcpy(at.sun_path, path.data(), path.size());
  const Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 ||
         errno == EAGAIN;
}

/// compat-lib's service, ours, health and reflection.
class Server {
 public:
  Server(JudgePool& judges, const Options& options)
      : options_(options), gate_(options, counters), one_(judges, gate_), two_(judges, gate_) {}
  ~Server() { stop(0); }

  /// On success the server answers calls.
  Result<void> listen() {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    grpc::ResourceQuota quota("compat-server");
    quota.Resize(kMostMemory).SetMaxThreads(std::max(8, options_.most_checks + 8));
    builder.SetResourceQuota(quota);
    builder.SetMaxReceiveMessageSize(static_cast<int>(options_.most_request_bytes));
    // A client that does not read its answers holds their threads; only its connection's maximum
    // age ends such calls. Other clients reconnect by themselves.
    const auto grace = std::chrono::milliseconds(
        std::max(kConnectionGrace, std::chrono::seconds(options_.timeout) + kBesideJudging));
    for (const auto& [name, value] : std::initializer_list<std::pair<const char*, int>>{
             {GRPC_ARG_MAX_CONCURRENT_STREAMS, 64},
             {GRPC_ARG_ALLOW_REUSEPORT, 0},
             {GRPC_ARG_KEEPALIVE_TIME_MS, 30'000},
             {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000},
             {GRPC_ARG_MAX_CONNECTION_IDLE_MS, 600'000},
             {GRPC_ARG_MAX_CONNECTION_AGE_MS, 60'000},
             {GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, static_cast<int>(grace.count())},
             {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000}})
      builder.AddChannelArgument(name, value);
    int port = 0;
    const bool is_unix = options_.listen.starts_with("unix:");
    // gRPC would take the place of a server that listens there.
    if (is_unix && answers(options_.listen.substr(5)))
      return fail_errno(options_.listen, "cannot listen", EADDRINUSE);
    builder.AddListeningPort(options_.listen, credentials(), &port);
    builder.RegisterService(&one_);
    builder.RegisterService(&two_);
    if (!kGrpcReflectsV1) builder.RegisterService(&reflection_);
    server_ = builder.BuildAndStart();
    if (server_) reflection_.set_server(server_.get());
    if (!server_ || (port == 0 && !is_unix))
      return fail(options_.listen, "cannot listen",
                  options_.tls_certificate.empty()
                      ? "the address is in use, or not permitted to this process's user"
                      : "the address is in use or not permitted to this process's user, or "
                        "--tls-key is not the key of --tls-cert");
    address_ = options_.listen;
    if (!is_unix) address_ = fmt::format("{}:{}", address_.substr(0, address_.rfind(':')), port);
    return {};
  }
  /// The listening address; with the actual port for `:0`.
  const std::string& address() const { return address_; }
  void cancel_idle_streams() { two_.cancel_idle(std::chrono::seconds(options_.stream_idle)); }
  /// Accepts no more calls, waits `seconds` for those in progress, then cancels them.
  ///
  /// Shutdown() tells clients to go (GOAWAY), and drops calls that no handler has yet, which their
  /// clients see as CANCELLED. So new calls are held before it, and refused when it has begun.
  void stop(int seconds) {
    if (!server_) return;
    static constexpr std::chrono::milliseconds kHold{1000};
    if (auto* health = server_->GetHealthCheckService()) health->SetServingStatus(false);
    const auto end = std::chrono::system_clock::now() + std::chrono::seconds(seconds);
    if (seconds > 0) gate_.hold(Clock::now() + kHold);
    server_->Shutdown(end);
    server_->Wait();
    reflection_.set_server(nullptr);
    server_.reset();
  }

  Counters counters;

 private:
  std::shared_ptr<grpc::ServerCredentials> credentials() {
    std::shared_ptr<grpc::ServerCredentials> out;
    if (options_.tls_certificate.empty()) {
      // Insecure credentials take no AuthMetadataProcessor; these do, and refuse other nodes.
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

  const Options options_;
  Gate gate_;
  ServiceV1 one_;
  ServiceV2 two_;
  ReflectionV1 reflection_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

/// The port after the last colon of `address`.
std::optional<std::uint16_t> port_of(const std::string& address) {
  const auto colon = address.rfind(':');
  if (colon == address.npos) return std::nullopt;
  std::uint16_t port = 0;
  const auto* end = address.data() + address.size();
  const auto [after, error] = std::from_chars(address.data() + colon + 1, end, port);
  if (error != std::errc() || after != end) return std::nullopt;
  return port;
}

/// The error for what is neither HOST:PORT nor unix:PATH; empty: it is valid.
std::string bad_address(const std::string& address) {
  if (address.starts_with("unix:")) {
    constexpr auto most = sizeof(sockaddr_un::sun_path) - 1;
    return address.size() > 5 + most ? fmt::format("the path is longer than {} bytes", most) : "";
  }
  return port_of(address) ? "" : "'" + address + "' is neither HOST:PORT nor unix:PATH";
}

/// The loopback address of `text`, such as 127.0.0.1:9090.
std::optional<sockaddr_in> metrics_address(const std::string& text) {
  const auto port = port_of(text);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  if (!port || !is_local(text) ||
      ::inet_pton(AF_INET, text.substr(0, text.rfind(':')).c_str(), &at.sin_addr) != 1)
    return std::nullopt;
  at.sin_port = htons(*port);
  return at;
}

void add_options(CLI::App& app, Options& o) {
  app.set_version_flag("--version", "compat-server (heddle) " HEDDLE_VERSION);
  set_usage(app, "compat-server [OPTIONS]");
  app.footer("Nothing of an artifact is ever executed. See compat-server(1).");
  app.add_option("--listen", o.listen,
                 "Where to listen (127.0.0.1:50051); beyond this node only with TLS")
      ->type_name("HOST:PORT|unix:PATH")
      ->check(bad_address);
  auto* cert =
      app.add_option("--tls-cert", o.tls_certificate, "Certificate chain, PEM")->type_name("FILE");
  auto* key = app.add_option("--tls-key", o.tls_key, "Its key, PEM")->type_name("FILE");
  cert->needs(key);
  key->needs(cert);
  app.add_option("--token-file", o.token_file,
                 "Clients must send the token in FILE; by default one is made for this user")
      ->type_name("FILE");
  app.add_option("--index", o.index.cache_dir, "Keep the index in DIR instead of the user's cache")
      ->type_name("DIR");
  app.add_option("--library-dir", o.index.library_dirs,
                 "Open libraries in and below DIR as well; may be repeated")
      ->type_name("DIR")
      ->allow_extra_args(false);
  app.add_option("--rootfs", o.index.root, "Answer for this root file system instead of this node")
      ->type_name("DIR");
  app.add_option("--user", o.user, "When started by root: become this user (nobody)")
      ->type_name("NAME");
  app.add_option("--max-request", o.most_request_bytes, "Largest request in bytes (8388608)")
      ->type_name("N")
      ->check(number_from(1024, 1 << 30));
  app.add_option("--max-checks", o.most_checks, "Calls at once; more are refused (64)")
      ->type_name("N")
      ->check(number_from(1, 10'000));
  app.add_option("--metrics", o.metrics, "Serve Prometheus metrics on this loopback address")
      ->check([](const std::string& text) {
        return metrics_address(text)
                   ? ""
                   : text + " is no IPv4 loopback address and port such as 127.0.0.1:9090";
      })
      ->type_name("HOST:PORT");
  app.add_option("--timeout", o.timeout, "Seconds that one check may take (10)")
      ->type_name("N")
      ->check(number_from(1, 3600));
  app.add_option("--stream-idle", o.stream_idle,
                 "Seconds that a stream may wait for its client (60)")
      ->type_name("N")
      ->check(number_from(1, 86'400));
  app.add_option("--grace", o.grace, "Seconds that calls in progress have left at the end (5)")
      ->type_name("N")
      ->check(number_from(0, 3600));
}

/// The default directory of the index: a unit's cache directory, or root's own; empty: the user's
/// cache, which judges find themselves.
std::string index_dir() {
  if (const char* directory = std::getenv("CACHE_DIRECTORY"); directory != nullptr) {
    // Systemd makes that of a dynamic user a link, which no index is kept behind.
    std::error_code error;
    const auto real = std::filesystem::canonical(directory, error);
    return error ? directory : real.string();
  }
  return ::geteuid() == 0 ? "/var/cache/heddle-compat" : "";
}

/// Makes `directory`, mode 0700, for `user`. An existing one is not changed: if `user` cannot write
/// to it, nothing is stored.
void make_directory_for(const std::string& directory, const passwd& user) {
  const auto place = std::filesystem::path(directory);
  const auto above = open_directory_to_write(place.parent_path());
  if (!above || ::mkdirat(above->get(), place.filename().c_str(), 0700) != 0) return;
  const Fd fd(::openat(above->get(), place.filename().c_str(),
                       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd) static_cast<void>(::fchown(fd.get(), user.pw_uid, user.pw_gid));
}

/// Becomes the user `name` when started by root: a client that compromises this process or a judge
/// gets no more than that user's rights. Call after secrets are read and before threads start.
void become_unprivileged(const std::string& name, const std::string& directory) {
  if (::geteuid() == 0) {
    const passwd* user = ::getpwnam(name.c_str());
    if (user == nullptr)
      throw Error(name, "no such user", "", "compat-server does not run as root: --user NAME");
    if (!directory.empty()) make_directory_for(directory, *user);
    // Before setresuid(), which takes the right to do this.
    for (unsigned long number = 0; ::prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0; ++number)
      static_cast<void>(::prctl(PR_CAPBSET_DROP, number, 0, 0, 0));
    // Fails in a user namespace without such a user. Root is unprivileged outside of it, and has no
    // rights inside without capabilities.
    if (::setgroups(0, nullptr) != 0 ||
        ::setresgid(user->pw_gid, user->pw_gid, user->pw_gid) != 0 ||
        ::setresuid(user->pw_uid, user->pw_uid, user->pw_uid) != 0) {
      if (errno != EINVAL && errno != EPERM)
        throw Error::from_errno(name, "cannot become this user");
      warn(Error::from_errno(name, "cannot become this user"));
    }
  }
  value_or_throw(drop_capabilities("compat-server"));
  value_or_throw(give_up_new_privileges("compat-server"));
}

/// Termination signals as a descriptor. Call before any thread starts: threads inherit the mask.
Fd signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&set, number);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  Fd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw Error::from_errno("signalfd", "cannot be made");
  return fd;
}

/// Fails for an address beyond this node without TLS.
Result<void> check_address(const Options& options) {
  if (!is_local(options.listen) && (options.tls_certificate.empty() || options.token.empty()))
    return fail_errno(options.listen, "will not listen beyond this node without TLS and a token",
                      EPERM, "--tls-cert, --tls-key and --token-file");
  return {};
}

/// The counters in Prometheus' text format 0.0.4.
std::string metrics_text(const JudgePool& judges, const Server& server) {
  const auto& i = judges.counters();
  const auto& s = server.counters;
  struct Metric {
    const char *name, *help;
    std::uint64_t value;
  };
  std::string out;
  for (const auto& [name, help, value] : std::initializer_list<Metric>{
           {"calls_total", "gRPC calls", s.calls},
           {"denied_total", "Calls without the token", s.denied},
           {"turned_away_total", "Calls beyond --max-checks", s.turned_away},
           {"under_way", "Calls under way", static_cast<std::uint64_t>(s.under_way.load())},
           {"checks_total", "Artifacts judged", i.checks},
           {"checks_kept_total", "Artifacts with a cached verdict", i.cached},
           {"incompatible_total", "Verdicts incompatible", i.incompatible},
           {"errors_total", "Artifacts without a verdict", i.errors},
           {"changes_total", "Changes of the node's libraries noticed", i.invalidations},
           {"generation", "State of the node", judges.generation()},
           {"killed_total", "Judges that died or were killed for lateness", i.killed},
           {"index_files", "Libraries indexed at start", judges.libraries()}})
    out += fmt::format(
        "# HELP heddle_compat_{0} {1}\n# TYPE heddle_compat_{0} {2}\nheddle_compat_{0} {3}\n", name,
        help, std::string_view(name).ends_with("_total") ? "counter" : "gauge", value);
  return out;
}

/// A listening socket at an address that metrics_address() takes.
Result<Fd> listen_for_metrics(const std::string& address) {
  const auto at = metrics_address(address).value();
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int one = 1;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::listen(fd.get(), 16) != 0)
    return fail_errno(address, "cannot serve metrics");
  return fd;
}

/// Answers one waiting peer with `page`, whatever its request; blocks for at most 100 ms.
void answer_metrics(int listener, const std::string& page) {
  const Fd peer(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer) return;
  // Closing a socket with unread data would reset the connection.
  pollfd ready{peer.get(), POLLIN, 0};
  std::array<char, 4096> request;
  if (::poll(&ready, 1, 100) == 1)
    static_cast<void>(::recv(peer.get(), request.data(), request.size(), 0));
  const auto text =
      "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n\r\n" +
      page;
  static_cast<void>(::send(peer.get(), text.data(), text.size(), MSG_NOSIGNAL));
  ::shutdown(peer.get(), SHUT_WR);
}

class Program {
 public:
  explicit Program(Options options) : options_(std::move(options)), signals_(signals()) {}

  int run() {
    read_secrets();
    value_or_throw(check_address(options_));
    auto& index = options_.index;
    // Another root is another trust domain: its facts are stored only in --index.
    if (index.cache_dir.empty() && index.root.empty()) index.cache_dir = index_dir();
    become_unprivileged(options_.user, index.cache_dir);
    say("indexing the libraries of " + (index.root.empty() ? "this node" : index.root));
    auto started = JudgePool::start(index, std::chrono::seconds(options_.timeout), signals_.get());
    if (!started && started.error().code() == ECANCELED) return exit_done;
    const auto pool = value_or_throw(std::move(started));
    Fd metrics;
    if (!options_.metrics.empty()) metrics = value_or_throw(listen_for_metrics(options_.metrics));
    Server server(*pool, options_);
    value_or_throw(server.listen());
    say(fmt::format("listening on {}, {} libraries indexed", server.address(), pool->libraries()));
    if (!own_token_file_.empty()) say(fmt::format("clients need the token in {}", own_token_file_));
    notify_ready();
    loop(*pool, server, metrics);
    say("ending");
    server.stop(options_.grace);
    return exit_done;
  }

 private:
  void read_secrets() {
    // Without both TLS would be off, silently.
    const auto read_pem = [](std::string& file, const char* begins, const char* what) {
      if (file.empty()) return;
      auto text = value_or_throw(read_file(file, std::size_t{1} << 20));
      if (text.find(begins) == text.npos)
        throw Error(file, std::string("holds no ") + what, "", "PEM");
      file = std::move(text);
    };
    read_pem(options_.tls_certificate, "-----BEGIN CERTIFICATE-----", "certificate");
    read_pem(options_.tls_key, "PRIVATE KEY-----", "private key");
    if (!options_.token_file.empty()) {
      options_.token = value_or_throw(read_token(options_.token_file));
      return;
    }
    // Clients on other nodes could not read a token file of this one.
    if (!is_local(options_.listen)) return;
    own_token_file_ = default_token_file();
    if (own_token_file_.empty())
      throw Error("--token-file", "missing: there is no place for a token");
    options_.token = value_or_throw(read_or_make_token(own_token_file_));
  }

  void loop(JudgePool& pool, Server& server, const Fd& metrics) {
    for (;;) {
      pollfd ready[] = {
          {signals_.get(), POLLIN, 0}, {pool.fd(), POLLIN, 0}, {metrics.get(), POLLIN, 0}};
      if (::poll(ready, 3, kTendEvery) < 0 && errno != EINTR)
        throw Error::from_errno("poll", "failed");
      pool.tend();
      server.cancel_idle_streams();
      if ((ready[2].revents & POLLIN) != 0)
        answer_metrics(metrics.get(), metrics_text(pool, server));
      if ((ready[0].revents & POLLIN) != 0) return;
    }
  }

  Options options_;
  std::string own_token_file_;  ///< empty: the user named one, or there is none
  Fd signals_;
};

int compat_server(int argc, const char* const* argv) {
  // gRPC's fork handlers are not needed: judges are started by fork and exec.
  ::setenv("GRPC_ENABLE_FORK_SUPPORT", "0", 0);
  ::setenv("GRPC_VERBOSITY", "NONE", 0);
  // Requests are megabytes: freed blocks go back to the system at once, and not to a thread's
  // arena.
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  ::mallopt(M_ARENA_MAX, 2);
  CLI::App app("Answer over gRPC whether this node has what an artifact's programs need.",
               "compat-server");
  Options options;
  add_options(app, options);
  forbid_empty_values(app);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  return Program(std::move(options)).run();
}

}  // namespace
}  // namespace heddle::compat

int main(int argc, char** argv) {
  return heddle::run_main("compat-server",
                          [&] { return heddle::compat::compat_server(argc, argv); });
}
