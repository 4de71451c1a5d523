// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "resolver/build/container_map.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/map_writer.hpp"
#include "resolver/policy/decide.hpp"
#include "resolver/tool/commands.hpp"

namespace heddle {
namespace {

using policy::decide;
using policy::DecideOptions;
using policy::Decision;
using policy::MpiSide;
using policy::Outcome;
using policy::Rule;
using policy::Side;

using Json = nlohmann::ordered_json;
constexpr const char* kFormat = "heddle-container";
constexpr int kVersion = 1;

const char* to_text(Outcome outcome) {
  switch (outcome) {
    case Outcome::swap:
      return "swap";
    case Outcome::nothing:
      return "nothing";
    default:
      return "incompatible";
  }
}

const char* to_text(Rule rule) {
  constexpr const char* kNames[] = {"mpi-stack", "only-host", "versions",
                                    "symbols",   "needs",     "glibc"};
  return kNames[static_cast<int>(rule)];
}

const char* to_text(Side side) { return side == Side::host ? "host" : "container"; }

Json to_json(const std::optional<MpiSide>& mpi, const char* path_key) {
  if (!mpi) return nullptr;
  return {{"family", mpi->family},
          {"version", to_json_text(mpi->version)},
          {"soname", to_json_text(mpi->soname)},
          {"abi", to_json_text(mpi->abi)},
          {path_key, to_json_text(mpi->path)}};
}

Json to_json(const std::vector<std::string>& lines) {
  Json out = Json::array();
  for (const auto& line : lines) out.push_back(to_json_text(line));
  return out;
}

std::string text(const Json& value, const char* key) {
  const auto at = value.find(key);
  return at != value.end() && at->is_string() ? escape_for_terminal(at->get<std::string>()) : "";
}

Json list(const Json& value, const char* key) {
  const auto at = value.find(key);
  return at != value.end() && at->is_array() ? *at : Json::array();
}

void print_mpi(const char* side, const Json& mpi, const char* path_key) {
  if (mpi.is_object())
    fmt::print("{} {} {}, {} ({})\n", side, text(mpi, "family"), text(mpi, "version"),
               text(mpi, path_key), text(mpi, "abi"));
}

std::string container_json(const Decision& decision) {
  Json out = {{"format", kFormat},
              {"version", kVersion},
              {"outcome", to_text(decision.outcome)},
              {"reason", to_json_text(decision.reason)},
              {"hint", to_json_text(decision.hint)},
              {"program", to_json(decision.programs)},
              {"mount_point", to_json_text(decision.mount_point)},
              {"mpi", to_json(decision.mpi, "host")},
              {"container_mpi", to_json(decision.container_mpi, "path")},
              {"glibc",
               {{"host", decision.host_glibc},
                {"container", decision.container_glibc},
                {"taken", to_text(decision.glibc)},
                {"why", to_json_text(decision.glibc_why)}}},
              {"interpreter",
               {{"path", to_json_text(decision.interpreter)},
                {"real_path", to_json_text(decision.interpreter_file)},
                {"taken", to_text(decision.glibc)}}}};
  Json& binds = out["binds"] = Json::array();
  for (const auto& bind : decision.binds)
    binds.push_back({{"source", to_json_text(bind.source)},
                     {"target", to_json_text(bind.target)},
                     {"why", to_json_text(bind.why)}});
  Json& changed = out["changed"] = Json::array();
  for (const auto& file : decision.changed)
    changed.push_back({{"host", to_json_text(file.library)},
                       {"was", to_json_text(file.was)},
                       {"now", to_json_text(file.now)}});
  Json& directories = out["directories"] = Json::array();
  for (const auto& directory : decision.directories)
    directories.push_back({{"source", to_json_text(directory.source)},
                           {"target", to_json_text(directory.target)},
                           {"exists", directory.exists},
                           {"why", to_json_text(directory.why)}});
  Json& environment = out["environment"] = Json::object();
  for (const auto& [name, value] : decision.environment) environment[name] = to_json_text(value);
  Json& verdicts = out["verdict"] = Json::array();
  for (const auto& verdict : decision.verdicts)
    verdicts.push_back({{"soname", to_json_text(verdict.soname)},
                        {"taken", to_text(verdict.taken)},
                        {"host", to_json_text(verdict.host)},
                        {"container", to_json_text(verdict.container)},
                        {"rule", to_text(verdict.rule)},
                        {"why", to_json_text(verdict.why)}});
  Json& loads = out["loads"] = Json::array();
  for (const auto& [soname, path] : decision.loads)
    loads.push_back({{"soname", to_json_text(soname)}, {"path", to_json_text(path)}});
  out["warnings"] = to_json(decision.warnings);
  out["asked"] = to_json(decision.asked);
  return out.dump(2) + "\n";
}

void print_container(const std::string& json, const std::string& name) {
  const auto value = Json::parse(json, nullptr, false);
  if (!value.is_object() || text(value, "format") != kFormat)
    throw Error(name, "is no decision for a container");
  if (value.value("version", Json()) != kVersion)
    throw Error(name, "is of another version", "", "make the map anew with this fs-resolve");
  const auto outcome = text(value, "outcome");
  fmt::print("{}{}{}\n", outcome, text(value, "reason").empty() ? "" : ": ", text(value, "reason"));
  print_mpi("host     ", value.value("mpi", Json()), "host");
  print_mpi("container", value.value("container_mpi", Json()), "path");
  if (outcome == "swap") {
    const auto glibc = value.value("glibc", Json::object());
    fmt::print("glibc     the {}'s: {}\n", text(glibc, "taken"), text(glibc, "why"));
    for (const auto& verdict : list(value, "verdict")) {
      const bool host = text(verdict, "taken") == "host";
      fmt::print("  {:<9} {:<24} {}\n            {}: {}\n", text(verdict, "taken"),
                 text(verdict, "soname"), text(verdict, host ? "host" : "container"),
                 text(verdict, "rule"), text(verdict, "why"));
    }
    fmt::print("mounted at {}\n", text(value, "mount_point"));
    for (const auto& bind : list(value, "binds"))
      fmt::print("  {} over {}: {}\n", text(bind, "source"), text(bind, "target"),
                 text(bind, "why"));
    for (const auto& directory : list(value, "directories"))
      fmt::print("  {} over {}: {}{}\n", text(directory, "source"), text(directory, "target"),
                 text(directory, "why"),
                 directory.value("exists", Json(false)) == true
                     ? ""
                     : "; the image has no such directory");
    for (const auto& file : list(value, "changed"))
      fmt::print("  {} looks into {}, not {}\n", text(file, "host"), text(file, "now"),
                 text(file, "was"));
    const auto environment = value.value("environment", Json::object());
    for (const auto& [variable, setting] : environment.items())
      if (setting.is_string())
        fmt::print("  or {}={}\n", escape_for_terminal(variable),
                   escape_for_terminal(setting.get<std::string>()));
  }
  for (const auto& line : list(value, "warnings"))
    if (line.is_string()) fmt::print("warning: {}\n", escape_for_terminal(line.get<std::string>()));
}

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
