// SPDX-License-Identifier: MIT
//
// The helper libexec/heddle/compat-client, which compat-check executes for `--server` and
// `--nodes`, so that compat-check does not link gRPC. stdin: the artifact; exit status:
// compat-check's; messages begin with the name in $HEDDLE_PROGRAM.
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include <compat_v2.grpc.pb.h>
#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/run_main.hpp"
#include "base/task_pool.hpp"
#include "base/try.hpp"
#include "compat/server/token_file.hpp"
#include "compat/verdict.hpp"

namespace heddle::compat {
namespace {

struct Options {
  std::string ca;  ///< PEM file of the servers' certificate authority; empty: no TLS
  std::string token_file;
  std::vector<std::string> servers;
  bool json = false, nodes = false;
  std::string token;      ///< empty: none
  std::string own_token;  ///< used when `token` is empty, for servers at local addresses only
};

constexpr std::chrono::milliseconds kConnectLimit{1500}, kAnswerLimit{30'000};

Verdict from_v2(v2::Verdict verdict) {
  return verdict == v2::COMPATIBLE ? Verdict::compatible
         : verdict == v2::DEGRADED ? Verdict::degraded
                                   : Verdict::incompatible;
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

Result<std::shared_ptr<grpc::Channel>> connect(const std::string& address, const Options& options) {
  auto credentials = grpc::InsecureChannelCredentials();
  if (!options.ca.empty()) {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = TRY(read_file(options.ca, std::size_t{1} << 20));
    credentials = grpc::SslCredentials(ssl);
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(16 << 20);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  auto channel = grpc::CreateCustomChannel(address, credentials, arguments);
  // A refused connection fails at once.
  const auto deadline = std::chrono::system_clock::now() + kConnectLimit;
  for (auto state = channel->GetState(true); state != GRPC_CHANNEL_READY;
       state = channel->GetState(true)) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN)
      return channel;  // the call fails, with the reason
    if (!channel->WaitForStateChange(state, deadline))
      return fail_errno(address, "cannot reach the compat-server", ETIMEDOUT);
  }
  return channel;
}

/// The verdict of the compat-server at `address` (HOST:PORT or unix:PATH). Fails, naming the
/// address, without a server within kConnectLimit, a verdict, or an answer within kAnswerLimit.
Result<Judgement> ask(const std::string& address, const std::string& artifact,
                      const Options& options) {
  const auto stub = v2::Compat::NewStub(TRY(connect(address, options)));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAnswerLimit);
  const auto& token =
      options.token.empty() && is_local(address) ? options.own_token : options.token;
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  v2::CheckRequest request;
  request.set_artifact(artifact);
  v2::CheckResponse response;
  const auto status = stub->Check(&context, request, &response);
  const auto& why = status.error_message();
  // gRPC's words for a failed connection: "failed to connect to all addresses; last error: ...".
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE)
    if (why.starts_with("failed to connect") || why.starts_with("DNS resolution failed")) {
      const auto last = why.rfind("last error: ");
      return fail(address, "cannot reach the compat-server",
                  last == why.npos ? why : why.substr(last + 12));
    }
  if (!status.ok()) return fail(address, "the compat-server refused", why);
  if (!response.error().empty()) return fail(address, "no verdict", response.error());
  return from_v2(response);
}

/// Asks all servers, TaskPool::kMostThreads of them at the same time; the results are in their
/// order.
std::vector<Result<Judgement>> ask_all(const std::string& artifact, const Options& options) {
  const auto& servers = options.servers;
  std::vector<Result<Judgement>> out(servers.size(), fail("", "not asked"));
  TaskPool pool;
  for (std::size_t i = 0; i < servers.size(); ++i)
    pool.add([&, i] { out[i] = ask(servers[i], artifact, options); });
  pool.wait();
  return out;
}

/// Prints each node's verdict. Result: 0 when one can run it, 1 when none can, 3 when none
/// answered.
int print_nodes(const std::vector<std::string>& names, const std::vector<Result<Judgement>>& said,
                bool json) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  std::string text;
  bool answered = false, some = false;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Json one = {{"node", to_json_text(names[i])}};
    if (said[i]) {
      answered = true;
      some = some || said[i]->verdict != Verdict::incompatible;
      one.update(Json::parse(to_json(*said[i])));
      text += fmt::format("{}\t{}", escape_for_terminal(names[i]), to_string(said[i]->verdict));
      if (!said[i]->reasons.empty()) text += "\t" + to_text(said[i]->reasons[0]);
      if (said[i]->reasons.size() > 1)
        text += fmt::format(" (and {} more)", said[i]->reasons.size() - 1);
      text += "\n";
    } else {
      one["error"] = said[i].error().message();
      report(said[i].error());
    }
    list.push_back(std::move(one));
  }
  if (json) text = Json{{"nodes", std::move(list)}}.dump(2) + "\n";
  value_or_throw(write_all(STDOUT_FILENO, text, "stdout"));
  return some ? exit_done : answered ? exit_no : exit_failure;
}

int run_client(Options o) {
  if (!o.token_file.empty()) {
    o.token = value_or_throw(read_token(o.token_file));
  } else if (const auto own = default_token_file(); !own.empty()) {
    // Made by a server of this user on this node; sent to no other.
    o.own_token = read_token(own).value_or("");
  }
  const auto artifact = value_or_throw(read_all(STDIN_FILENO, "artifact", std::size_t{64} << 20));
  auto said = ask_all(artifact, o);
  return o.nodes ? print_nodes(o.servers, said, o.json)
                 : print_judgement(value_or_throw(std::move(said[0])), o.json);
}

int compat_client(int argc, const char* const* argv) {
  ::setenv("GRPC_VERBOSITY", "NONE", 0);
  CLI::App app("Ask compat-servers about the artifact on standard input.", "compat-client");
  app.set_version_flag("--version", "compat-client (heddle) " HEDDLE_VERSION);
  Options o;
  app.add_flag("--json", o.json, "As JSON");
  app.add_flag("--nodes", o.nodes, "A line for each server");
  app.add_option("--ca", o.ca, "Authority of the servers' certificates");
  app.add_option("--token-file", o.token_file, "Token to send");
  app.add_option("SERVER", o.servers, "HOST:PORT or unix:PATH")->required();
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  return run_client(std::move(o));
}

}  // namespace
}  // namespace heddle::compat

int main(int argc, char** argv) {
  const char* name = std::getenv("HEDDLE_PROGRAM");
  return heddle::run_main(name != nullptr ? name : "compat-client",
                          [&] { return heddle::compat::compat_client(argc, argv); });
}
