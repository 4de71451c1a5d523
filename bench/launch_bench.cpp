// SPDX-License-Identifier: MIT
//
// What fs-launch adds to a job of 64 ranks on one node, and how long a session of a tool takes
// until it runs on four nodes.
#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
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

/// A rank that has started the agent, which has executed `program`: stopped there, before ld.so.
class StoppedRank {
 public:
  StoppedRank(const std::string& stage, const std::string& way, const std::string& program,
              int rank) {
    const auto agent = stage + "/bin/fs-launch";
    pid_ = ::fork();
    if (pid_ == 0) {
      // As the auditor executes it (fuseovl/audit/process.cpp).
      ::setenv("PMI_RANK", std::to_string(rank).c_str(), 1);
      ::setenv("LD_AUDIT", (stage + "/lib/heddle/libheddle-audit.so").c_str(), 1);
      ::setenv("HEDDLE_LAUNCH", (agent + ",0000000000000000," + way).c_str(), 1);
      (void)::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      (void)::raise(SIGSTOP);
      ::execl(agent.c_str(), agent.c_str(), "--rank", program.c_str(), program.c_str(), nullptr);
      ::_exit(127);
    }
    wait_for_stop();
    (void)::ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    run_to_exec();
    const auto begin = cpu_ms();
    run_to_exec();
    ms_ = cpu_ms() - begin;
  }
  StoppedRank(const StoppedRank&) = delete;
  StoppedRank& operator=(const StoppedRank&) = delete;
  ~StoppedRank() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  /// CPU time of the agent.
  double ms() const { return ms_; }

 private:
  int wait_for_stop() const {
    int status = 0;
    if (::waitpid(pid_, &status, 0) != pid_ || !WIFSTOPPED(status))
      throw Error("fs-launch --rank", "has ended");
    return status >> 8;
  }
  void run_to_exec() const {
    for (int signal = 0;;) {
      (void)::ptrace(PTRACE_CONT, pid_, nullptr, signal);
      const int stop = wait_for_stop();
      if (stop == (SIGTRAP | (PTRACE_EVENT_EXEC << 8))) return;
      signal = stop == SIGTRAP ? 0 : stop;
    }
  }
  double cpu_ms() const {
    const auto file = "/proc/" + std::to_string(pid_) + "/schedstat";
    return std::stod(value_or_throw(read_file(file))) / 1e6;
  }

  pid_t pid_;
  double ms_ = 0;
};

/// What the agent computes until it executes the program, when another rank of the node is there.
void measure_agent(const std::string& stage, const std::string& program, unsigned rounds,
                   Results& results) {
  for (const auto& [name, way] : {std::pair{"mount", "slow=/"}, {"direct", "fast=/"}}) {
    for (int i = 0; i < 3; ++i) (void)StoppedRank(stage, way, program, 0);  // the cache
    const StoppedRank first(stage, way, program, 0);
    std::vector<double> samples;
    for (unsigned rank = 1; rank <= rounds * 5; ++rank)
      samples.push_back(StoppedRank(stage, way, program, static_cast<int>(rank)).ms());
    results.add(
        {fmt::format("launch.libraries100.{}.agent", name), median(samples), "ms of CPU", 2});
  }
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
        results.add({group + "." + way + ".cpu", median(samples), "ms of CPU a rank"});
      }
    };
    results.attempt("launch." + name, measure_one);
  }
  ::setenv("XDG_CACHE_HOME", (directory.path() + "/cache").c_str(), 1);
  results.attempt("launch.agent", [&] { measure_agent(stage, farm.program, rounds, results); });
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
