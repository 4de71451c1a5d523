// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>

#include "base/atomic_file.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "resolver/build/app_inputs.hpp"
#include "resolver/build/map_builder.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/map/map_writer.hpp"
#include "resolver/tool/commands.hpp"
#include "resolver/tool/map_json.hpp"

namespace heddle {
namespace {

void tell_missing(const BuildResult& built) {
  for (const auto& missing : built.missing) {
    const bool direct = missing.needed_by == missing.program;
    const auto who = direct ? std::string() : escape_for_terminal(missing.needed_by) + " ";
    report(
        Error(missing.program, who + "needs " + escape_for_terminal(missing.name), missing.reason));
  }
}

/// Directories that MPI's libraries look for beside themselves: in a view they stand beside them
/// too. The others are found by a path built in.
void add_mpi_plugins(const std::string& wanted, std::vector<std::string>& directories) {
  ResolverSession session;
  const auto installs = find_wanted_mpi(session.world(), wanted);
  if (installs.empty() && wanted != "none") throw Error(wanted, "no MPI library found");
  for (const auto& install : installs)
    for (const auto& directory : install.plugin_directories)
      if (directory.beside && std::ranges::find(directories, directory.path) == directories.end())
        directories.push_back(directory.path);
}

}  // namespace

int run_build(const Command& command) {
  // Before the work; it goes again at once.
  if (const auto place = AtomicFile::create(command.map); !place) {
    const auto& error = place.error();
    throw Error::with_code(error.code(), "", error.message(), "",
                           error.code() == EINVAL ? "a map is a regular file: name one" : "");
  }
  AppInputs inputs;
  for (const auto& app : command.apps) value_or_throw(add_app(inputs, app));
  for (const auto& note : inputs.notes) say("note: " + note);
  if (inputs.roots.empty()) {
    report(Error(command.apps[0], "nothing to resolve", "no dynamic program or library in it"));
    return exit_failure;
  }
  ResolverSession session;
  BuildOptions options;
  options.search = search_options_from_environment();
  options.plugin_directories = command.plugin_directories;
  if (!command.mpi.empty()) add_mpi_plugins(command.mpi, options.plugin_directories);
  const auto built = value_or_throw(build_map(session.world(), inputs.roots, options));
  for (const auto& left_out : built.left_out) say("note: left out: " + left_out.reason.message());
  for (const auto& note : built.notes) say("note: " + note);
  tell_missing(built);
  if (!built.missing.empty() && !command.allow_missing) {
    report(Error(command.map, "not written", "libraries are missing",
                 "--allow-missing writes the map all the same"));
    return exit_no;
  }
  value_or_throw(write_map(built.content, command.map));
  const auto count = [](const auto& list, const char* what) {
    return fmt::format("{} {}{}", list.size(), what, list.size() == 1 ? "" : "s");
  };
  if (command.json)
    print_json(to_json(built.content));
  else
    fmt::print("{}: {}, {}, {}\n", escape_for_terminal(command.map),
               count(built.content.programs, "program"), count(built.content.views, "view"),
               count(built.content.objects, "file"));
  return exit_done;
}

}  // namespace heddle
