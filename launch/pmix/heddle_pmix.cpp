// SPDX-License-Identifier: MIT
// The program libexec/heddle/heddle-pmix, which fs-launch pmix executes: what needs libpmix is
// apart, so that all else runs without it.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/run_main.hpp"
#include "base/temp_dir.hpp"
#include "launch/pmix/commands.hpp"
#include "launch/pmix/pmix.hpp"

namespace heddle::pmix {
namespace {

constexpr const char* kName = "fs-launch pmix";

void add_seconds(CLI::App& app, int& seconds, const char* text) {
  app.add_option("--timeout", seconds, text)->type_name("SECONDS")->check(number_from(1, 3600));
}

int run_main(int argc, char** argv) {
  RunOptions o;
  CLI::App app("Start a job by its own launcher, paused until a tool is ready.",
               "fs-launch pmix run");
  set_usage(app, "fs-launch pmix run [OPTIONS] [--] LAUNCHER ARGS...");
  const auto add_list = [&](const char* name, std::vector<std::string>& list, const char* text) {
    app.add_option(name, list, text)->type_name("NAME=VALUE")->allow_extra_args(false);
  };
  add_list("--set", o.set, "Set this variable for the ranks (repeatable)");
  add_list("--prepend", o.prepend, "Put VALUE: before this variable's value (repeatable)");
  app.add_option("--before", o.before, "Run this by sh while the launcher waits and nothing runs")
      ->type_name("COMMAND");
  add_choice<std::string>(
      app, "--stop", o.stop, {{"exec", "exec"}, {"init", "init"}, {"app", "app"}},
      "Stop the ranks after their exec, in PMIx_Init, or where they ask for it");
  app.add_option("--stopped", o.stopped, "Run this by sh when all are stopped; then they go on")
      ->type_name("COMMAND");
  app.add_option("--events", o.events, "Append what happens to this file, a line of JSON each")
      ->type_name("FILE");
  add_seconds(app, o.seconds, "Seconds for each answer of the launcher (30); the job has no limit");
  forbid_empty_values(app);
  auto split = split_command_line(app, argc, argv);
  if (const int status = parse_options(app, std::move(split.options)); status >= 0) return status;
  if (split.command.empty()) return usage_error("fs-launch pmix run", "no launcher given");
  if (!o.stopped.empty() && o.stop.empty()) o.stop = "exec";
  o.command = std::move(split.command);
  return run_launcher(o);
}

int query_main(int argc, char** argv) {
  QueryOptions o;
  CLI::App app("Print the jobs of a PMIx server and their ranks.", "fs-launch pmix query");
  set_usage(app, "");
  app.add_option("SERVER", o.server, "Its address, or a file with it: prterun --report-uri FILE")
      ->required()
      ->type_name("");
  app.add_option("--namespace", o.name_space, "This job alone")->type_name("NAME");
  app.add_flag("--json", o.json, "As JSON");
  add_seconds(app, o.seconds, "Seconds for all of it (10)");
  forbid_empty_values(app);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  const int status = run_query(o);
  value_or_throw(flush_stdout());
  return status;
}

int launch_main(int argc, char** argv) {
  LaunchOptions o;
  CLI::App app("Start ranks on this node, as a PMIx launcher.", "fs-launch pmix launch");
  set_usage(app, "fs-launch pmix launch [-n RANKS] [--] PROGRAM ARGS...");
  app.add_option("-n", o.ranks, "The number of ranks (1)")
      ->type_name("RANKS")
      ->check(number_from(1, 4096));
  app.add_option("--report-uri", o.report_uri, "Write the address for tools to this file")
      ->type_name("FILE");
  forbid_empty_values(app);
  auto split = split_command_line(app, argc, argv);
  if (const int status = parse_options(app, std::move(split.options)); status >= 0) return status;
  if (split.command.empty()) return usage_error("fs-launch pmix launch", "no program given");
  o.command = std::move(split.command);
  return launch_here(o);
}

int choose(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "--help";
  if (command == "run") return run_main(argc - 1, argv + 1);
  if (command == "query") return query_main(argc - 1, argv + 1);
  if (command == "launch") return launch_main(argc - 1, argv + 1);
  if (command == "--check") {
    // Loaded, so linked: "OpenPMIx 4.2.2 (...)".
    std::string text = PMIx_Get_version();
    fmt::print("{}\n", text.substr(0, text.find_first_of(",(\n")));
    value_or_throw(flush_stdout());
    return exit_done;
  }
  if (command == "--help" || command == "-h") {
    fmt::print(
        "Usage: fs-launch pmix run|query|launch ...\n\n"
        "  run     start a job by its own launcher, paused until a tool is ready\n"
        "  query   print the jobs of a PMIx server and their ranks\n"
        "  launch  start ranks on this node, as a PMIx launcher\n\n"
        "fs-launch pmix COMMAND --help prints its options.\n");
    value_or_throw(flush_stdout());
    return exit_done;
  }
  return usage_error(kName, fmt::format("no command '{}'", command));
}

}  // namespace
}  // namespace heddle::pmix

int main(int argc, char** argv) {
  return heddle::run_main("fs-launch pmix", [&] { return heddle::pmix::choose(argc, argv); });
}
