// SPDX-License-Identifier: MIT
// fs-job in a job of four nodes.
#include <set>
#include "tests/jobs/archive_text.hpp"

#include "tests/support/cluster.hpp"

namespace heddle::test {
namespace {

TEST(JobOnNodes, each_node_has_an_archive_of_its_ranks) {
  if (const auto obstacle = Cluster::obstacle(); !obstacle.empty()) HEDDLE_SKIP(obstacle);
  HEDDLE_STAGED(fs_job, "fs-job");
  const auto share = fs_job.substr(0, fs_job.rfind("/bin/")) + "/share/heddle/";
  TestDir dir;
  const Cluster cluster(dir.path());
  const auto check = [&](const std::string& what) {
    std::set<std::string> hosts, ranks;
    for (const auto& entry : fs::directory_iterator(dir / what)) {
      const auto archive = read_job(entry.path());
      hosts.insert(archive.job["host"].get<std::string>());
      EXPECT_EQ(archive.job["hosts"].size(), 4U);
      for (const auto& row : archive.of("printenv")) {
        ranks.insert(std::to_string(row.threads.at(0).at("mpirank")));
        EXPECT_EQ(row.threads[0].at("numranks"), 8);
      }
    }
    EXPECT_EQ(hosts, (std::set<std::string>{"n1", "n2", "n3", "n4"})) << what;
    EXPECT_EQ(ranks, (std::set<std::string>{"0", "1", "2", "3", "4", "5", "6", "7"})) << what;
  };
  fs::create_directories(dir / "run");
  auto result = cluster.sh("srun -N4 -n8 " + fs_job + " run -q --to " + (dir / "run") +
                           " sh -c 'printenv SLURM_PROCID; sleep 1'");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(lines_of(result.out).size(), 8U);
  check("run");
  fs::create_directories(dir / "prolog");
  result = cluster.sh("HEDDLE_JOB_TO=" + (dir / "prolog") + " srun -N4 -n8 --task-prolog=" + share +
                      "fs-job-task-prolog.sh --task-epilog=" + share +
                      "fs-job-task-epilog.sh sh -c 'printenv SLURM_PROCID; exit 5'");
  EXPECT_EQ(result.status, 5) << result.err;
  EXPECT_EQ(lines_of(result.out).size(), 8U);
  check("prolog");
  // A prolog that cannot collect does not harm the job.
  result =
      cluster.sh("HEDDLE_JOB_SPOOL=/proc/none srun -N4 -n4 --task-prolog=" + share +
                 "fs-job-task-prolog.sh --task-epilog=" + share + "fs-job-task-epilog.sh true");
  EXPECT_EQ(result.status, 0) << result.err;
}

}  // namespace
}  // namespace heddle::test
