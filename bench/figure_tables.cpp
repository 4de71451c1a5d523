// SPDX-License-Identifier: MIT
#include "bench/figure_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/fd.hpp"
#include "bench/demo_table.hpp"

namespace heddle::bench {
namespace {

namespace fs = std::filesystem;

struct Row {
  const char* run;
  const char* figure;
  const char* words;
  const char* format;
};
constexpr const char* kFaster = "{:.1f} times as fast";
constexpr const char* kTime = "{:.2f} x its time";
constexpr const char* kSeconds = "{:.2f} s";
constexpr const char* kAdded = "{:.2f} x what strace adds";

const std::map<std::string, std::vector<Row>> kTables = {
    {"start",
     {{"start", "start.star.500.stock_to_ours",
       "500 libraries in 500 directories, start against stock", kFaster},
      {"start", "start.random.1000.stock_to_ours",
       "1,000 libraries that need each other, against stock", kFaster},
      {"start", "start.star.500.ours_to_absolute",
       "500 libraries, against a program linked with absolute paths", kTime},
      {"start", "start.star.500.ours_to_flat",
       "500 libraries, against a local directory of the same files", kTime},
      {"start", "at_once_64.star.500.stock_to_ours",
       "64 processes at once, 500 libraries, against stock", kFaster},
      {"start", "mount.star.500.first_start_to_absolute",
       "the first start after the mount, absolute paths", kTime},
      {"start", "mount.star.1000.ready", "mounting 1,000 libraries", "{:.0f} ms"},
      {"start", "daemon.star.1000.resident", "the daemon's memory, 1,000 libraries", "{:.1f} MiB"},
      {"start", "resolve.star.500.cold_to_ldd",
       "resolving 500 libraries for the first time, against ldd", kTime},
      {"start", "resolve.star.500.warm_to_ldd", "resolving them again, against ldd", kTime}}},
    {"cold",
     {{"cold", "cold.server.500.200us.stock.seconds",
       "500 libraries by RPATH, the node keeps positive answers for a second", kSeconds},
      {"cold", "cold.server.500.200us.heddle.seconds", "the same, with heddle", kSeconds},
      {"cold", "cold.server.500.200us.bundle.seconds", "the same, from a bundle", kSeconds},
      {"cold", "cold.none.500.200us.stock.seconds", "500 libraries, the node keeps nothing",
       kSeconds},
      {"cold", "cold.none.500.200us.heddle.seconds", "the same, with heddle", kSeconds},
      {"cold", "cold.none.500.200us.bundle.seconds", "the same, from a bundle", kSeconds}}},
    {"supervision",
     {{"supervision", "supervision.start.500.to_unsupervised",
       "a start, against a mount whose daemon has no supervisor", kTime},
      {"start", "takeover.star.500.kill_to_answer",
       "from the kill of a worker to its follower's first answer", "{:.1f} ms"},
      {"supervision", "reload.500.longest_wait", "the longest a start waits for a reload",
       "{:.0f} ms"}}},
    {"stage",
     {{"stage", "stage.large.to_cp", "staging large files, against cp", kFaster},
      {"stage", "stage.small.to_cp", "staging small files, against cp", kFaster}}},
    {"record",
     {{"record", "record.rpath_500.pinned.added_to_strace_added",
       "start of 500 libraries by RPATH, pinned to one core", kAdded},
      {"record", "record.rpath_500.free.added_to_strace_added", "the same, not pinned", kAdded},
      {"record", "record.rpath_500.pinned.empty_added_to_strace_added",
       "pinned, an empty FUSE passthrough", kAdded},
      {"record", "record.git_status.pinned.added_to_strace_added",
       "`git status` of 8,500 files, pinned", kAdded},
      {"record", "record.git_status.pinned.empty_added_to_strace_added",
       "the same, an empty FUSE passthrough", kAdded},
      {"record", "record.scipy.pinned.added_to_strace_added", "python3, import scipy.stats, pinned",
       kAdded},
      {"record", "record.scipy.pinned.empty_added_to_strace_added",
       "the same, an empty FUSE passthrough", kAdded},
      {"record", "record.find.pinned.added_to_strace_added", "find /usr, pinned", kAdded},
      {"record", "record.find.pinned.empty_added_to_strace_added",
       "the same, an empty FUSE passthrough", kAdded},
      {"record", "record.numpy.free.added_to_strace_added", "python3, import numpy", kAdded},
      {"record", "record.build.free.added_to_strace_added", "a C project built", kAdded}}},
    {"diff",
     {{"diff", "diff.events.ours_to_gnu",
       "two traces of 1,000,000 events, 1 % edits, against GNU diff", kTime},
      {"diff", "diff.local.AVX2", "Smith-Waterman on one core", "{:.1e} cells a second"}}},
    {"container",
     {{"container", "container.runc.added", "runc, image decided on before", "{:.0f} ms"},
      {"container", "container.crun.added", "crun, image decided on before", "{:.0f} ms"},
      {"container", "container.runc.added_with_node", "runc, with `fs-mount --node`", "{:.0f} ms"},
      {"container", "container.crun.added_with_node", "crun, with `fs-mount --node`", "{:.0f} ms"},
      {"container", "container.runc.refused_at_the_latest", "runc, the longest refusal",
       "{:.0f} ms"},
      {"container", "container.crun.refused_at_the_latest", "crun, the longest refusal",
       "{:.0f} ms"},
      {"container", "container.runc.added_undecided", "runc, a new image", "{:.0f} ms"},
      {"container", "container.crun.added_undecided", "crun, a new image", "{:.0f} ms"},
      {"container", "container.runc.added_by_binds",
       "runc, bind mounts of the same files one by one", "{:.0f} ms"},
      {"container", "container.runc.read_by_4_containers_alone",
       "host files read by 4 ranks in 4 containers, each with its own mount", "{:.1f} MiB"},
      {"container", "container.runc.read_by_4_containers_with_node",
       "the same, with `fs-mount --node`", "{:.1f} MiB"}}},
};

constexpr std::string_view kBegin = "<!-- figures: ";
constexpr std::string_view kBeginEnd = " -->\n";
constexpr std::string_view kEnd = "<!-- end of figures -->";

const std::string& run_named(const KeptRuns& runs, const std::string& name) {
  const auto run = runs.find(name);
  if (run == runs.end()) throw Error(name, "no run of it is kept", "./dev bench, ./dev figures");
  return run->second;
}

std::string where_measured(const nlohmann::json& run, const char* command) {
  return fmt::format("\nMedians of one run of `{}`, on {} cores, Linux {}.\n", command,
                     run.at("cores").get<long>(), run.at("kernel").get<std::string>());
}

std::string demo_block(const KeptRuns& runs) {
  const auto run = nlohmann::json::parse(run_named(runs, "demo"));
  std::string out = "\n";
  std::string table = demo_table(run);
  for (std::size_t at = 0; at < table.size();) {
    const auto end = table.find('\n', at);
    out += "    " + table.substr(at, end - at + 1);
    at = end + 1;
  }
  return out + fmt::format("\nOne run of `./dev demo`, on {} cores, Linux {}.\n",
                           run.at("cores").get<long>(), run.at("kernel").get<std::string>());
}

}  // namespace

Result<KeptRuns> read_kept_runs(const std::string& directory) {
  KeptRuns out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".json") continue;
    auto text = read_file(entry.path());
    if (!text) return fail(std::move(text.error()));
    out.emplace(entry.path().stem(), std::move(*text));
  }
  if (error) return fail_errno(directory, "cannot list", error.value());
  return out;
}

std::string figure_table(const std::string& name, const KeptRuns& runs) {
  if (name == "demo") return demo_block(runs);
  const auto rows = kTables.find(name);
  if (rows == kTables.end()) throw Error(name, "no table has this name");
  std::string out = "| measured | |\n|---|---|\n";
  nlohmann::json run;
  for (const auto& row : rows->second) {
    run = nlohmann::json::parse(run_named(runs, row.run));
    for (const auto& figure : run.at("figures"))
      if (figure.at("name") == row.figure)
        out += fmt::format("| {} | {} |\n", row.words,
                           fmt::format(fmt::runtime(row.format), figure.at("value").get<double>()));
  }
  return out + where_measured(run, "./dev bench");
}

std::vector<std::string> table_names() {
  std::vector<std::string> out = {"demo"};
  for (const auto& [name, rows] : kTables) out.push_back(name);
  return out;
}

std::vector<std::string> missing_figures(const KeptRuns& runs) {
  std::vector<std::string> out;
  for (const auto& [name, rows] : kTables) {
    for (const auto& row : rows) {
      const auto run = nlohmann::json::parse(run_named(runs, row.run));
      const auto& figures = run.at("figures");
      if (std::none_of(figures.begin(), figures.end(),
                       [&](const auto& figure) { return figure.at("name") == row.figure; }))
        out.emplace_back(row.figure);
    }
  }
  return out;
}

std::string with_figures(const std::string& page, const KeptRuns& runs) {
  std::string out;
  std::size_t at = 0;
  for (auto mark = page.find(kBegin); mark != std::string::npos; mark = page.find(kBegin, at)) {
    const auto name = mark + kBegin.size();
    const auto name_end = page.find(kBeginEnd, name);
    const auto end = page.find(kEnd, name);
    if (name_end == std::string::npos || end == std::string::npos || end < name_end)
      throw Error("figures", "a mark has no end", page.substr(mark, 40));
    out += page.substr(at, name_end + kBeginEnd.size() - at);
    out += figure_table(page.substr(name, name_end - name), runs);
    at = end;
  }
  return out + page.substr(at);
}

}  // namespace heddle::bench
