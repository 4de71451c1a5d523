// SPDX-License-Identifier: MIT
// The program fs-job: what a job cost. It collects (this directory) and keeps and compares
// (jobs/store).

#include <cstring>
#include <string>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/run_main.hpp"
#include "jobs/commands.hpp"

namespace heddle::jobs {
namespace {

constexpr Command kCommands[] = {
    {"run", "Run a command and write the archive of what it did", run_command},
    {"start", "Begin to collect a job on this node", start_command},
    {"stop", "End it", stop_command},
    {"source", "Print shell functions that collect a part of a script", source_command},
    {"stage", "Write the archive of a job that was stopped", stage_command},
    {"watch", "Show the processes of a running job", watch_command},
};

std::string help() {
  std::string out =
      "What did the job cost, and which job is the outlier?\n"
      "Usage: fs-job SUBCOMMAND ...\n\nOptions:\n"
      "  -h,--help                   Print this help message and exit\n"
      "  --version                   Display program version information and exit\n\n"
      "Subcommands:\n";
  const auto add = [&](const Command& command) {
    std::string name = command.name;
    name.resize(28, ' ');
    out += "  " + name + command.summary + "\n";
  };
  for (const auto& command : kCommands) add(command);
  for (const auto& command : store_commands()) add(command);
  return out;
}

int run_program(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  const auto print = [](const std::string& text) {
    value_or_throw(write_all(STDOUT_FILENO, text, "stdout"));
    return exit_done;
  };
  if (name == "-h" || name == "--help") return print(help());
  if (name == "--version") return print("fs-job (heddle) " HEDDLE_VERSION "\n");
  for (const auto& command : kCommands)
    if (name == command.name) return command.run(argc - 1, argv + 1);
  for (const auto& command : store_commands())
    if (name == command.name) return command.run(argc - 1, argv + 1);
  if (!name.empty() && store_commands().empty())
    return usage_error(
        "fs-job",
        "no command '" + name + "': this fs-job only collects, the package heddle-job has all");
  return usage_error("fs-job", name.empty() ? "no command given" : "no command '" + name + "'");
}

}  // namespace
}  // namespace heddle::jobs

int main(int argc, char** argv) {
  return heddle::run_main("fs-job", [&] { return heddle::jobs::run_program(argc, argv); });
}
