// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "resolver/build/app_inputs.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/tool/commands.hpp"

namespace heddle {
namespace {

Closure explained(const std::string& app) {
  AppInputs inputs;
  value_or_throw(add_app(inputs, app));
  if (inputs.roots.empty()) throw Error(app, "nothing to resolve", "static program");
  std::error_code error;
  if (std::filesystem::is_directory(app, error))
    throw Error(app, "is a directory", "", "name one program of it");
  // Last: a script's interpreter may follow env(1), or an interpreter that is a script.
  const auto& root = inputs.roots.back().path;
  ResolverSession session;
  const auto file = value_or_throw(session.world.facts(root));
  const auto loader = value_or_throw(
      read_loader_profile(session.world, file.elf.interp.value_or(LoaderProfile{}.interpreter)));
  auto options = search_options_from_environment();
  options.explain = true;
  return value_or_throw(resolve(session.world, loader, root, options));
}

Json to_json(const Closure& closure, const Search& search) {
  Json probes = Json::array();
  for (const auto& probe : search.probes)
    probes.push_back({{"path", probe.path},
                      {"by", to_string(probe.by)},
                      {"of", closure.objects[probe.searched_by].path},
                      {"outcome", to_string(probe.outcome)}});
  return {{"name", search.name},
          {"needed_by", closure.objects[search.requester].path},
          {"found", search.result ? library_json(closure, *search.result) : Json()},
          {"probes", std::move(probes)}};
}

void print(const Closure& closure, const Search& search) {
  fmt::print("{}, needed by {}\n", escape_for_terminal(search.name),
             escape_for_terminal(closure.objects[search.requester].path));
  for (const auto& probe : search.probes) {
    std::string whose;
    if (probe.by == FoundBy::rpath || probe.by == FoundBy::runpath)
      whose = " of " + escape_for_terminal(closure.objects[probe.searched_by].path);
    fmt::print("  {:<17} {}  [{}{}]\n", to_string(probe.outcome), escape_for_terminal(probe.path),
               to_string(probe.by), whose);
  }
  if (!search.result) fmt::print("  not found\n");
}

/// Prints why a name was not searched: its library was loaded under another name or by another
/// library.
bool print_loaded_before(const Closure& closure, const std::string& name) {
  for (const auto& object : closure.objects) {
    if (std::ranges::find(object.names, name) == object.names.end()) continue;
    fmt::print("{} is {}: loaded before as {}, so no search is made\n", escape_for_terminal(name),
               escape_for_terminal(object.path), escape_for_terminal(object.requested_as));
    return true;
  }
  return false;
}

void print_tree(const Closure& closure, std::size_t index, const std::string& indent, bool paths,
                std::vector<bool>& shown) {
  const auto& needs = closure.objects[index].needs;
  std::vector<std::string> missing;
  for (const auto& lost : closure.missing)
    if (lost.needed_by == index) missing.push_back(lost.name);
  for (std::size_t i = 0; i < needs.size() + missing.size(); ++i) {
    const bool last = i + 1 == needs.size() + missing.size();
    const std::string branch = indent + (last ? "└── " : "├── ");
    if (i >= needs.size()) {
      fmt::print("{}{} not found\n", branch, escape_for_terminal(missing[i - needs.size()]));
      continue;
    }
    const LoadedObject& object = closure.objects[needs[i]];
    const bool again = shown[needs[i]];
    const std::string& label = paths ? object.path : object.requested_as;
    fmt::print("{}{} [{}]{}\n", branch, escape_for_terminal(label), to_string(object.found_by),
               again && !object.needs.empty() ? " (above)" : "");
    if (again) continue;
    shown[needs[i]] = true;
    print_tree(closure, needs[i], indent + (last ? "    " : "│   "), paths, shown);
  }
}

}  // namespace

int run_why(const Command& command) {
  const auto closure = explained(command.app);
  Json out = Json::array();
  bool any = false;
  bool found = true;
  for (const auto& search : closure.searches) {
    if (!command.name.empty() && search.name != command.name) continue;
    any = true;
    found = found && search.result.has_value();
    if (command.json)
      out.push_back(to_json(closure, search));
    else
      print(closure, search);
  }
  if (command.json) print_json(std::move(out));
  if (any || command.name.empty()) {
    if (!command.json)
      fmt::print("{}{} opens and {} stats fail before the program starts\n",
                 command.name.empty() ? "" : "for all its libraries ", closure.probes.opens_failed,
                 closure.probes.stats_failed);
    return found ? exit_done : exit_no;
  }
  if (!command.json && print_loaded_before(closure, command.name)) return exit_done;
  report(Error(command.name, "no library of this program"));
  return exit_no;
}

int run_tree(const Command& command) {
  const auto closure = explained(command.app);
  if (command.json) {
    Json out = {{"program", closure.objects[0].path},
                {"libraries", Json::array()},
                {"missing", Json::array()}};
    for (std::size_t i = 1; i < closure.objects.size(); ++i)
      out["libraries"].push_back(library_json(closure, i));
    for (const auto& lost : closure.missing)
      out["missing"].push_back({{"soname", lost.name},
                                {"needed_by", closure.objects[lost.needed_by].path},
                                {"reason", lost.reason}});
    print_json(std::move(out));
  } else {
    fmt::print("{}\n", escape_for_terminal(closure.objects[0].path));
    std::vector<bool> shown(closure.objects.size(), false);
    shown[0] = true;
    print_tree(closure, 0, "", command.paths, shown);
  }
  return closure.missing.empty() ? exit_done : exit_no;
}

}  // namespace heddle
