// SPDX-License-Identifier: MIT
#include "launch/allocation.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <set>
#include <sstream>
#include <vector>

#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/run_program.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "resolver/map/map_reader.hpp"

namespace heddle::launch {
namespace {

using Words = std::vector<std::string>;
constexpr std::string_view kHere = "heddle-node ";
constexpr const char* kMostSeconds = "60";
/// Should srun not end then.
constexpr std::chrono::seconds kCheckTime{90};
constexpr std::chrono::seconds kNamesTime{10};

/// Whether the job's own shell, or batch script, runs this: not a task, which may start no step.
long nodes_of_job() {
  const char* count = std::getenv("SLURM_JOB_NUM_NODES");
  const char* step = std::getenv("SLURM_STEP_ID");
  // salloc's interactive step: slurm.h, SLURM_INTERACTIVE_STEP.
  const bool is_task = step && std::string_view(step) != "4294967290";
  return std::getenv("SLURM_JOB_ID") && count && !is_task ? std::strtol(count, nullptr, 10) : 0;
}

Result<void> check_nodes(const std::string& program, long count) {
  const auto number = std::to_string(count);
  // As fs-ship's step: beside running steps, without a share of what they hold.
  const Words words = {"timeout",
                       kMostSeconds,
                       "srun",
                       "--overlap",
                       "--mem=0",
                       "--mpi=none",
                       "--quiet",
                       "--no-kill",
                       "--kill-on-bad-exit=0",
                       "--ntasks-per-node=1",
                       "-N",
                       number,
                       "-n",
                       number,
                       program,
                       kCheckOption};
  const ReadOptions quietly{.limit = kCheckTime, .messages = Messages::dropped};
  const auto timeout = TRY(find_program(words[0]));
  const auto text = TRY(run_and_read(timeout, words, quietly)).out;
  std::set<std::string> here;
  std::string wrong;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(kHere)) continue;
    std::istringstream parts(line.substr(kHere.size()));
    std::string node, why;
    parts >> node;
    std::getline(parts >> std::ws, why);
    here.insert(node);
    if (!why.empty()) wrong += fmt::format("{}{}: {}", wrong.empty() ? "" : "; ", node, why);
  }
  if (!wrong.empty()) return fail("", wrong);
  if (static_cast<long>(here.size()) == count) return {};
  std::vector<std::string> missing;
  const char* list = std::getenv("SLURM_JOB_NODELIST");
  for (auto& name : slurm_nodes(list ? list : ""))
    if (!here.contains(name.substr(0, name.find('.')))) missing.push_back(std::move(name));
  return fail(program, "cannot be executed on all nodes",
              fmt::format("{} of {} do not answer{}{}", count - static_cast<long>(here.size()),
                          count, missing.empty() ? "" : ": ", fmt::join(missing, ",")),
              "install heddle at one path of all nodes");
}

/// A failure is reported only: the bundle's own path does for nodes that have no copy.
Result<std::string> ship_bundle(const std::string& bin, const std::string& map,
                                const std::string& engine) {
  const auto program = bin + "/fs-ship";
  auto path =
      TRY(run_and_read(program, {program, "-q", "--via", engine, "--", map}, {.limit = kNoLimit}))
          .out;
  while (path.ends_with('\n')) path.pop_back();
  if (path.empty()) return fail(map, "cannot be copied to the nodes");
  return path;
}

}  // namespace

std::vector<std::string> slurm_nodes(const std::string& list) {
  const auto scontrol = find_program("scontrol");
  const auto names = scontrol ? run_and_read(*scontrol, {"scontrol", "show", "hostnames", list},
                                             {.limit = kNamesTime, .messages = Messages::dropped})
                              : tl::unexpected(scontrol.error());
  std::istringstream words(names ? names->out : "");
  return {std::istream_iterator<std::string>(words), {}};
}

Result<void> prepare_nodes(LaunchSettings& settings, const std::string& ship, bool dry_run) {
  bool is_bundle = false;
  if (!settings.map.empty()) {
    const Fd file = TRY(open_file(settings.map, O_RDONLY));
    is_bundle = TRY(MapReader::open(file.get(), settings.map)).bundle() != nullptr;
  }
  const long count = nodes_of_job();
  if (count < 2 || dry_run) return {};
  const std::string bin = TRY(own_program_dir());
  TRY(check_nodes(bin + "/fs-launch", count));
  if (!is_bundle || ship == "no") return {};
  auto path = ship_bundle(bin, settings.map, ship);
  if (path)
    settings.map = std::move(*path);
  else
    warn(path.error());
  return {};
}

int check_node() {
  const auto library = audit_library_path();
  const auto node = host_name();
  const auto line =
      fmt::format("{}{}{}\n", kHere, node.substr(0, node.find('.')),
                  library ? "" : " " + escape_for_terminal(library.error().message()));
  value_or_throw(write_all(STDOUT_FILENO, line, "stdout"));
  return exit_done;
}

}  // namespace heddle::launch
