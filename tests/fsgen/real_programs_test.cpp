// SPDX-License-Identifier: MIT
// Installed programs print and exit the same with and without fs-gen.

#include "tests/fsgen/run_fixture.hpp"

namespace heddle::test {
namespace {

class RealPrograms : public FsGenFixture {};

TEST_F(RealPrograms, sixty_four_programs_run_at_once) {
  options_.env.emplace_back("OMPI_MCA_ess_singleton_isolated=1");
  options_.deadline = std::chrono::minutes(4);
  const auto fixed =
      build_program({.output = dir_ / "static",
                     .source = "#include <stdio.h>\nint main(){puts(\"hi\");return 5;}",
                     .flags = {"-static", "-no-pie"}});
  const auto script = write_text_file(dir_ / "script", "#!/bin/sh -e\necho \"$0\"; exit 6\n", 0755);
  std::vector<Words> programs = {{fixed}, {script}};
  for (const Words& words : std::vector<Words>{
           {"/usr/bin/git", "-C", "/", "status"},
           {"/usr/bin/su", "--version"},
           {"/bin/ls", "/"},
           {"/usr/bin/lmp", "-h"},
           {"/usr/bin/gdb", "--version"},
           {"/usr/bin/python3", "-c", "import numpy; print(numpy.arange(10).sum())"}})
    if (fs::exists(words[0])) programs.push_back(words);
  std::vector<RunResult> bare;
  for (const auto& words : programs) bare.push_back(run(words, options_));
  std::vector<RunResult> ours(64);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ours.size(); ++i)
    threads.emplace_back([&, i] {
      Words words{fs_gen_, "-q", "--"};
      const auto& program = programs[i % programs.size()];
      words.insert(words.end(), program.begin(), program.end());
      // Open MPI singletons that start at once conflict in one session directory.
      auto own = options_;
      const auto session = dir_ / ("session" + std::to_string(i));
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

class MpiFamily : public FsGenFixture, public ::testing::WithParamInterface<const char*> {};

TEST_P(MpiFamily, four_ranks_compute_the_right_sum) {
  const std::string family = GetParam();
  const std::string compiler = "/usr/bin/mpicc." + family;
  if (!fs::exists(compiler)) HEDDLE_SKIP(compiler + " is not installed");
  const auto program = dir_ / "ring";
  run_checked({compiler, write_text_file(dir_ / "ring.c", kRing), "-o", program});
  options_.env.insert(options_.env.end(),
                      {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                       "OMPI_MCA_rmaps_base_oversubscribe=1"});
  for (const bool fails : {false, true}) {
    Words words{"/usr/bin/mpirun." + family, "-n", "4", program};
    if (fails) words.emplace_back("fail");
    const auto bare = run(words, options_);
    const auto ours = run_guided(words);
    EXPECT_EQ(ours.out, bare.out) << ours.err;
    EXPECT_EQ(ours.status, bare.status) << fails;
    EXPECT_TRUE(ours.out.starts_with("4 ranks, sum 6\n")) << ours.out << ours.err;
    EXPECT_GE(report().value("guided_processes", 0U), 5U);  // mpirun and the ranks
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MpiFamily, ::testing::Values("openmpi", "mpich"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace heddle::test
