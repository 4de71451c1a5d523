// SPDX-License-Identifier: MIT
// Recorders below mpirun, and mpirun below a recorder.
#include <gtest/gtest.h>

#include "tests/record/recorded.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

TEST_F(Recorder, runs_mpirun_with_its_ranks) {
  if (!is_installed("mpirun")) HEDDLE_SKIP("no mpirun");
  expect_same_run({"mpirun", "-n", "2", "uname"}, {.env = kOpenMpi});
}

TEST_F(Recorder, writes_a_complete_trace_of_each_rank) {
  if (!is_installed("mpicc.openmpi")) HEDDLE_SKIP("no Open MPI");
  write_text_file(
      dir_ / "h.c",
      "#include <mpi.h>\n#include <stdio.h>\nint main(int c,char**v){int r;double x,y;"
      "MPI_Init(&c,&v);MPI_Comm_rank(MPI_COMM_WORLD,&r);x=r;MPI_Allreduce(&x,&y,1,"
      "MPI_DOUBLE,MPI_SUM,MPI_COMM_WORLD);if(!r)printf(\"%g\\n\",y);MPI_Finalize();return 0;}");
  run_checked({"mpicc.openmpi", "-o", dir_ / "h", dir_ / "h.c"});
  const auto done =
      run({"mpirun.openmpi", "-n", "4", program_, "-q", "--out-dir", dir_ / "t", dir_ / "h"},
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
