// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "resolver/build/container_map.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/map_writer.hpp"
#include "resolver/policy/decide.hpp"
#include "resolver/tool/commands.hpp"
#include "resolver/tool/container_json.hpp"

namespace heddle {
namespace {

/// A place to mount at, as the container's programs will name it.
Result<std::string> clean_mount_point(const std::string& path) {
  auto out = path;
  while (out.size() > 1 && out.ends_with('/')) out.pop_back();
  const auto padded = out + "/";
  if (!out.starts_with('/') || out == "/" || out.find('\0') != out.npos ||
      out.find("//") != out.npos || padded.find("/../") != padded.npos ||
      padded.find("/./") != padded.npos)
    return fail(path, "cannot be mounted at", "give an absolute path without '.' and '..'");
  return out;
}

}  // namespace

std::vector<MpiInstall> find_wanted_mpi(OsWorld& world, const std::string& wanted) {
  if (wanted == "none") return {};
  const char* path = std::getenv("PATH");
  FindMpi find{wanted == "auto" ? "" : wanted, path ? path : ""};
  auto found = value_or_throw(find_mpi(world, find));
  if (found.empty() && wanted != "auto")
    throw Error(wanted, "no MPI library found", "", "fs-resolve mpi lists this machine's");
  return found;
}

int run_container(const BuildCommand& command) {
  CachedFacts host_facts;
  OsWorld host(host_facts);
  CachedFacts image_facts(value_or_throw(facts_below(command.into)));
  auto inside = value_or_throw(OsWorld::below(image_facts, command.into));
  DecideOptions options;
  options.programs = command.programs;
  options.mount_point = value_or_throw(clean_mount_point(command.mount_point));
  options.library_path = command.library_path;
  options.mpi_wanted = command.mpi != "none";
  options.installs = find_wanted_mpi(host, command.mpi);
  for (const auto& root : command.roots)
    options.roots.push_back(value_or_throw(find_root(host, root)));
  auto decision = value_or_throw(decide(host, inside, options));
  for (auto& path : inside.asked()) decision.asked.push_back(std::move(path));
  std::sort(decision.asked.begin(), decision.asked.end());
  decision.asked.erase(std::unique(decision.asked.begin(), decision.asked.end()),
                       decision.asked.end());
  const auto json = container_json(decision);
  if (decision.outcome == Outcome::swap)
    value_or_throw(
        write_map(value_or_throw(build_container_map(host, decision, json)), command.out));
  if (command.json)
    fmt::print("{}", json);
  else
    print_container(json, command.into);
  if (decision.outcome != Outcome::incompatible) return exit_done;
  report(Error(command.into, "incompatible", decision.reason, decision.hint));
  return exit_no;
}

int run_explain(const ExplainCommand& command) {
  const auto reader = value_or_throw(MapReader::open(command.map));
  const auto content = value_or_throw(reader.read_all());
  for (const auto& [name, bytes] : content.generated) {
    if (name != ".heddle/container.json") continue;
    if (command.json)
      fmt::print("{}", bytes);
    else
      print_container(bytes, command.map);
    return exit_done;
  }
  report(Error(command.map, "was made for no container", "",
               "fs-resolve show explains it; build --into ROOTFS makes one for a container"));
  return exit_no;
}

}  // namespace heddle
