// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
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
  for (const auto& library : program.libraries)
    fmt::print("  {} => {} [{}]\n", escape_for_terminal(library.requested_as),
               escape_for_terminal(content.objects[library.object].path), library.found_by);
  for (const auto& name : program.missing)
    fmt::print("  {} => not found\n", escape_for_terminal(name));
}

void print_object(const MapObject& object) {
  fmt::print("path    {}\n", escape_for_terminal(object.path));
  if (!object.soname.empty()) fmt::print("soname  {}\n", escape_for_terminal(object.soname));
  fmt::print("size    {}\nxxh3    {}\n", object.stamp.size, object.hash.hex());
  for (const auto& needed : object.needed) fmt::print("needed  {}\n", escape_for_terminal(needed));
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
  auto found = command.name.starts_with('/')
                   ? value_or_throw(reader.lookup_path(command.name))
                   : value_or_throw(reader.lookup(command.view, command.name));
  if (!found) {
    report(Error(command.name, "not in the map"));
    return exit_no;
  }
  if (command.json)
    fmt::print("{}\n", to_json(*found).dump(2));
  else
    print_object(*found);
  return exit_done;
}

}  // namespace heddle
