// SPDX-License-Identifier: MIT
// Recorders below mpirun, and mpirun below a recorder.

#include "tests/record/recorded.hpp"

namespace heddle::test {
namespace {

/// A program of ranks that print the sum of their numbers.
std::string make_ranks(const std::string& compiler, const std::string& directory) {
  write_text_file(
      directory + "/h.c",
      "#include <mpi.h>\n#include <stdio.h>\nint main(int c,char**v){int r;double x,y;"
      "MPI_Init(&c,&v);MPI_Comm_rank(MPI_COMM_WORLD,&r);x=r;MPI_Allreduce(&x,&y,1,"
      "MPI_DOUBLE,MPI_SUM,MPI_COMM_WORLD);if(!r)printf(\"%g\\n\",y);MPI_Finalize();return 0;}");
  run_checked({compiler, "-o", directory + "/h", directory + "/h.c"});
  return directory + "/h";
}

/// The ranks of Open MPI map files read-only that the launcher writes by mappings.
TEST_F(Recorder, runs_mpirun_with_its_ranks) {
  for (const std::string mpi : {"openmpi", "mpich"}) {
    if (!is_installed("mpicc." + mpi)) HEDDLE_SKIP("not installed: " + mpi);
    const auto ranks = make_ranks("mpicc." + mpi, dir_.path());
    expect_same_run({"mpirun." + mpi, "-n", "4", ranks}, {.env = kOpenMpi});
  }
}

TEST_F(Recorder, writes_a_complete_trace_of_each_rank) {
  if (!is_installed("mpicc.openmpi")) HEDDLE_SKIP("no Open MPI");
  const auto ranks_program = make_ranks("mpicc.openmpi", dir_.path());
  const auto done =
      run({"mpirun.openmpi", "-n", "4", program_, "-q", "--out-dir", dir_ / "t", ranks_program},
          {.env = kOpenMpi});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, "6\n");
  std::vector<bool> ranks(4);
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "t")) {
    const auto seen = read_seen(entry.path());
    EXPECT_TRUE(seen.complete());
    ASSERT_TRUE(seen.header.rank && *seen.header.rank >= 0 && *seen.header.rank < 4);
    ranks[static_cast<std::size_t>(*seen.header.rank)] = true;
  }
  EXPECT_EQ(ranks, std::vector<bool>(4, true));
}

}  // namespace
}  // namespace heddle::test
