// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/try.hpp"
#include "launch/pmix/commands.hpp"
#include "launch/pmix/pmix.hpp"
#include "launch/pmix/server_address.hpp"

namespace heddle::pmix {
namespace {

/// In a child process: connects, and asks.
Result<std::string> ask_server(const QueryOptions& options, const std::string& uri) {
  leave_pmix_job();
  limit_memory();
  silence_libpmix();
  Infos infos;
  infos.text(PMIX_SERVER_URI, uri).number(PMIX_CONNECT_MAX_RETRIES, 1);
  pmix_proc_t self{};
  if (const auto status = PMIx_tool_init(&self, infos.data(), infos.size()); !is_done(status))
    return fail_pmix(options.server, "cannot connect", status,
                     "has the launcher ended, or is it another user's?");
  std::vector<std::string> names{options.name_space};
  if (options.name_space.empty()) names = TRY(query_namespaces(options.server));
  auto jobs = nlohmann::json::array();
  std::size_t count = 0;
  for (const auto& name : names) {
    const auto ranks = TRY(query_ranks(options.server, name));
    count += ranks.size();
    if (count > kMostRanks)
      return fail(options.server, "the server names more ranks than any job has",
                  fmt::format("over {}", kMostRanks));
    jobs.push_back({{"namespace", to_json_text(name)},
                    {"ranks", nlohmann::json::parse(to_json(name, ranks))}});
  }
  // Finalizing waits for the server.
  return jobs.dump();
}

}  // namespace

int run_query(const QueryOptions& options) {
  const auto uri = value_or_throw(server_uri(options.server));
  auto text = text_from_child(std::chrono::seconds(options.seconds),
                              [&] { return ask_server(options, uri); });
  if (!text && text.error().code() == ETIMEDOUT)
    throw Error(options.server, "the server does not answer", fmt::format("{} s", options.seconds),
                "--timeout SECONDS waits longer; another user's server may never answer");
  if (!text && text.error().code() == ECHILD)
    throw Error(options.server, "libpmix failed on the server's answer", text.error().message());
  const auto jobs = nlohmann::json::parse(value_or_throw(std::move(text)));
  if (options.json) {
    fmt::print("{}\n", jobs.dump(2));
    return exit_done;
  }
  for (const auto& job : jobs) {
    const auto name = escape_for_terminal(job["namespace"].get<std::string>());
    fmt::print("{}\n", name);
    fmt::print("  {:>6} {:>8} {:<20} {}\n", "rank", "pid", "host", "program");
    for (const auto& rank : job["ranks"])
      fmt::print("  {:>6} {:>8} {:<20} {}\n", rank["rank"].get<std::int64_t>(),
                 rank["pid"].get<std::int64_t>(),
                 escape_for_terminal(rank["host"].get<std::string>()),
                 escape_for_terminal(rank["program"].get<std::string>()));
  }
  return exit_done;
}

}  // namespace heddle::pmix
