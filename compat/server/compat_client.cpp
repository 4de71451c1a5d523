// SPDX-License-Identifier: MIT
#include "compat/server/compat_client.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "compat/server/ask.hpp"
#include "compat/server/token_file.hpp"

namespace heddle {
namespace {

struct Options {
  std::string ca, token_file;
  std::vector<std::string> servers;
  bool json = false, nodes = false;
};

int print_one(const Result<compat::Judgement>& said, bool json) {
  if (!said) throw said.error();
  value_or_throw(write_all(
      STDOUT_FILENO, json ? compat::to_json(*said, 2) + "\n" : compat::to_lines(*said), "stdout"));
  return said->verdict == compat::Verdict::incompatible ? exit_no : exit_done;
}

/// Who can run it. Result: 0 when somebody can, 1 when nobody can, 3 when nobody answered.
int print_nodes(const std::vector<std::string>& names,
                const std::vector<Result<compat::Judgement>>& said, bool json) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  std::string text;
  bool answered = false, some = false;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Json one = {{"node", to_json_text(names[i])}};
    if (said[i]) {
      answered = true;
      some = some || said[i]->verdict != compat::Verdict::incompatible;
      one.update(Json::parse(compat::to_json(*said[i])));
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

int run_client(const Options& o) {
  compat::AskOptions ask;
  ask.ca = o.ca;
  if (!o.token_file.empty()) {
    ask.token = value_or_throw(compat::read_token(o.token_file));
  } else if (const auto own = compat::default_token_file(); !own.empty()) {
    // A server of this user on this node made it. No other server gets it.
    ask.own_token = compat::read_token(own).value_or("");
  }
  const auto artifact = value_or_throw(read_all(STDIN_FILENO, "artifact", std::size_t{64} << 20));
  const auto said = compat::ask_all(o.servers, artifact, ask);
  return o.nodes ? print_nodes(o.servers, said, o.json) : print_one(said[0], o.json);
}

}  // namespace

int compat_client(int argc, const char* const* argv) {
  set_program_name("compat-check");
  ::setenv("GRPC_VERBOSITY", "NONE", 0);
  CLI::App app("Ask compat-servers about the artifact on standard input.", "compat-client");
  Options o;
  app.add_flag("--json", o.json, "As JSON");
  app.add_flag("--nodes", o.nodes, "A line for each server");
  app.add_option("--ca", o.ca, "Authority of the servers' certificates");
  app.add_option("--token-file", o.token_file, "Token to show");
  app.add_option("SERVER", o.servers, "HOST:PORT or unix:PATH")->required();
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  try {
    return run_client(o);
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    report(Error("", error.what()));
  }
  return exit_failure;
}

}  // namespace heddle
