// SPDX-License-Identifier: MIT
// Programs that people run, with and without fs-gen: the same output and exit status.

#include <gtest/gtest.h>

#include <filesystem>

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
  return 0;
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
  const auto ours =
      run({fs_gen, "-q", "--", "/usr/bin/mpirun." + family, "-n", "4", program}, options);
  EXPECT_EQ(ours.out, "4 ranks, sum 6\n") << ours.err;
  EXPECT_EQ(ours.status, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, MpiFamily, ::testing::Values("openmpi", "mpich"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace heddle::test
