// SPDX-License-Identifier: MIT
//
// The program compat-check.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <memory>

#include "base/child.hpp"
#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/run_main.hpp"
#include "base/run_program.hpp"
#include "compat/checker.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "ship/registry/oci_helper.hpp"

namespace heddle {
namespace {

struct CheckOptions {
  std::string artifact, map, rootfs, server, ca, token_file;
  std::vector<std::string> nodes;
  unsigned port = 50051;
  bool json = false;
};

/// Whether `text` names a port: `host:1`, `[::1]:1`, not `::1`.
bool has_port(const std::string& text) {
  const auto colon = text.rfind(':');
  return colon != text.npos && colon > 0 &&
         (text[0] == '[' ? text[colon - 1] == ']' : text.find(':') == colon);
}

/// The error for a name whose port is none; empty: it has a valid one, or none.
std::string bad_port(const std::string& text) {
  if (!has_port(text)) return {};
  std::uint16_t port = 0;
  const auto* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data() + text.rfind(':') + 1, end, port);
  return error == std::errc() && after == end && port > 0 ? ""
                                                          : text + " has no port from 1 to 65535";
}

std::string server_of(const std::string& node, unsigned port) {
  if (has_port(node)) return node;
  const bool bare_ipv6 = node[0] != '[' && node.find(':') != node.npos;
  return fmt::format("{}:{}", bare_ipv6 ? "[" + node + "]" : node, port);
}

void add_options(CLI::App& app, CheckOptions& o) {
  app.set_version_flag("--version", "compat-check (heddle) " HEDDLE_VERSION);
  set_usage(app, "compat-check [OPTIONS] ARTIFACT");
  app.footer(
      "Exit status: 0 compatible or degraded, 1 incompatible, 2 usage, 3 no verdict.\n"
      "See compat-check(1).");
  auto* map =
      app.add_option("--map", o.map, "Check against the libraries of this map")->type_name("MAP");
  app.add_option("--rootfs", o.rootfs, "Check against this root file system instead of this node")
      ->type_name("DIR")
      ->excludes(map);
  auto* server =
      app.add_option("--server", o.server, "Ask the compat-server there")
          ->type_name("HOST:PORT|unix:PATH")
          ->excludes(map)
          ->excludes("--rootfs")
          ->check([](const std::string& text) {
            if (text.starts_with("unix:")) return std::string();
            return has_port(text) ? bad_port(text) : text + " is neither HOST:PORT nor unix:PATH";
          });
  auto* nodes =
      app.add_option("--nodes", o.nodes, "Ask the compat-servers of these nodes which can run it")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->type_name("N1,N2,...")
          ->check(bad_port)
          ->excludes(map)
          ->excludes("--rootfs")
          ->excludes(server);
  app.add_option("--server-port", o.port, "Port of names without one (50051)")
      ->type_name("PORT")
      ->needs(nodes)
      ->check(number_from(1, 65535));
  auto* ca = app.add_option("--ca", o.ca,
                            "Talk TLS, with servers whose certificates this authority signed")
                 ->type_name("FILE");
  auto* token = app.add_option("--token-file", o.token_file, "Send the token in FILE to the server")
                    ->type_name("FILE");
  app.add_flag("--json", o.json, "Print the verdict and its reasons as JSON");
  app.add_option("ARTIFACT", o.artifact,
                 "What compat-gen wrote: a file, - for standard input, or oci:REF in a registry")
      ->required()
      ->type_name("");
  // Without a server these do nothing, and this node's verdict would pass for the server's.
  app.callback([=] {
    for (const auto* option : {ca, token})
      if (option->count() > 0 && server->count() + nodes->count() == 0)
        throw CLI::ValidationError(option->get_name(), "needs --server or --nodes");
  });
}

/// The artifact at `oci:REF`. When the helper fails, it has reported why, and the program ends.
std::string pull_text(const std::string& reference) {
  const Fd memory = value_or_throw(memory_file(""));
  const auto status = value_or_throw(run_oci_client(
      "compat-check", {"pull", "--type", kArtifactMediaType, "--", reference}, "", memory.get()));
  if (status != exit_done) std::exit(status);
  ::lseek(memory.get(), 0, SEEK_SET);
  return value_or_throw(read_all(memory.get(), reference, compat::kMaxArtifact));
}

std::string read_text(const std::string& path) {
  if (path.starts_with("oci:")) return pull_text(path.substr(4));
  return value_or_throw(path == "-" ? read_all(STDIN_FILENO, "stdin", compat::kMaxArtifact)
                                    : read_file(path, compat::kMaxArtifact));
}

/// Executes the gRPC client, with the artifact as stdin. Returns by throwing only.
[[noreturn]] void ask_servers(const CheckOptions& o, const std::string& text) {
  std::vector<std::string> argv = {"compat-client"};
  if (o.json) argv.emplace_back("--json");
  if (!o.nodes.empty()) argv.emplace_back("--nodes");
  if (!o.ca.empty()) argv.push_back("--ca=" + o.ca);
  if (!o.token_file.empty()) argv.push_back("--token-file=" + o.token_file);
  argv.emplace_back("--");
  if (!o.server.empty()) argv.push_back(o.server);
  for (const auto& node : o.nodes) argv.push_back(server_of(node, o.port));
  const Fd memory = value_or_throw(memory_file(text));
  if (::dup2(memory.get(), STDIN_FILENO) < 0) throw Error::from_errno("memfd", "cannot pass it on");
  const auto helper = value_or_throw(own_program_dir()) + "/../libexec/heddle/compat-client";
  ::setenv("HEDDLE_PROGRAM", "compat-check", 1);
  ::execv(helper.c_str(), to_c_array(argv).data());
  if (errno == ENOENT)
    throw Error("compat-client", "is not installed", "it is apart, because it needs gRPC",
                "install the package heddle-server, or build heddle from its sources");
  throw Error::from_errno(helper, "cannot be started");
}

std::unique_ptr<compat::Target> open_target(const CheckOptions& o, FactsSource& facts) {
  if (!o.map.empty())
    return std::make_unique<compat::MapTarget>(
        value_or_throw(compat::MapTarget::open(facts, o.map)));
  return std::make_unique<compat::NodeTarget>(value_or_throw(compat::NodeTarget::open(
      facts, o.rootfs, o.rootfs.empty() ? search_options_from_environment() : SearchOptions{})));
}

int run_check(const CheckOptions& o) {
  const auto text = read_text(o.artifact);
  const auto artifact =
      value_or_throw(compat::parse_artifact(text, o.artifact == "-" ? "stdin" : o.artifact));
  if (!o.server.empty() || !o.nodes.empty()) ask_servers(o, text);
  CachedFacts facts(value_or_throw(facts_below(o.rootfs)));
  const auto target = open_target(o, facts);
  return compat::print_judgement(value_or_throw(compat::Checker(*target).check(artifact)), o.json);
}

int compat_check(int argc, const char* const* argv) {
  CLI::App app("Say whether a machine has what an artifact's programs need.", "compat-check");
  CheckOptions options;
  add_options(app, options);
  forbid_empty_values(app);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  return run_check(options);
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run_main("compat-check", [&] { return heddle::compat_check(argc, argv); });
}
