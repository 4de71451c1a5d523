// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <set>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/oci_helper.hpp"
#include "base/output_file.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/tool/commands.hpp"
#include "resolver/tool/map_json.hpp"

namespace heddle {
namespace {

void print_program(const MapProgram& program, const MapContent& content) {
  fmt::print("program {}\n", escape_for_terminal(program.path));
  fmt::print("  view {}, {} libraries, {} failed probes without heddle\n",
             escape_for_terminal(content.views[program.view].name), program.libraries.size(),
             program.probes_unguided);
  if (!program.library_path.empty())
    fmt::print("  LD_LIBRARY_PATH {}\n", escape_for_terminal(program.library_path));
  for (const auto& library : program.libraries)
    fmt::print("  {} => {} [{}]\n", escape_for_terminal(library.requested_as),
               escape_for_terminal(content.objects[library.object].path), library.found_by);
  for (const auto& name : program.missing)
    fmt::print("  {} => not found\n", escape_for_terminal(name));
}

void print_object(const MapObject& object) {
  fmt::print("path    {}\n", escape_for_terminal(object.path));
  if (!object.soname.empty()) fmt::print("soname  {}\n", escape_for_terminal(object.soname));
  fmt::print("size    {}\nsha256  {}\n", object.stamp.size, object.hash.hex());
  for (const auto& needed : object.needed) fmt::print("needed  {}\n", escape_for_terminal(needed));
}

std::set<std::string> view_names(const MapContent& content) {
  std::set<std::string> out;
  for (const auto& view : content.views) out.insert(view.name);
  return out;
}

int wrong_view(const std::string& where, const std::string& what,
               const std::set<std::string>& names) {
  std::string hint = "--view " + escape_for_terminal(*names.begin());
  if (names.size() > 1)
    hint += fmt::format(", or one of {} more (fs-resolve show)", names.size() - 1);
  report(Error(where, what, "", hint));
  return exit_usage;
}

}  // namespace

int run_show(const ShowCommand& command) {
  const auto reader = value_or_throw(MapReader::open(command.map));
  const auto content = value_or_throw(reader.read_all());
  if (command.json) {
    fmt::print("{}\n", to_json(content).dump(2));
    return exit_done;
  }
  for (const auto& program : content.programs) print_program(program, content);
  for (const auto& view : content.views) {
    fmt::print("view {}: {} names\n", escape_for_terminal(view.name), view.names.size());
    for (const auto& [name, id] : view.names)
      fmt::print("  {} -> {}\n", escape_for_terminal(name),
                 escape_for_terminal(content.objects[id].path));
  }
  return exit_done;
}

int run_lookup(const LookupCommand& command) {
  const auto reader = value_or_throw(MapReader::open(command.map));
  const bool by_path = command.name.starts_with('/');
  auto found =
      by_path ? reader.lookup_path(command.name) : reader.lookup(command.view, command.name);
  if (!found && (by_path || found.error().code() != EINVAL)) throw std::move(found.error());
  if (!found || (!*found && !command.view.empty())) {
    const auto names = view_names(value_or_throw(reader.read_all()));
    if (!found) return wrong_view(command.map, "which view? the map has several", names);
    if (!names.contains(command.view)) return wrong_view(command.view, "no view of the map", names);
  }
  if (!*found) {
    if (command.json) fmt::print("null\n");
    report(Error(command.name, "not in the map"));
    return exit_no;
  }
  if (command.json)
    fmt::print("{}\n", to_json(**found).dump(2));
  else
    print_object(**found);
  return exit_done;
}

int run_push(const PushCommand& command) {
  // A map that no node could use is not spread.
  value_or_throw(value_or_throw(MapReader::open(command.map)).read_all());
  const auto bytes = value_or_throw(read_file(command.map));
  const auto title = command.map.substr(command.map.rfind('/') + 1);
  return value_or_throw(run_oci_client(
      "fs-resolve", {"push", "--type", kMapMediaType, "--title=" + title, "--", command.reference},
      bytes, STDOUT_FILENO));
}

int run_pull(const PullCommand& command) {
  auto file = value_or_throw(AtomicFile::create(command.out));
  const auto status = value_or_throw(run_oci_client(
      "fs-resolve", {"pull", "--type", kMapMediaType, "--", command.reference}, "", file.fd()));
  if (status != exit_done) return status;
  const auto map = MapReader::open(file.temp_path());
  const auto content = map ? map->read_all() : Result<MapContent>(fail(map.error()));
  if (!content) {
    // The temporary name means nothing to anyone.
    auto reason = content.error().message();
    if (reason.starts_with(file.temp_path() + ": ")) reason.erase(0, file.temp_path().size() + 2);
    throw Error(command.reference, "cannot be used", reason, "push it again");
  }
  value_or_throw(file.commit());
  return exit_done;
}

}  // namespace heddle
