// SPDX-License-Identifier: MIT
// Recorders inside a launcher, and a launcher inside a recorder.
#include <gtest/gtest.h>

#include "tests/record/recorded.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

/// As root, and more ranks than cores.
const std::vector<std::string> kOpenMpi = {"OMPI_ALLOW_RUN_AS_ROOT=1",
                                           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                           "OMPI_MCA_rmaps_base_oversubscribe=1"};

TEST(Recorder, ranks_run_inside) {
  if (run({"sh", "-c", "command -v mpirun"}).status != 0) HEDDLE_SKIP("no mpirun");
  RunOptions options;
  options.env = kOpenMpi;
  expect_same_run({"mpirun", "-n", "2", "uname"}, options);
}

TEST(Recorder, each_rank_has_a_complete_trace) {
  HEDDLE_STAGED(program, "fs-record");
  if (run({"sh", "-c", "command -v mpicc.openmpi && command -v mpirun"}).status != 0)
    HEDDLE_SKIP("no Open MPI");
  TestDir dir;
  write_text_file(
      dir / "h.c",
      "#include <mpi.h>\n#include <stdio.h>\nint main(int c,char**v){int r;double x,y;"
      "MPI_Init(&c,&v);MPI_Comm_rank(MPI_COMM_WORLD,&r);x=r;MPI_Allreduce(&x,&y,1,"
      "MPI_DOUBLE,MPI_SUM,MPI_COMM_WORLD);if(!r)printf(\"%g\\n\",y);MPI_Finalize();return 0;}");
  run_checked({"mpicc.openmpi", "-o", dir / "h", dir / "h.c"});
  RunOptions options;
  options.env = kOpenMpi;
  const auto done =
      run({"mpirun.openmpi", "-n", "4", program, "-q", "--out-dir", dir / "t", dir / "h"}, options);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, "6\n");
  const auto names = run({"sh", "-c", "ls " + dir.path() + "/t"}).out;
  std::vector<bool> ranks(4);
  std::size_t begin = 0;
  for (std::size_t end; (end = names.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const auto seen = read_seen(dir / ("t/" + names.substr(begin, end - begin)));
    EXPECT_TRUE(seen.complete());
    ASSERT_TRUE(seen.header.rank && *seen.header.rank >= 0 && *seen.header.rank < 4);
    ranks[static_cast<std::size_t>(*seen.header.rank)] = true;
  }
  EXPECT_EQ(ranks, std::vector<bool>(4, true));
}

}  // namespace
}  // namespace heddle::test
