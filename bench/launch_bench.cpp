// SPDX-License-Identifier: MIT
//
// What fs-launch adds to a job of 64 ranks on one node, and how long a session of a tool takes
// until it runs on four nodes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <sstream>

#include "base/find_program.hpp"
#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/program.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::bench {
namespace {

constexpr unsigned kRanks = 64;

/// The table's column "cpu", of one node.
double cpu_of_report(std::vector<std::string> argv, const std::vector<std::string>& launcher,
                     const std::vector<std::string>& env) {
  argv.insert(argv.end(), launcher.begin(), launcher.end());
  const auto ran = test::run_checked(argv, {.env = env});
  std::istringstream words(ran.err.substr(ran.err.find("why not\n") + 8));
  std::string node;
  double value = 0;
  words >> node;
  for (int column = 0; column < 6; ++column) words >> value;
  if (!words) throw Error("fs-launch --report", "has no such column", ran.err);
  return value;
}

/// Hydra's line alone, and behind fs-launch.
void measure_hydra(const std::string& stage, const TempDir& directory, unsigned rounds,
                   Results& results) {
  if (!find_program("mpiexec.hydra"))
    return results.note_absent("launch: mpiexec.hydra (mpich) is not installed");
  const auto farm = test::ElfFarm::build(directory.path() + "/farm", {.libraries = 100});
  const auto launcher = [](const std::string& program) {
    return std::vector<std::string>{"mpiexec.hydra", "-n", std::to_string(kRanks), program};
  };
  const std::vector<std::string> own = {"XDG_CACHE_HOME=" + directory.path() + "/cache"};
  for (const auto& [name, program] :
       {std::pair<std::string, std::string>{"libraries100", farm.program}, {"true", "/bin/true"}}) {
    const auto measure_one = [&, name = name, program = program] {
      const auto behind = [&](const std::vector<std::string>& options) {
        Command command{{stage + "/bin/fs-launch"}, own};
        const auto line = launcher(program);
        command.argv.insert(command.argv.end(), options.begin(), options.end());
        command.argv.insert(command.argv.end(), line.begin(), line.end());
        return [command] { return run_ms(command); };
      };
      std::vector<Variant> variants = {{"alone",
                                        [&] {
                                          return run_ms({launcher(program), own});
                                        }},
                                       {"mount", behind({"--slow", "/"})},
                                       {"direct", behind({"--fast", "/"})}};
      for (auto& variant : variants) (void)variant.measure();  // the cache, once
      interleave(variants, rounds);
      const auto group = "launch." + name;
      results.add(group, variants);
      for (const char* way : {"mount", "direct"})
        results.add({group + "." + way,
                     (results.median_of(group, way) - results.median_of(group, "alone")) / kRanks,
                     "ms a rank", 10});
      // What a rank computes before its program is executed: its launcher's part, ld.so's, the
      // agent.
      for (const auto& [way, slow] : {std::pair{"mount", "--slow"}, {"direct", "--fast"}}) {
        std::vector<double> samples;
        while (samples.size() < rounds)
          samples.push_back(cpu_of_report({stage + "/bin/fs-launch", "--report", slow, "/"},
                                          launcher(program), own));
        results.add({group + "." + way + ".cpu", median(samples), "ms of CPU a rank", 2});
      }
    };
    results.attempt("launch." + name, measure_one);
  }
}

/// A tool that attaches to a step of 64 ranks on four nodes: until its daemon has run on each.
void measure_session(const std::string& stage, const std::string& directory, unsigned rounds,
                     Results& results) {
  if (const auto obstacle = test::Cluster::obstacle(); !obstacle.empty())
    return results.note_absent("launch.session: " + obstacle);
  std::filesystem::create_directories(directory);
  const test::Cluster cluster(directory);
  const auto line = [&](const std::string& script) {
    const auto ran = cluster.sh(script);
    if (ran.status != 0) throw Error(script, fmt::format("exit status {}", ran.status), ran.err);
    return ran.out.substr(0, ran.out.find('\n'));
  };
  line(fmt::format("srun -Q -N4 -n{} -O sleep 900 >step.out 2>&1 &", kRanks));
  const auto session = stage + "/bin/fs-launch session ";
  std::string step;
  if (!test::wait_until(std::chrono::seconds(30), [&] {
        step = cluster.sh("squeue -h -s -o %i | grep -F .0").out;
        return !step.empty();
      }))
    throw Error("srun", "no step runs", cluster.sh("cat step.out").out);
  step.resize(step.find('\n'));
  std::vector<double> samples;
  const auto attach = [&] {
    std::string id;
    const double ms = time_ms([&] {
      id = line(session + "attach " + step);
      line(session + "daemon " + id + " --wait -- true");
    });
    const auto ranks = line(session + "ranks " + id + " | grep -c 'sleep$' || :");
    line(session + "destroy " + id);
    return std::pair(ms, ranks);
  };
  // Ranks that Slurm is still starting are not the session's.
  if (!test::wait_until(std::chrono::seconds(60),
                        [&] { return attach().second == std::to_string(kRanks); }))
    throw Error(step, "has not all of its ranks");
  while (samples.size() < std::min(rounds, 7U)) samples.push_back(attach().first);
  (void)cluster.sh("scancel -u root");
  results.add("launch.session", {{"64_ranks", {}, 1, samples}});
  results.add({"launch.session.64_ranks", median(samples) / 1000, "s", 2.0});
}

int launch_bench(int argc, char** argv) {
  set_program_name("launch_bench");
  ::setenv("HEDDLE_SOURCE", HEDDLE_SOURCE_ROOT, 0);  // for the cluster
  std::string stage;
  std::string work;
  unsigned rounds = 20;
  CLI::App app("Measures fs-launch beside the launcher alone");
  app.add_option("--stage", stage, "where heddle is installed")->required();
  app.add_option("--work", work, "where the program is made")->required();
  app.add_option("--rounds", rounds, "pairs");
  return run_program(app, argc, argv, [&](Results& results) {
    const auto directory = value_or_throw(TempDir::create("launch", work));
    measure_hydra(stage, directory, rounds, results);
    results.attempt("launch.session",
                    [&] { measure_session(stage, directory.path() + "/nodes", rounds, results); });
  });
}

}  // namespace
}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::launch_bench(argc, argv); }
