// SPDX-License-Identifier: MIT
#include "base/command_line.hpp"
#include "base/run_main.hpp"
#include "resolver/tool/commands.hpp"

namespace heddle {
namespace {

using Action = int (*)(const Command&);

void add_build(CLI::App& sub, Command& command) {
  sub.add_option("-o,--out", command.map, "Write the map to MAP; an old one is replaced")
      ->required()
      ->type_name("MAP");
  sub.add_option("APP", command.apps, "Programs, scripts (through #!), libraries or directories")
      ->type_name("");
  sub.add_option(
         "--plugins", command.plugin_directories,
         "Put this directory's files into every view, under the directory's name (repeatable)")
      ->type_name("DIR")
      ->allow_extra_args(false);
  sub.add_flag("--allow-missing", command.allow_missing,
               "Write the map even if a library is not found anywhere");
  sub.add_option("--tree", command.trees,
                 "Put this directory with all that is in it into the map (repeatable)")
      ->type_name("DIR")
      ->allow_extra_args(false);
  sub.add_option("--tree-exclude", command.excluded,
                 "Leave this directory of a tree to the original (repeatable)")
      ->type_name("DIR")
      ->allow_extra_args(false);
  sub.add_option("--python", command.python,
                 "Also the directories that a Python imports from: auto for what APP is run by, "
                 "off, or an interpreter")
      ->type_name("auto|off|EXE")
      ->capture_default_str();
  sub.add_option("--mpi", command.mpi,
                 "The host's MPI: auto, none, or a prefix to look below. Its plugins go into every "
                 "view (default: none; with --into: auto)")
      ->type_name("WHICH");
  sub.add_flag("--json", command.json, "Print what was built as JSON");

  // CLI11's excludes() and needs() would show in the help.
  CLI::Option* into =
      sub.add_option("--into", command.into,
                     "Decide which host files a container with this root gets, instead of APP")
          ->type_name("ROOTFS");
  const std::vector<CLI::Option*> for_into = {
      sub.add_option("--program", command.programs,
                     "With --into: a program, by its path in the container (repeatable)")
          ->type_name("PATH")
          ->allow_extra_args(false),
      sub.add_option("--at", command.mount_point, "With --into: where the map will be mounted")
          ->type_name("DIR")
          ->capture_default_str(),
      sub.add_option("--path", command.path, "With --into: the container's PATH")
          ->type_name("DIRS")
          ->capture_default_str(),
      sub.add_option("--library-path", command.library_path,
                     "With --into: the container's LD_LIBRARY_PATH")
          ->type_name("DIRS"),
      sub.add_option("--preload", command.preload, "With --into: the container's LD_PRELOAD")
          ->type_name("FILES"),
      sub.add_option(
             "--root", command.roots,
             "With --into: take this library from the host too, a soname or a path (repeatable)")
          ->type_name("SONAME")
          ->allow_extra_args(false)};
  sub.parse_complete_callback([&command, into, for_into] {
    if (into->count() == 0) {
      for (const auto* option : for_into)
        if (option->count() != 0)
          throw CLI::ValidationError(option->get_name(), "needs --into ROOTFS");
      const bool has_interpreter = command.python != "auto" && command.python != "off";
      if (command.apps.empty() && command.trees.empty() && !has_interpreter)
        throw CLI::RequiredError("APP");
      return;
    }
    if (!command.apps.empty() || !command.plugin_directories.empty() || command.allow_missing ||
        !command.trees.empty() || !command.excluded.empty() || command.python != "off")
      throw CLI::ValidationError("--into", "takes --program, not APP or its options");
    if (command.programs.empty()) throw CLI::RequiredError("--program");
  });
}

int run(const std::vector<std::string>& words) {
  CLI::App app(
      "Resolve once what ld.so would search for: build, inspect and explain maps.\n"
      "Nothing is executed: neither the programs nor their loader.",
      "fs-resolve");
  app.set_version_flag("--version", "fs-resolve (heddle) " HEDDLE_VERSION);
  set_usage(app, "");
  app.require_subcommand(1);
  Command command;
  Action action = nullptr;
  CLI::App* sub = nullptr;
  const auto add = [&](const std::string& name, const std::string& text, Action run_it) {
    sub = app.add_subcommand(name, text);
    sub->callback([&action, run_it] { action = run_it; });
  };
  const auto argument = [&](const char* name, std::string& value, const char* text) {
    return sub->add_option(name, value, text)->type_name("");
  };
  const auto add_json = [&](const char* text = "As JSON") {
    sub->add_flag("--json", command.json, text);
  };

  add("build", "Make a map of programs, scripts or directories, or for a container", run_build);
  add_build(*sub, command);

  add("show", "Print a map", run_show);
  argument("MAP", command.map, "The map")->required();
  add_json("As JSON: the same input always gives the same bytes");

  add("lookup", "Print the file that a name leads to in a map", run_lookup);
  argument("MAP", command.map, "The map")->required();
  argument("NAME", command.name, "A soname, or an absolute path")->required();
  sub->add_option("--view", command.view, "In this view, where the map has several")
      ->type_name("VIEW");
  add_json();

  add("explain", "Print the decision for a container, and why", run_explain);
  argument("MAP", command.map, "A map of build --into, or the directory where it is mounted")
      ->required();
  add_choice<std::string>(
      *sub, "--binds", command.engine,
      {{"podman", "podman"}, {"apptainer", "apptainer"}, {"ch-run", "ch-run"}},
      "Print only the options with which this engine mounts the files in a container");
  add_json("As JSON, as build --into --json printed it");

  add("why", "Print every path that ld.so would try, and why it takes the one it takes", run_why);
  argument("APP", command.app, "The program")->required();
  argument("NAME", command.name, "Only the search for this library");
  add_json();

  add("tree", "Print the libraries of a program as a tree", run_tree);
  argument("APP", command.app, "The program")->required();
  sub->add_flag("-p,--path", command.paths, "Print paths instead of names");
  add_json();

  add("verify", "Check that the files of a map are unchanged and still found", run_verify);
  argument("MAP", command.map, "The map")->required();
  sub->add_flag("--files", command.files_only, "Only the files: do not search again");
  add_json();

  add("pack", "Put a map and the content of its files into one bundle", run_pack);
  argument("MAP", command.map, "The map, or with --list the bundle")->required();
  auto* out =
      sub->add_option("-o,--out", command.out, "Write the bundle to BUNDLE; an old one is replaced")
          ->type_name("BUNDLE");
  auto* trace = sub->add_option("--trace", command.trace,
                                "A run of fs-record: pack the files that it opened, in that order, "
                                "and all programs and libraries")
                    ->type_name("TRACE");
  sub->add_option("--add", command.add,
                  "Pack also what a run of an earlier bundle took from the originals: REPORT is of "
                  "fs-gen --json or fs-mount --stats --json")
      ->type_name("REPORT")
      ->needs(trace);
  sub->add_option("--include", command.include,
                  "Pack this file or directory although the trace does not use it, or it would be "
                  "left out (repeatable)")
      ->type_name("PATH")
      ->allow_extra_args(false);
  auto* list = sub->add_flag("--list", command.list, "Print the files in a bundle");
  add_json("With --list: as JSON");
  sub->parse_complete_callback([out, list] {
    if (out->count() + list->count() != 1) throw CLI::RequiredError("-o BUNDLE, or --list");
  });

  add("mpi", "Print this machine's MPI installations and what belongs to each", run_mpi);
  sub->add_flag("--list", command.list, "One line each: family, version, library");
  sub->add_option("--prefix", command.prefix, "Only those below this directory")->type_name("DIR");
  sub->add_option("--root", command.root, "This library in place of an MPI: a soname or a path")
      ->type_name("SONAME");
  sub->add_option("--trace", command.program,
                  "Only the MPI that this program loads, and what a run of two ranks opens")
      ->type_name("PROGRAM");
  add_json();

  add("push", "Push a map to a registry, and print its reference by digest", run_push);
  argument("MAP", command.map, "The map")->required();
  argument("REF", command.reference, "HOST[:PORT]/REPOSITORY[:TAG]")->required();

  add("pull", "Pull a map from a registry", run_pull);
  argument("REF", command.reference, "HOST[:PORT]/REPOSITORY[:TAG][@sha256:...]")->required();
  sub->add_option("-o,--out", command.map, "Write the map to MAP; an old one is replaced")
      ->required()
      ->type_name("MAP");
  sub->add_flag("--no-cache", command.no_cache, "Neither read nor write the cache");

  if (const int status = parse_options(app, words); status >= 0) return status;
  const int status = action(command);
  value_or_throw(flush_stdout());
  return status;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run_main("fs-resolve", [&] { return heddle::run({argv + 1, argv + argc}); });
}
