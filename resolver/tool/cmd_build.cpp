// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "resolver/build/app_inputs.hpp"
#include "resolver/build/map_builder.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "resolver/map/map_writer.hpp"
#include "resolver/tool/commands.hpp"
#include "resolver/tool/map_json.hpp"

namespace heddle {
namespace {

void tell_missing(const BuildResult& built) {
  for (const auto& missing : built.missing) {
    const auto who = missing.needed_by == missing.program
                         ? std::string()
                         : escape_for_terminal(missing.needed_by) + " ";
    report(
        Error(missing.program, who + "needs " + escape_for_terminal(missing.name), missing.reason));
  }
}

/// Directories that MPI's libraries look for beside themselves: in a view they stand beside them
/// too. The others are found by a path built in.
void add_mpi_plugins(const std::string& wanted, std::vector<std::string>& directories) {
  CachedFacts facts;
  OsWorld world(facts);
  const auto installs = find_wanted_mpi(world, wanted);
  if (installs.empty() && wanted != "none") throw Error(wanted, "no MPI library found");
  for (const auto& install : installs)
    for (const auto& directory : install.plugin_directories)
      if (directory.beside &&
          std::find(directories.begin(), directories.end(), directory.path) == directories.end())
        directories.push_back(directory.path);
}

}  // namespace

int run_build(const BuildCommand& command) {
  // Before the work; it goes again at once.
  if (const auto place = AtomicFile::create(command.out); !place) {
    const auto& error = place.error();
    throw Error::with_code(error.code(), "", error.message(), "",
                           error.code() == EINVAL ? "a map is a regular file: name one" : "");
  }
  const char* path = std::getenv("PATH");
  AppInputs inputs;
  for (const auto& app : command.apps) value_or_throw(add_app(inputs, app, path ? path : ""));
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
    report(Error(command.out, "not written", "libraries are missing",
                 "--allow-missing writes the map all the same"));
    return exit_no;
  }
  value_or_throw(write_map(built.content, command.out));
  if (command.json)
    fmt::print("{}\n", to_json(built.content).dump(2));
  else
    fmt::print("{}: {} program{}, {} view{}, {} file{}\n", escape_for_terminal(command.out),
               built.content.programs.size(), built.content.programs.size() == 1 ? "" : "s",
               built.content.views.size(), built.content.views.size() == 1 ? "" : "s",
               built.content.objects.size(), built.content.objects.size() == 1 ? "" : "s");
  return exit_done;
}

}  // namespace heddle
