// SPDX-License-Identifier: MIT
// fs-launch on four nodes, before the launchers that start ranks there.
#include "tests/launch/on_nodes.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

struct Launch {
  const char* name;
  const char* compiler;
  std::string allocation;  ///< starts fs-launch
  std::string launcher;    ///< two ranks a node; RSH stands for the cluster's, SSH for a real ssh
};

class LaunchedOnNodes : public OnNodes, public ::testing::WithParamInterface<Launch> {};

TEST_P(LaunchedOnNodes, ranks_are_guided_and_nothing_stays) {
  if (run({"sh", "-c", "command -v "s + GetParam().compiler}).status != 0)
    HEDDLE_SKIP(GetParam().compiler + " is not installed"s);
  std::ofstream(dir_ / "app.c") << Cluster::kRanksSayWhere;
  run_checked({GetParam().compiler, "-o", dir_ / "app", dir_ / "app.c"});
  auto command = GetParam().launcher;
  if (const auto at = command.find("RSH"); at != command.npos)
    command.replace(at, 3, cluster_->rsh());
  if (const auto at = command.find("SSH"); at != command.npos) {
    const auto ssh = cluster_->start_sshd();
    if (ssh.empty()) HEDDLE_SKIP("openssh-server is not installed");
    command.replace(at, 3, ssh);
  }
  const auto result = cluster_->sh(GetParam().allocation + " " + fs_launch_ +
                                   " --report --slow / " + command + " ./app");
  EXPECT_EQ(result.status, 0) << result.err;
  Strings expected;
  for (int rank = 0; rank < 8; ++rank)
    expected.push_back("n" + std::to_string(1 + rank / 2) + " " + std::to_string(rank) + " 8");
  EXPECT_EQ(sorted_lines(result.out), expected) << result.err;
  EXPECT_THAT(result.err, HasSubstr("8 of 8 ranks guided on 4 nodes"));
  // The second rank of each node joins the mount of the first.
  EXPECT_THAT(result.err, Not(HasSubstr(" 0 opens of libraries")));
}

INSTANTIATE_TEST_SUITE_P(
    , LaunchedOnNodes,
    ::testing::ValuesIn({
        Launch{"srun_pmix", "mpicc.openmpi", "", "srun -Q -N4 -n8 --mpi=pmix"},
        {"srun_pmi2", "mpicc.mpich", "", "srun -Q -N4 -n8 --mpi=pmi2"},
        {"srun_in_salloc", "mpicc.openmpi", "salloc -Q -N4", "srun -Q -n8 --mpi=pmix"},
        {"openmpi_rsh", "mpicc.openmpi", "",
         "mpirun.openmpi --mca plm_rsh_agent RSH -host n1:2,n2:2,n3:2,n4:2"},
        {"openmpi_real_ssh", "mpicc.openmpi", "",
         "mpirun.openmpi --mca plm_rsh_agent SSH -host n1:2,n2:2,n3:2,n4:2"},
        {"openmpi_salloc", "mpicc.openmpi", "salloc -Q -N4", "mpirun.openmpi -npernode 2"},
        {"hydra_ssh", "mpicc.mpich", "",
         "mpiexec.hydra -launcher ssh -launcher-exec RSH -hosts n1:2,n2:2,n3:2,n4:2 -n 8"},
        {"hydra_real_ssh", "mpicc.mpich", "",
         "mpiexec.hydra -launcher ssh -launcher-exec SSH -hosts n1:2,n2:2,n3:2,n4:2 -n 8"},
        {"hydra_slurm", "mpicc.mpich", "salloc -Q -N4",
         "mpiexec.hydra -launcher slurm -ppn 2 -n 8"},
    }),
    [](const auto& each) { return std::string(each.param.name); });

/// No node here is fs-launch's own.
TEST_F(OnNodes, static_and_setuid_ranks_are_counted) {
  std::ofstream(dir_ / "app.c") << "#include <stdio.h>\n#include <unistd.h>\n"
                                   "int main() { sleep(2); printf(\"%d\\n\", geteuid()); }\n";
  run_checked({"cc", "-static", "-o", dir_ / "static", dir_ / "app.c"});
  run_checked({"cc", "-o", dir_ / "setuid", dir_ / "app.c"});
  fs::permissions(dir_.path(), fs::perms(0755));
  run_checked({"chown", "65534:65534", dir_ / "setuid"});
  run_checked({"chmod", "4755", dir_ / "setuid"});
  const auto mpirun =
      "mpirun.openmpi --mca plm_rsh_agent " + cluster_->rsh() + " -host n1:2,n2:2,n3:2,n4:2 ";
  for (const auto& [program, id] : {std::pair{"static", "0"}, {"setuid", "65534"}}) {
    const auto both = [&](const std::string& launcher) {
      const auto done = cluster_->sh(fs_launch_ + " --report --slow / " + launcher + " ./" +
                                     program + " | sort | uniq -c");
      EXPECT_EQ(done.out, "      8 "s + id + "\n") << done.err;
      EXPECT_THAT(done.err, HasSubstr("fs-launch: 0 of 8 ranks guided"));
      return done.err;
    };
    EXPECT_THAT(both("srun -Q -N4 -n8"),
                HasSubstr("8 ranks did not report (0-7): static, setuid or"));
    const auto table = both(mpirun);
    for (int node = 1; node <= 4; ++node)
      EXPECT_THAT(table, testing::ContainsRegex("\nn" + std::to_string(node) + " +2 +0 .* " +
                                                program + " program\n"));
  }
}

TEST_F(OnNodes, job_that_the_launcher_makes_is_collected_by_its_number) {
  if (staged_program("fs-job").empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
  std::ofstream(dir_ / "batch") << "#!/bin/sh\nsrun -Q echo ran\n";
  const auto job = [&](const std::string& line) {
    auto done = cluster_->sh("rm -rf jobs; mkdir jobs; HEDDLE_JOB_TO=jobs " + fs_launch_ + line);
    done.out = cluster_->sh("ls jobs").out;
    return done;
  };
  const auto step = job(" --job srun -Q -N2 -n4 true");
  EXPECT_THAT(step.out, testing::MatchesRegex("([0-9]+)-n1.tar.gz\n[0-9]+-n2.tar.gz\n"));
  EXPECT_THAT(step.err, HasSubstr("-n1.tar.gz, ")) << step.err;
  EXPECT_THAT(job(" --job salloc -Q -N2 sh -c 'srun -Q true; exit 3'").err, HasSubstr("/jobs: "));
  const auto batch = job(" --job --report sbatch --wait -N2 -n2 batch");
  EXPECT_THAT(batch.err, HasSubstr("2 of 2 ranks guided on 2 nodes"));
  EXPECT_THAT(batch.err, HasSubstr("-n1.tar.gz, "));
  const auto later = job(" --job --report sbatch -N2 -n2 batch");
  EXPECT_EQ(lines_of(later.err).size(), 2U) << later.err;
  EXPECT_THAT(later.err, HasSubstr("has a report with sbatch --wait only"));
  EXPECT_THAT(later.err, HasSubstr("when the batch job has run its archives are in "));
}

/// A program whose libraries are in app.bundle alone. Result: what it prints.
std::string make_bundle(Cluster& cluster, const std::string& bin, const std::string& directory) {
  const auto farm = ElfFarm::build(directory, {.libraries = 40});
  const auto made = cluster.sh(bin + "/fs-resolve build -o app.map farm/app && " + bin +
                               "/fs-resolve pack app.map -o app.bundle && mv farm/lib lib && "
                               "mkdir farm/lib");
  EXPECT_EQ(made.status, 0) << made.err;
  return farm.output;
}

std::string times(int number, const std::string& text) {
  std::string out;
  while (number-- > 0) out += text;
  return out;
}

TEST_F(OnNodes, bundle_is_shipped_once_and_libraries_are_not_read_from_their_files) {
  const auto output = make_bundle(*cluster_, bin_, dir_ / "farm");
  std::ofstream(dir_ / "copies") << "stat -c '%n %i %Y' /tmp/heddle-job-*/*.bundle\n";
  const auto launch = fs_launch_ + " --report --map app.bundle srun -Q -n8 farm/app; ";
  const auto copies = "srun -Q sh copies | sort >"s;
  const auto result = cluster_->sh("salloc -Q -N4 sh -c '" + launch + copies + "one; " + launch +
                                   copies + "two; srun -Q rm -rf /tmp/heddle-job-0-1'");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, times(16, output)) << result.err;
  EXPECT_THAT(result.err, HasSubstr("8 of 8 ranks guided on 4 nodes"));
  EXPECT_EQ(lines_of(cluster_->sh("cat one").out).size(), 4U);
  EXPECT_EQ(cluster_->sh("cmp one two").status, 0);
  const auto plan =
      cluster_->sh("salloc -Q -N4 " + fs_launch_ + " --dry-run --map app.bundle srun id");
  EXPECT_THAT(plan.out, StartsWith("# srun asks the 4 nodes whether they have heddle\n"
                                   "# fs-ship copies the bundle to them: sbcast\nLD_AUDIT="));
}

/// The bundle's file is gone once the nodes have their copies: no rank reads it.
TEST_F(OnNodes, bundle_is_shipped_to_nodes_that_srun_allocates) {
  const auto output = make_bundle(*cluster_, bin_, dir_ / "farm");
  const auto path = write_text_file(dir_ / "prolog",
                                    "#!/bin/sh\nmv app.bundle gone && printf '%s\\n' \"$0\" \"$@\" "
                                    "\"${LD_AUDIT-none}\" >>said\n",
                                    0755);
  const auto launch = [&](const std::string& before) {
    const auto done = cluster_->sh(before + fs_launch_ +
                                   " --report --map app.bundle srun -Q -N4 -n8 farm/app 'a b' ''");
    EXPECT_EQ(done.out, times(8, output)) << done.err;
    EXPECT_THAT(done.err, HasSubstr("8 of 8 ranks guided on 4 nodes"));
    EXPECT_EQ(read_file(dir_ / "said").value_or(""), path + "\nfarm/app\na b\n\n" +
                                                         fs::path(bin_).parent_path().string() +
                                                         "/lib/heddle/libheddle-audit.so\n");
    EXPECT_EQ(cluster_->sh("mv gone app.bundle && rm said").status, 0);
  };
  launch("SLURM_PROLOG=" + path + " ");
  // A site's.
  ASSERT_EQ(
      cluster_->sh("echo SrunProlog=" + path + " >>$SLURM_CONF && scontrol reconfigure").status, 0);
  launch("");
  // The script that srun is in clears the environment but for srun's own.
  ASSERT_EQ(cluster_
                ->sh(fs_launch_ + " --slow / env -u HEDDLE_LAUNCH srun -Q -N1 -n1 true && "
                                  "grep -qx true said && rm said")
                .status,
            0);
  EXPECT_EQ(cluster_
                ->sh("rm -f said; " + fs_launch_ + " --slow / srun -Q -n1 printenv " +
                     "SLURM_SCRIPT_CONTEXT SLURM_PROLOG; rm -f said")
                .out,
            "");
  const auto none =
      cluster_->sh("SLURM_PROLOG=none " + fs_launch_ +
                   " --slow / srun -Q -N1 -n1 sh -c 'echo ${LD_AUDIT-none} $SLURM_PROLOG'");
  EXPECT_EQ(none.err, "");
  EXPECT_THAT(none.out, testing::EndsWith("/libheddle-audit.so none\n"));
  EXPECT_FALSE(fs::exists(dir_ / "said"));
}

/// What the user sets for srun and sbcast is not for steps of ours.
TEST_F(OnNodes, users_options_of_srun_are_for_ranks_alone) {
  const auto show = " sh -c 'echo ${LD_AUDIT-none}'"s;
  const auto launch = fs_launch_ + " --slow / srun -Q ";
  const auto guided = [&](const std::string& line) {
    const auto done = cluster_->sh(line);
    EXPECT_EQ(done.status, 0) << line;
    EXPECT_THAT(done.err, Not(HasSubstr("fs-launch"))) << line;
    EXPECT_THAT(lines_of(done.out), testing::SizeIs(2)) << line;
    EXPECT_THAT(lines_of(done.out), testing::Each(HasSubstr("/libheddle-audit.so"))) << line;
  };
  guided(launch + "-N2 -n2 -l" + show);
  guided(launch + "-N2 -n2 --cpu-bind=cores" + show);
  guided("SLURM_LABELIO=1 SLURM_CPU_BIND=cores salloc -Q -N2 " + launch + "-n2" + show);
  guided("SLURM_BCAST=$PWD/copy salloc -Q -N2 " + launch + "-n2" + show + "; rm -f copy*");
  guided("SLURM_OPEN_MODE=a SLURM_STDOUTMODE=out salloc -Q -N2 " + launch + "-n2" + show +
         "; cat out");
  make_bundle(*cluster_, bin_, dir_ / "farm");
  const auto shipped = cluster_->sh("SLURM_LABELIO=1 SBCAST_COMPRESS=lz4 salloc -Q -N2 " + bin_ +
                                    "/fs-ship app.bundle");
  EXPECT_EQ(shipped.status, 0) << shipped.err;
  EXPECT_THAT(shipped.out, testing::EndsWith(".bundle\n"));
}

/// Neither in an allocation of srun's own nor in a batch job's, whose other steps go on.
TEST_F(OnNodes, no_rank_runs_outside_of_its_image_on_a_node_without_heddle) {
  ASSERT_EQ(cluster_->on(3, "mount -t tmpfs none " + bin_).status, 0);
  const auto srun = "srun -Q -N4 -n4 touch " + dir_ / "ran.$i";
  for (const auto& launch :
       {"--image / --backend bare " + srun, "--hold --hold-limit 9 " + srun,
        "--image / --backend bare sh -c 'salloc -Q -N4 sh -c \"" + srun + "\"'"}) {
    const auto done = cluster_->sh("for i in 1 2 3; do " + fs_launch_ + " " + launch +
                                   "; test $? = 137 || exit 1; done");
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_THAT(done.err, HasSubstr("1 of 4 do not answer: n3"));
    EXPECT_TRUE(wait_until(10s, [&] { return cluster_->sh("squeue -h").out.empty(); }));
    for (const auto* name : {"ran.", "ran.1"}) EXPECT_FALSE(fs::exists(dir_ / name)) << launch;
  }
}

TEST_F(OnNodes, node_without_heddle_leaves_the_job_unguided_as_a_whole) {
  ASSERT_EQ(cluster_->on(3, "mount -t tmpfs none " + bin_).status, 0);
  const auto result = cluster_->sh("salloc -Q -N4 " + fs_launch_ +
                                   " --slow / srun -Q -n4 sh -c 'echo ${LD_AUDIT-none}'");
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out, "none\nnone\nnone\nnone\n");
  EXPECT_THAT(result.err, HasSubstr("n3: the job runs without heddle"));
  // Nodes that srun allocates itself, for a script or not, by a user or root.
  std::ofstream(dir_ / "script") << "srun -Q -N4 -n4 sh -c 'hostname; sleep 4'\n";
  fs::permissions(dir_.path(), fs::perms(0755));
  fs::create_directories(dir_ / "home");
  run_checked({"chown", "65534", dir_ / "home"});
  for (const auto& [before, launcher] :
       {std::pair{""s, "srun -Q -N4 -n4 sh -c 'hostname; sleep 4'"},
        {"HOME=$PWD/home XDG_CACHE_HOME= setpriv --reuid 65534 --clear-groups "s, "sh script"}}) {
    const auto ranks =
        cluster_->sh(before + fs_launch_ + " --report --slow / " + launcher + " | sort");
    EXPECT_EQ(ranks.out, "n1\nn2\nn3\nn4\n");
    EXPECT_THAT(ranks.err, HasSubstr("do not answer: n3: the job runs without heddle\n"));
    EXPECT_THAT(ranks.err, HasSubstr("0 of 4 ranks guided on 3 nodes"));
    EXPECT_THAT(ranks.err, HasSubstr("1 rank did not report (2"));
    EXPECT_THAT(ranks.err, testing::ContainsRegex("\nn1 +1 +0 .*do not answer: n3\n"));
  }
  // Several ranks of a node, each with a prolog, which looks too, and two steps of a job at once.
  write_text_file(dir_ / "prolog", "#!/bin/sh\ntrue\n", 0755);
  std::ofstream(dir_ / "steps") << "for i in 1 2; do srun -Q -O --overlap -n5 --task-prolog="
                                << dir_ / "prolog"
                                << " sh -c 'echo $(hostname) ${LD_AUDIT-none}' & done; wait\n";
  const auto steps =
      cluster_->sh(fs_launch_ + " -q --slow / salloc -Q -N3 -n6 -w n1,n2,n3 sh steps");
  auto ranks = sorted_lines(steps.out);
  std::erase_if(ranks, [](const std::string& line) { return line.starts_with("n3 "); });
  EXPECT_EQ(ranks, (Strings{"n1 none", "n1 none", "n1 none", "n1 none", "n2 none", "n2 none",
                            "n2 none", "n2 none"}))
      << steps.err;
  // The last rank of a step removes its mark.
  for (const int node : {1, 2, 4})
    EXPECT_EQ(cluster_->on(node, "ls -A /tmp | grep heddle-job").out, "") << node;
}

class OnNodesOfSeveralJobs : public OnNodes {
  void start_cluster() override { cluster_.emplace(dir_.path(), 4, "", "", "backfill"); }
};

TEST_F(OnNodesOfSeveralJobs, all_components_are_checked) {
  const auto launch = [&](const std::string& before, const std::string& line) {
    const auto done = cluster_->sh(before + fs_launch_ + " --report --slow / srun -Q " + line);
    EXPECT_EQ(sorted_lines(done.out), (Strings{"n1", "n2", "n3"})) << done.err;
    return done.err;
  };
  const auto both = [&] {
    return launch("", "-N1 -n1 hostname : -N2 -n2 hostname") +
           launch("salloc -Q -N1 : -N2 ", "--het-group=0,1 hostname");
  };
  const auto group = [&](const std::string& i) {
    const auto done =
        cluster_->sh("salloc -Q -N1 : -N2 " + fs_launch_ + " --slow / srun -Q --het-group=" + i +
                     " sh -c 'echo ${LD_AUDIT-none}'");
    EXPECT_EQ(lines_of(done.out).size(), i == "0" ? 1U : 2U);
    return done.out + done.err;
  };
  const auto good = both() + group("0") + group("1");
  EXPECT_THAT(good, Not(HasSubstr("warning")));
  EXPECT_THAT(good, Not(HasSubstr(" 0 of 3 ranks")));
  EXPECT_THAT(good, Not(HasSubstr("none")));
  ASSERT_EQ(cluster_->on(3, "mount -t tmpfs none " + bin_).status, 0);
  const auto bad = both();
  EXPECT_THAT(bad, HasSubstr(" 0 of 3 ranks"));
  EXPECT_THAT(bad, Not(HasSubstr(" 2 of 3 ranks")));
  for (const auto* i : {"0", "1"}) {
    const auto alone = group(i);
    EXPECT_THAT(alone, testing::StartsWith("none\n")) << i;
    EXPECT_THAT(alone, HasSubstr("the job runs without heddle")) << i;
    EXPECT_THAT(alone, Not(HasSubstr("ERROR: ld.so"))) << i;
  }
}

/// It has a rank variable, too.
TEST_F(OnNodes, batch_script_is_no_rank) {
  const auto done = cluster_->sh(fs_launch_ +
                                 " --report --slow / sbatch -Q -W -N2 -n4 -O -o out "
                                 "--wrap 'srun -Q sh -c \"echo \\${LD_AUDIT-none}\"'");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("4 of 4 ranks guided on 2 nodes"));
  const auto out = value_or_throw(read_file(dir_ / "out"));
  EXPECT_THAT(lines_of(out), testing::SizeIs(4));
  EXPECT_THAT(out, Not(HasSubstr("none")));
}

/// Outside of Slurm: nodes are known by a file, are asked by the launcher's remote shell, and one
/// that does not answer is the launcher's business.
TEST_F(OnNodes, nodes_of_a_host_file_are_checked) {
  ASSERT_EQ(cluster_->on(3, "mount -t tmpfs none " + bin_).status, 0);
  std::ofstream(dir_ / "pbs") << "n1\nn1\nn2\nn3\n";
  std::ofstream(dir_ / "hydra") << "# a comment\nn1:1\nn2:1\nn3:1\n";
  std::ofstream(dir_ / "openmpi") << "n1 slots=1\nn2 slots=1\nn3 slots=1\n";
  std::ofstream(dir_ / "good") << "n1\nn2\n-oProxyCommand=touch${IFS}" << dir_ / "ran"
                               << "\nn9\n";
  const auto rsh = cluster_->rsh(), show = " sh -c 'echo ${LD_AUDIT-none}'"s;
  const auto run = [&](const std::string& variables, const std::string& launcher) {
    return cluster_->sh(variables + " " + fs_launch_ + " --slow / " + launcher + show);
  };
  for (const auto& [variables, launcher] :
       {std::pair{"HYDRA_HOST_FILE=hydra HYDRA_LAUNCHER_EXEC=" + rsh,
                  "mpiexec.hydra -launcher ssh"s},
        {"OMPI_MCA_orte_default_hostfile=openmpi OMPI_MCA_plm_rsh_agent=" + rsh, "mpirun.openmpi"s},
        {"PBS_NODEFILE=pbs OMPI_MCA_plm_rsh_agent='" + rsh + " : ssh'",
         "mpirun.openmpi --hostfile pbs"s},
        {"A=1", "mpirun.openmpi --map-by node --mca plm_rsh_agent " + rsh +
                    " -n 1 -H n1 true : -n 3 "
                    "--host n1:1,n2,n3:1"},
        {"A=1", "mpiexec.hydra -launcher ssh -launcher-exec " + rsh + " -f hydra -n 3"},
        {"HYDRA_LAUNCHER_EXEC=" + rsh + " HYDRA_HOST_FILE=good",
         "mpiexec.hydra -launcher ssh -hosts=n1,n2,n3 -n 3"}}) {
    const auto done = run(variables, launcher);
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_THAT(lines_of(done.out), testing::Each("none")) << variables;
    EXPECT_THAT(lines_of(done.out), testing::SizeIs(testing::Ge(3U))) << done.err;
    EXPECT_THAT(done.err, HasSubstr("n3: has no "));
    EXPECT_THAT(done.err, HasSubstr("the job runs without heddle"));
  }
  const auto ssh = cluster_->start_sshd();
  if (ssh.empty()) HEDDLE_SKIP("openssh-server is not installed");
  // Open MPI's mpirun says so where its ssh was executed before it could move it into a group.
  const auto nothing_of_ours = testing::Each(HasSubstr("failed in parent with errno="));
  const auto good =
      run("PBS_NODEFILE=good OMPI_MCA_plm_rsh_agent=" + ssh, "mpirun.openmpi --host n1:1,n2:1");
  EXPECT_THAT(lines_of(good.err), nothing_of_ours);
  EXPECT_THAT(lines_of(good.out), testing::ElementsAre(HasSubstr("/libheddle-audit.so"),
                                                       HasSubstr("/libheddle-audit.so")));
  // Those of the line come before a file's, and words of the program are no options.
  for (const auto& line : {"mpirun.openmpi --host n1:1,n2:1 -n 2"s,
                           "mpiexec.hydra -launcher ssh -hosts n1,n2 -n 2"s}) {
    const auto named = cluster_->sh("PBS_NODEFILE=pbs OMPI_MCA_plm_rsh_agent=" + ssh +
                                    " HYDRA_LAUNCHER_EXEC=" + ssh + " " + fs_launch_ +
                                    " --slow / " + line + " echo -f pbs --host n3");
    EXPECT_EQ(named.out, "-f pbs --host n3\n-f pbs --host n3\n") << line;
    EXPECT_THAT(lines_of(named.err), nothing_of_ours) << line;
  }
  EXPECT_FALSE(fs::exists(dir_ / "ran"));
}

/// What the report says of a node that could not be checked: remote shells show that it was used.
TEST_F(OnNodes, node_without_heddle_is_named_where_a_remote_shell_starts_daemons) {
  ASSERT_EQ(cluster_->on(3, "mount -t tmpfs none " + bin_).status, 0);
  const auto ssh = cluster_->start_sshd();
  if (ssh.empty()) HEDDLE_SKIP("openssh-server is not installed");
  for (const auto& launcher :
       {"mpirun.openmpi --mca plm_rsh_agent " + ssh + " -host n1:1,n2:1,n3:1",
        "mpiexec.hydra -launcher ssh -launcher-exec " + ssh + " -hosts n1:1,n2:1,n3:1 -n 3"}) {
    std::ofstream(dir_ / "script") << launcher << " hostname\n";
    const auto done = cluster_->sh(fs_launch_ + " --report --slow / sh script | sort");
    EXPECT_EQ(done.out, "n1\nn2\nn3\n") << done.err;
    EXPECT_THAT(done.err, HasSubstr("2 of 3 ranks guided on 2 nodes"));
    EXPECT_THAT(done.err, HasSubstr("1 rank did not report (2; none of n3): ")) << launcher;
  }
}

/// Bytes, statuses and messages of srun's ranks, input, and what srun itself refuses.
/// On named nodes, since messages have their names.
TEST_F(OnNodes, srun_runs_ranks_as_without) {
  std::ofstream(dir_ / "show.c") << R"(#include <stdio.h>
#include <string.h>
int main(int n, char** v) {
  for (int i = 1; i < n; ++i) printf("%d[", i), fwrite(v[i], 1, strlen(v[i]), stdout), puts("]");
  return 0;
})";
  run_checked({"cc", "-o", dir_ / "show", dir_ / "show.c"});
  std::ofstream(dir_ / "sum.sh") << "\"$@\" | cksum\n";
  std::ofstream(dir_ / "env.sh") << "env -0 | tr '\\0\\n' '\\n\\1' | grep -a ^VARIABLE_ | cksum\n";
  std::ofstream(dir_ / "variables.sh")
      << "i=0; while [ $i -lt 10000 ]; do export \"VARIABLE_$i=$i\n=\t \"; i=$((i+1)); done\n";
  const std::string lines[] = {
      "srun -Q -n1 -w n1 ./show 'a b' '' 'line\nbreak' '*' '$HOME' \"'\\\"\\\\\" --report '\xff' "
      "'\n'",
      "srun -Q -n1 -w n1 sh sum.sh ./show $(head -c 65536 /dev/zero | tr '\\0' x) 'x\n'",
      ". ./variables.sh; srun -Q -n1 -w n1 sh env.sh",
      "printf 'some input\\n\\n\\377' | srun -Q -n1 -w n1 cksum",
      "srun -Q -n2 -w n1,n2 sh -c 'exit $((SLURM_PROCID * 7))'",
      "srun -Q -n1 -w n1 sh -c 'kill -SEGV $$'",
      "srun -Q -n1 -w n1 ./nonexistent",
      "srun --foo-unknown true",
      "srun -Q -n1 -w n1 --mpi=unknown true"};
  for (const auto& line : lines) {
    auto ours = line;
    ours.insert(line.find("srun"), fs_launch_ + " --slow / ");
    const auto bare = cluster_->sh(line), with = cluster_->sh(ours);
    EXPECT_EQ(with.status, bare.status) << line;
    EXPECT_EQ(with.out, bare.out) << line;
    EXPECT_FALSE(bare.out.empty() && bare.err.empty()) << line;
    EXPECT_EQ(sorted_lines(with.err), sorted_lines(bare.err)) << line;
  }
}

}  // namespace
}  // namespace heddle::test
