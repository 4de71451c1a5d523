// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/atomic_file.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/oci_helper.hpp"
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

int wrong_view(const std::string& where, const std::string& what, const MapContent& content) {
  std::string hint;
  if (!content.views.empty()) hint = "--view " + escape_for_terminal(content.views[0].name);
  if (content.views.size() > 1)
    hint += fmt::format(", or one of {} more (fs-resolve show)", content.views.size() - 1);
  report(Error(where, what, "", hint));
  return exit_usage;
}

}  // namespace

MapContent read_map(const std::string& path) {
  return value_or_throw(value_or_throw(MapReader::open(path)).read_all());
}

int run_show(const Command& command) {
  const auto content = read_map(command.map);
  if (command.json) {
    print_json(to_json(content));
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

int run_lookup(const Command& command) {
  const auto content = read_map(command.map);
  const ObjectId* found = nullptr;
  if (command.name.starts_with('/')) {
    found = find_name(content.paths, command.name);
  } else {
    if (command.view.empty() && content.views.size() > 1)
      return wrong_view(command.map, "which view? the map has several", content);
    const auto view = std::ranges::find_if(content.views, [&](const MapView& one) {
      return command.view.empty() || one.name == command.view;
    });
    if (view != content.views.end())
      found = find_name(view->names, command.name);
    else if (!command.view.empty())
      return wrong_view(command.view, "no view of the map", content);
  }
  if (found == nullptr) {
    if (command.json) fmt::print("null\n");
    report(Error(command.name, "not in the map"));
    return exit_no;
  }
  if (command.json)
    print_json(to_json(content.objects[*found]));
  else
    print_object(content.objects[*found]);
  return exit_done;
}

int run_push(const Command& command) {
  read_map(command.map);  // one that no node could use is not spread
  const auto bytes = value_or_throw(read_file(command.map));
  const auto title = command.map.substr(command.map.rfind('/') + 1);
  return value_or_throw(run_oci_client(
      "fs-resolve", {"push", "--type", kMapMediaType, "--title=" + title, "--", command.reference},
      bytes, STDOUT_FILENO));
}

int run_pull(const Command& command) {
  auto file = value_or_throw(AtomicFile::create(command.map));
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
