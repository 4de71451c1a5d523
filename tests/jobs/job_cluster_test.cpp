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
  const auto database = " --db " + (dir / "jobs.db") + " ";
  result = cluster.sh(fs_job + " submit" + database + "run/* && " + fs_job + " query" + database +
                      "--format json --columns num_hosts,complete");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out.substr(result.out.find('['))),
            nlohmann::json::parse(R"([{"num_hosts":4,"complete":1}])"));
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

TEST(JobOnNodes, elements_of_arrays_and_requeued_jobs_are_jobs_of_their_own) {
  if (const auto obstacle = Cluster::obstacle(); !obstacle.empty()) HEDDLE_SKIP(obstacle);
  HEDDLE_STAGED(fs_job, "fs-job");
  TestDir dir;
  const Cluster cluster(dir.path(), 2);
  fs::create_directories(dir / "to");
  const auto run = "#!/bin/sh\nexec " + fs_job + " run -q --to " + (dir / "to") + " ";
  write_text_file(dir / "array", run + "printenv SLURM_ARRAY_TASK_ID\n");
  write_text_file(dir / "again",
                  run + "sh -c 'echo $$ >>pids; [ $(wc -l <pids) = 2 ] || sleep 99'\n");
  auto result = cluster.sh("sbatch --wait --array=3-4 -N1 -o out-%a array && cat out-3 out-4");
  ASSERT_EQ(result.status, 0) << result.err;
  // Slurm would wait for two minutes before it starts it again. slurmd refuses what starts in the
  // second in which it killed the job ("already killed, do not launch").
  result = cluster.sh(
      "id=$(sbatch --parsable --requeue -N1 -o out again); "
      "for i in $(seq 300); do [ -s pids ] && break; sleep 0.1; done; "
      "scontrol requeue $id; sleep 2.1; "
      "for i in $(seq 300); do [ $(ls to/*.gz | wc -l) = 4 ] && break; "
      "scontrol update job=$id StartTime=now 2>/dev/null; sleep 0.1; done; "
      "ls to; squeue; scontrol show job $id; cat out",
      {.deadline = 120s});
  const auto database = " --db " + (dir / "jobs.db") + " ";
  const auto stored = cluster.sh(fs_job + " submit" + database + "to/* && " + fs_job + " query" +
                                 database + "--format json --columns jobid,restart,complete");
  ASSERT_EQ(stored.status, 0) << stored.err;
  const auto jobs = nlohmann::json::parse(stored.out.substr(stored.out.find('[')));
  std::set<std::string> ids;
  std::multiset<int> restarts;
  for (const auto& job : jobs) {
    ids.insert(job["jobid"]);
    restarts.insert(job["restart"].get<int>());
    EXPECT_EQ(job["complete"], 1);
  }
  EXPECT_EQ(jobs.size(), 4U) << result.out << result.err;
  EXPECT_EQ(ids.size(), 3U) << stored.out;
  EXPECT_EQ(restarts, (std::multiset<int>{0, 0, 0, 1})) << stored.out;
  std::set<int> tasks;
  for (const auto& entry : fs::directory_iterator(dir / "to"))
    if (const auto archive = read_job(entry.path()); archive.job.contains("array"))
      tasks.insert(archive.job["array"]["task"].get<int>());
  EXPECT_EQ(tasks, (std::set<int>{3, 4}));
}

TEST(JobOnNodes, components_of_a_het_job_are_jobs_of_their_own) {
  if (const auto obstacle = Cluster::obstacle(); !obstacle.empty()) HEDDLE_SKIP(obstacle);
  HEDDLE_STAGED(fs_job, "fs-job");
  TestDir dir;
  const auto scripts = fs_job.substr(0, fs_job.rfind("/bin/")) + "/share/heddle/fs-job-";
  const Cluster cluster(dir.path(), 3, scripts + "epilog.sh", "", "backfill");
  fs::create_directories(dir / "to");
  const auto run =
      fs_job + " run -q --to " + (dir / "to") + " sh -c 'printenv SLURM_PROCID; sleep 1'";
  write_text_file(dir / "batch",
                  "#!/bin/sh\n#SBATCH -N1 -n1 -oout\n#SBATCH hetjob\n#SBATCH -N2 -n2\nsrun " + run +
                      " : " + run + "\n");
  // One allocation of srun's, and one of sbatch's whose steps have a component each.
  auto result = cluster.sh("srun -N1 -n1 " + run + " : -N2 -n2 " + run);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(lines_of(result.out).size(), 3U);
  result = cluster.sh("sbatch --wait batch && cat out");
  ASSERT_EQ(result.status, 0) << result.err << result.out;
  // What a killed component leaves is found by its own id, which Slurm's epilog has.
  result = cluster.sh("srun -N1 -n1 true : -N2 -n2 " + fs_job + " run -q --to " + (dir / "to") +
                      " sh -c 'sleep 1; kill -9 $PPID'");
  const auto tasks =
      " --task-prolog=" + scripts + "task-prolog.sh --task-epilog=" + scripts + "task-epilog.sh ";
  result = cluster.sh("HEDDLE_JOB_TO=" + (dir / "to") + " srun -N1 -n1" + tasks +
                      "sleep 1 : -N2 -n2" + tasks + "sleep 1");
  EXPECT_EQ(result.status, 0) << result.err;
  const auto database = " --db " + (dir / "jobs.db") + " ";
  ASSERT_TRUE(wait_until(60s, [&] {
    return std::ranges::count_if(fs::directory_iterator(dir / "to"), [](const auto& entry) {
             return entry.path().extension() == ".gz";
           }) == 11;
  })) << cluster.sh("ls -R to /tmp/heddle-jobs-0").out;
  result = cluster.sh(fs_job + " submit" + database + "to/* && " + fs_job + " query" + database +
                      "--format json --columns jobid,num_hosts,complete");
  ASSERT_EQ(result.status, 0) << result.err;
  std::map<std::string, int> hosts_of;
  for (const auto& job : nlohmann::json::parse(result.out.substr(result.out.find('[')))) {
    hosts_of[job["jobid"]] = job["num_hosts"];
    EXPECT_EQ(job["complete"], 1);
  }
  EXPECT_EQ(hosts_of, (std::map<std::string, int>{
                          {"1", 1}, {"2", 2}, {"3", 1}, {"4", 2}, {"6", 2}, {"7", 1}, {"8", 2}}));
  for (const auto& entry : fs::directory_iterator(dir / "to")) {
    const auto archive = read_job(entry.path());
    const auto id = std::stoi(archive.job["jobid"].get<std::string>());
    EXPECT_EQ(archive.job["het"], nlohmann::json({{"job", std::to_string(id - (id + 1) % 2)},
                                                  {"offset", (id + 1) % 2}}));
    EXPECT_EQ(archive.job["hosts"].size(), id % 2 == 1 ? 1U : 2U);
    // By the tasks' epilog, not by that of the job, which comes later.
    if (id > 6) {
      EXPECT_FALSE(archive.job["collector"].contains("left"));
    }
  }
}

TEST(JobOnNodes, ranks_of_fs_launch_are_one_job) {
  if (const auto obstacle = Cluster::obstacle(); !obstacle.empty()) HEDDLE_SKIP(obstacle);
  HEDDLE_STAGED(fs_launch, "fs-launch");
  const auto fs_job = fs::path(fs_launch).parent_path().string() + "/fs-job";
  TestDir dir;
  const Cluster cluster(dir.path());
  const auto database = " --db " + (dir / "jobs.db") + " ";
  const auto rank =
      " sh -c 'sleep 1; /bin/echo $SLURM_PROCID; exit $((SLURM_PROCID == 3 ? 7 : 0))'"s;
  fs::create_directories(dir / "to");
  auto result = cluster.sh("HEDDLE_JOB_TO=to LD_PRELOAD=libm.so.6 " + fs_launch +
                           " --report --job --slow / srun -Q -N4 -n8" + rank);
  EXPECT_EQ(result.status, 7) << result.err;
  EXPECT_EQ(lines_of(result.out).size(), 8U);
  EXPECT_THAT(result.err, HasSubstr("8 of 8 ranks guided on 4 nodes"));
  std::set<std::string> hosts;
  std::set<std::int64_t> ranks;
  for (const auto& entry : fs::directory_iterator(dir / "to")) {
    const auto archive = read_job(entry.path());
    hosts.insert(archive.job["host"].get<std::string>());
    for (const auto& row : archive.of("echo")) {
      ranks.insert(row.threads.at(0).at("mpirank"));
      EXPECT_EQ(row.threads[0].at("numranks"), 8);
    }
  }
  EXPECT_EQ(hosts, (std::set<std::string>{"n1", "n2", "n3", "n4"}));
  EXPECT_EQ(ranks, (std::set<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(cluster.sh("ls /tmp/heddle-jobs-*/* 2>/dev/null").out, "");

  result = cluster.sh(fs_job + " submit" + database + "to/* && " + fs_job + " query" + database +
                      "--format json --columns num_hosts,complete,exitcode,ranks");
  ASSERT_EQ(result.status, 0) << result.err;
  const auto jobs = nlohmann::json::parse(result.out.substr(result.out.find('[')));
  ASSERT_EQ(jobs.size(), 1U) << result.out;
  EXPECT_EQ(jobs[0]["num_hosts"], 4);
  EXPECT_EQ(jobs[0]["complete"], 1);
  EXPECT_EQ(jobs[0]["exitcode"], 7);
  EXPECT_EQ(jobs[0]["ranks"], 8);

  // What cannot be collected runs.
  for (const std::string odd : {"HEDDLE_JOB_SPOOL=/proc/none ", "HEDDLE_JOB_TO=/proc/none "}) {
    result = cluster.sh(odd + fs_launch + " --report --job --slow / srun -Q -N4 -n8" + rank);
    EXPECT_EQ(result.status, 7) << odd << result.err;
    EXPECT_EQ(lines_of(result.out).size(), 8U);
    EXPECT_THAT(result.err, HasSubstr("8 of 8 ranks guided on 4 nodes")) << odd;
    EXPECT_THAT(result.err, HasSubstr("warning: ")) << odd;
  }
}

}  // namespace
}  // namespace heddle::test
