// SPDX-License-Identifier: MIT
// Programs that people run, with and without fs-gen: the same output and exit status.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

struct Program {
  const char* name;
  std::vector<std::string> words;
  const char* wants;  ///< a file that must be there
};

class RealProgram : public ::testing::TestWithParam<Program> {};

TEST_P(RealProgram, prints_and_exits_as_without_us) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  if (!fs::exists(GetParam().wants))
    HEDDLE_SKIP(std::string(GetParam().wants) + " is not installed");
  const TestDir dir;
  RunOptions options;
  options.env = {"XDG_CACHE_HOME=" + dir / "cache"};
  std::vector<std::string> guided{fs_gen, "-q", "--"};
  guided.insert(guided.end(), GetParam().words.begin(), GetParam().words.end());
  const auto bare = run(GetParam().words, options);
  for (int round = 0; round < 2; ++round) {  // with a cold cache of facts, and a warm one
    const auto ours = run(guided, options);
    EXPECT_EQ(ours.out, bare.out);
    EXPECT_EQ(ours.err, bare.err);
    EXPECT_EQ(ours.status, bare.status);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Programs, RealProgram,
    ::testing::Values(Program{"lammps", {"/usr/bin/lmp", "-h"}, "/usr/bin/lmp"},
                      Program{
                          "numpy",
                          {"/usr/bin/python3", "-c", "import numpy; print(numpy.arange(10).sum())"},
                          "/usr/lib/python3/dist-packages/numpy"},
                      Program{"git_status", {"/usr/bin/git", "-C", "/", "status"}, "/usr/bin/git"},
                      Program{"gdb", {"/usr/bin/gdb", "--version"}, "/usr/bin/gdb"},
                      Program{"setuid", {"/usr/bin/su", "--version"}, "/usr/bin/su"},
                      Program{"script", {"/usr/bin/ldd", "--version"}, "/usr/bin/ldd"},
                      Program{"exit_status", {"/usr/bin/git", "no-such-command"}, "/usr/bin/git"}),
    [](const auto& program) { return program.param.name; });

TEST(RealPrograms, sixty_four_of_all_kinds_at_once) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  const TestDir dir;
  RunOptions options;
  options.env = {"XDG_CACHE_HOME=" + dir / "cache", "TMPDIR=" + dir.path(),
                 "OMPI_MCA_ess_singleton_isolated=1"};
  options.deadline = std::chrono::minutes(4);
  const auto fixed =
      build_program({.output = dir / "static",
                     .source = "#include <stdio.h>\nint main(){puts(\"hi\");return 5;}",
                     .flags = {"-static", "-no-pie"}});
  const auto script = write_text_file(dir / "script", "#!/bin/sh -e\necho \"$0\"; exit 6\n", 0755);
  std::vector<std::vector<std::string>> programs = {{fixed},
                                                    {script},
                                                    {"/usr/bin/git", "-C", "/", "status"},
                                                    {"/usr/bin/su", "--version"},
                                                    {"/bin/ls", "/"}};
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"/usr/bin/lmp", "-h"},
           {"/usr/bin/gdb", "--version"},
           {"/usr/bin/python3", "-c", "import numpy; print(numpy.arange(10).sum())"}})
    if (fs::exists(more[0])) programs.push_back(more);
  std::vector<RunResult> bare;
  for (const auto& words : programs) bare.push_back(run(words, options));
  std::vector<RunResult> ours(64);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ours.size(); ++i)
    threads.emplace_back([&, i] {
      std::vector<std::string> words{fs_gen, "-q", "--"};
      const auto& program = programs[i % programs.size()];
      words.insert(words.end(), program.begin(), program.end());
      // Open MPI's programs that start alone at one moment fight for one session directory.
      auto own = options;
      const auto session = dir / ("session" + std::to_string(i));
      fs::create_directory(session);
      own.env.push_back("OMPI_MCA_orte_tmpdir_base=" + session);
      ours[i] = run(words, own);
    });
  for (auto& thread : threads) thread.join();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto& expected = bare[i % programs.size()];
    EXPECT_EQ(ours[i].out, expected.out) << programs[i % programs.size()][0];
    EXPECT_EQ(ours[i].err, expected.err);
    EXPECT_EQ(ours[i].status, expected.status);
  }
}

constexpr const char* kRing = R"(
#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
  int rank, size, sum;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d ranks, sum %d\n", size, sum);
  MPI_Finalize();
  return argc > 1 ? 3 : 0;
}
)";

class MpiFamily : public ::testing::TestWithParam<const char*> {};

TEST_P(MpiFamily, four_ranks_sum_right) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  const std::string family = GetParam();
  const std::string compiler = "/usr/bin/mpicc." + family;
  if (!fs::exists(compiler)) HEDDLE_SKIP(compiler + " is not installed");
  const TestDir dir;
  const auto source = write_text_file(dir / "ring.c", kRing);
  const auto program = dir / "ring";
  run_checked({compiler, source, "-o", program});
  RunOptions options;
  options.env = {"XDG_CACHE_HOME=" + dir / "cache", "OMPI_ALLOW_RUN_AS_ROOT=1",
                 "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1"};
  const std::vector<std::string> command{"/usr/bin/mpirun." + family, "-n", "4", program};
  for (const char* argument : {"", "fail"}) {
    auto words = command;
    if (*argument) words.emplace_back(argument);
    auto guided = words;
    guided.insert(guided.begin(), {fs_gen, "-q", "--json", dir / "report.json", "--"});
    const auto bare = run(words, options);
    const auto ours = run(guided, options);
    EXPECT_EQ(ours.out, bare.out) << ours.err;
    EXPECT_EQ(ours.status, bare.status) << argument;
    EXPECT_TRUE(ours.out.starts_with("4 ranks, sum 6\n")) << ours.out << ours.err;
    const auto report = nlohmann::json::parse(std::ifstream(dir / "report.json"), nullptr, false);
    EXPECT_GE(report.value("guided_processes", 0U), 5U);  // mpirun and the ranks
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MpiFamily, ::testing::Values("openmpi", "mpich"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace heddle::test
