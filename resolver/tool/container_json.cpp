// SPDX-License-Identifier: MIT
#include "resolver/tool/container_json.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "base/result.hpp"

namespace heddle {
namespace {

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

}  // namespace

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
  Json& folders = out["directories"] = Json::array();
  for (const auto& folder : decision.folders)
    folders.push_back({{"source", to_json_text(folder.source)},
                       {"target", to_json_text(folder.target)},
                       {"exists", folder.exists},
                       {"why", to_json_text(folder.why)}});
  Json& environment = out["environment"] = Json::object();
  for (const auto& [name, value] : decision.environment) environment[name] = to_json_text(value);
  Json& verdicts = out["verdict"] = Json::array();
  for (const auto& verdict : decision.verdicts)
    verdicts.push_back({{"soname", to_json_text(verdict.soname)},
                        {"taken", to_text(verdict.taken)},
                        {"host", to_json_text(verdict.host)},
                        {"container", to_json_text(verdict.container)},
                        {"rule", verdict.rule},
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
    for (const auto& folder : list(value, "directories"))
      fmt::print(
          "  {} over {}: {}{}\n", text(folder, "source"), text(folder, "target"),
          text(folder, "why"),
          folder.value("exists", Json(false)) == true ? "" : "; the image has no such folder");
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

}  // namespace heddle
