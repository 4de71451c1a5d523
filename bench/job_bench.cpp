// SPDX-License-Identifier: MIT
//
// What fs-job costs a process: 2,000 /bin/true of one shell, with and without.
#include <CLI/CLI.hpp>

#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/program.hpp"

namespace heddle::bench {
namespace {

constexpr double kProcesses = 2000;

int job_bench(int argc, char** argv) {
  set_program_name("job_bench");
  std::string stage;
  unsigned rounds = 10;
  CLI::App app("Measures fs-job run beside the command alone");
  app.add_option("--stage", stage, "where heddle is installed")->required();
  app.add_option("--rounds", rounds, "samples of each variant");
  return run_program(app, argc, argv, [&](Results& results) {
    const auto directory = value_or_throw(TempDir::create("job"));
    const std::vector<std::string> loop = {
        "sh", "-c", "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i + 1)); done"};
    const auto collected = [&](const std::vector<std::string>& options) {
      Command command{{stage + "/bin/fs-job", "run", "-q", "--to", directory.path()},
                      {"HEDDLE_JOB_SPOOL=" + directory.path() + "/spool"}};
      command.argv.insert(command.argv.end(), options.begin(), options.end());
      command.argv.insert(command.argv.end(), {"--jobid", "1", "--"});
      command.argv.insert(command.argv.end(), loop.begin(), loop.end());
      return [command] { return run_ms(command); };
    };
    std::vector<Variant> variants = {{"alone", [&] { return run_ms({loop}); }},
                                     {"collected", collected({})},
                                     {"lookups", collected({"--lookups"})},
                                     {"perf", collected({"--perf"})}};
    results.attempt("job.true", [&] {
      interleave(variants, rounds);
      results.add("job.true", variants);
    });
    if (results.has_failed()) return;
    const auto added = [&](const char* variant) {
      return (results.median_of("job.true", variant) - results.median_of("job.true", "alone")) /
             kProcesses;
    };
    results.add({"job.collected", added("collected"), "ms a process", 0.15});
    results.add({"job.lookups", added("lookups"), "ms a process"});
    results.add({"job.perf", added("perf"), "ms a process", 0.7});
  });
}

}  // namespace
}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::job_bench(argc, argv); }
