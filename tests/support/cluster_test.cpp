// SPDX-License-Identifier: MIT
//
// The launchers on the cluster of namespaces, each with an MPI program that says where its ranks
// are.
#include "tests/support/cluster.hpp"

#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

struct Launch {
  const char* name;
  const char* compiler;
  std::string command;  ///< RSH stands for the cluster's
  bool local;           ///< two ranks on the login node; else two on each node
};

class Launchers : public ::testing::TestWithParam<Launch> {};

TEST_P(Launchers, start_two_ranks_on_each_node) {
  if (const auto obstacle = Cluster::obstacle(); !obstacle.empty()) HEDDLE_SKIP(obstacle);
  if (run({"sh", "-c", "command -v "s + GetParam().compiler}).status != 0)
    HEDDLE_SKIP(GetParam().compiler + " is not installed"s);
  const TestDir dir;
  std::ofstream(dir / "app.c") << Cluster::kRanksSayWhere;
  run_checked({GetParam().compiler, "-o", dir / "app", dir / "app.c"});
  const Cluster cluster(dir.path());
  auto command = GetParam().command;
  if (const auto at = command.find("RSH"); at != command.npos)
    command.replace(at, 3, cluster.rsh());
  const auto result = cluster.sh(command + " ./app");
  EXPECT_EQ(result.status, 0) << result.err;
  auto lines = lines_of(result.out);
  std::ranges::sort(lines);
  Strings expected;
  for (int rank = 0; rank < (GetParam().local ? 2 : 8); ++rank)
    expected.push_back((GetParam().local ? "ctl" : "n" + std::to_string(1 + rank / 2)) + " " +
                       std::to_string(rank) + (GetParam().local ? " 2" : " 8"));
  EXPECT_EQ(lines, expected) << result.err;
}

const std::string kEach = "-host n1:2,n2:2,n3:2,n4:2";
INSTANTIATE_TEST_SUITE_P(
    , Launchers,
    ::testing::ValuesIn({
        Launch{"srun_pmix", "mpicc.openmpi", "srun -Q -N4 -n8 --mpi=pmix", false},
        {"srun_pmi2", "mpicc.mpich", "srun -Q -N4 -n8 --mpi=pmi2", false},
        {"openmpi_rsh", "mpicc.openmpi", "mpirun.openmpi --mca plm_rsh_agent RSH " + kEach, false},
        {"openmpi_salloc", "mpicc.openmpi", "salloc -Q -N4 mpirun.openmpi -npernode 2", false},
        {"openmpi_local", "mpicc.openmpi", "mpirun.openmpi --oversubscribe -n 2", true},
        {"hydra_ssh", "mpicc.mpich",
         "mpiexec.hydra -launcher ssh -launcher-exec RSH -hosts n1:2,n2:2,n3:2,n4:2 -n 8", false},
        {"hydra_slurm", "mpicc.mpich", "salloc -Q -N4 mpiexec.hydra -launcher slurm -ppn 2 -n 8",
         false},
        {"hydra_local", "mpicc.mpich", "mpiexec.hydra -n 2", true},
    }),
    [](const auto& each) { return std::string(each.param.name); });

TEST(ClusterOfNamespaces, leaves_nothing_but_its_directory) {
  if (const auto obstacle = Cluster::obstacle(); !obstacle.empty()) HEDDLE_SKIP(obstacle);
  const TestDir dir;
  const auto processes = [&] {
    return run({"sh", "-c", "grep -lz ^SLURM_CONF=" + dir.path() + " /proc/[0-9]*/environ"}).out;
  };
  {
    const Cluster cluster(dir.path());
    EXPECT_EQ(cluster.on(2, "hostname; touch /tmp/here /dev/shm/here").out, "n2\n");
    EXPECT_EQ(cluster.on(3, "ls -A /tmp/here /dev/shm/here").status, 2);
    EXPECT_EQ(run({"ip", "link", "show", "br0"}).status, 1);
    EXPECT_NE(processes(), "");
  }
  EXPECT_TRUE(wait_until(10s, [&] { return processes().empty(); })) << processes();
  EXPECT_EQ(mounts_with(dir.path()), 0U);
  // The kernel removes the bridge with its namespace.
  EXPECT_EQ(run({"sh", "-c", "lsns -n -t net -o COMMAND | grep -F " + dir.path()}).out, "");
}

}  // namespace
}  // namespace heddle::test
