// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/log.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "resolver/mpi/find_mpi.hpp"
#include "resolver/tool/commands.hpp"
#include "resolver/tool/map_json.hpp"
#include "resolver/tool/mpi_trace.hpp"

namespace heddle {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const std::vector<MpiFile>& files) {
  Json out = Json::array();
  for (const auto& file : files)
    out.push_back({{"soname", to_json_text(file.soname)}, {"path", to_json_text(file.path)}});
  return out;
}

Json to_json(const MpiInstall& install) {
  Json folders = Json::array();
  for (const auto& folder : install.plugin_folders)
    folders.push_back({{"path", to_json_text(folder.path)},
                       {"view_name", folder.view_name},
                       {"wanted_by", to_json_text(folder.wanted_by)},
                       {"beside", folder.beside},
                       {"environment", folder.environment},
                       {"plugins", folder.plugins.size()}});
  Json aliases = Json::array();
  for (const auto& name : install.aliases) aliases.push_back(to_json_text(name));
  Json missing = Json::array();
  for (const auto& name : install.missing) missing.push_back(to_json_text(name));
  return {{"family", install.identity.family},
          {"version", install.identity.version},
          {"abi", install.identity.abi},
          {"soname", to_json_text(install.library.soname)},
          {"path", to_json_text(install.library.path)},
          {"found_by", to_json_text(install.found_by)},
          {"mpi_symbols", install.mpi_symbols},
          {"aliases", std::move(aliases)},
          {"bindings", to_json(install.bindings)},
          {"closure", to_json(install.closure)},
          {"plugin_folders", std::move(folders)},
          {"missing", std::move(missing)}};
}

void print(const MpiInstall& install) {
  fmt::print("  soname    {} ({})\n", escape_for_terminal(install.library.soname),
             install.identity.abi.empty() ? "no MPI" : install.identity.abi);
  fmt::print("  found by  {}\n", escape_for_terminal(install.found_by));
  if (install.mpi_symbols != 0) fmt::print("  exports   {} MPI_ functions\n", install.mpi_symbols);
  for (const auto& file : install.bindings)
    fmt::print("  binding   {}\n", escape_for_terminal(file.path));
  fmt::print("  loads     {} libraries\n", install.closure.size());
  for (const auto& folder : install.plugin_folders)
    if (folder.plugins.empty())
      fmt::print("  data      {}\n", escape_for_terminal(folder.path));
    else
      fmt::print("  plugins   {} ({} files)\n", escape_for_terminal(folder.path),
                 folder.plugins.size());
  for (const auto& missing : install.missing)
    fmt::print("  missing   {}\n", escape_for_terminal(missing));
}

}  // namespace

int run_mpi(const MpiCommand& command) {
  CachedFacts facts;
  OsWorld world(facts);
  std::vector<MpiInstall> found;
  if (!command.root.empty()) {
    found.push_back(value_or_throw(find_root(world, command.root)));
  } else {
    const char* path = std::getenv("PATH");
    found = value_or_throw(find_mpi(world, {command.prefix, path ? path : ""}));
  }
  std::vector<TracedFile> traced;
  if (!command.program.empty() && !found.empty()) {
    const char* path = std::getenv("PATH");
    const auto program =
        std::filesystem::absolute(value_or_throw(find_program(command.program, path ? path : "")))
            .string();
    found = {found[value_or_throw(install_of(world, found, program))]};
    traced = value_or_throw(trace_two_ranks(world, found[0], program));
  }
  if (command.json) {
    Json out = Json::array();
    for (const auto& install : found) out.push_back(to_json(install));
    if (!command.program.empty() && !found.empty()) {
      Json& opened = out[0]["opened"] = Json::array();
      for (const auto& file : traced)
        opened.push_back({{"path", to_json_text(file.path)}, {"known", file.known}});
    }
    fmt::print("{}\n", out.dump(2));
  } else {
    for (const auto& install : found) {
      fmt::print("{} {} {}\n", install.identity.family.empty() ? "-" : install.identity.family,
                 install.identity.version.empty() ? "-" : install.identity.version,
                 escape_for_terminal(install.library.path));
      if (!command.list) print(install);
    }
    for (const auto& file : traced)
      fmt::print("  opened    {}{}\n", escape_for_terminal(file.path),
                 file.known ? "" : " (by this run only)");
  }
  if (found.empty())
    report(command.prefix.empty()
               ? Error("mpi", "no MPI library found", "",
                       "name its prefix: fs-resolve mpi --prefix DIR")
               : Error(command.prefix, "no MPI library found", "",
                       "name the folder that libmpi lies in, or the one above its lib"));
  return found.empty() ? exit_no : exit_done;
}

}  // namespace heddle
