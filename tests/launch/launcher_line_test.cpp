// SPDX-License-Identifier: MIT
// What options of the launcher's line, and settings, keep from ranks.
#include "tests/launch/launch_fixture.hpp"

namespace heddle::test {
namespace {

class LaunchersLine : public LaunchFixture {};

TEST_F(LaunchersLine, no_rank_runs_outside_of_its_image) {
  const auto agent = "OMPI_MCA_orte_fork_agent=/bin/time"s;
  const auto tuned = write_text_file(dir_ / "tuned", "--mca orte_fork_agent /bin/time\n");
  const auto plan = [&](const Strings& line, const char* image) {
    return launch(line, *image ? Strings{"--image", image, "--dry-run"} : Strings{"--dry-run"});
  };
  for (const auto& line : {Strings{"srun", "-n", "2", "--export", "NONE", "true"},
                           {"srun", "--export=ALL,LD_AUDIT=/a.so", "true"},
                           {"srun", "--export=HEDDLE_LAUNCH,HOME", "true"},
                           {"srun", "-J", "test", "--label", "--export=NONE", "true"},
                           {"srun", "--account", "test", "--exp=NONE", "--", "true"},
                           {"srun", "-n1", "true", "x", ":", "--export=NONE", "true"},
                           {"env", "A=1", "srun", "--export=NONE", "true"},
                           {"mpiexec.hydra", "-genv", "LD_AUDIT", "/a.so", "true"},
                           {"mpiexec.hydra", "-n", "1", "--env", "LD_AUDIT=/a.so", "true"},
                           {"mpiexec.hydra", "-genvnone", "true"},
                           {"mpiexec.hydra", "-genvlist", "PATH,HOME", "true"},
                           {"mpirun.openmpi", "--mca", "orte_fork_agent", "/bin/time", "true"},
                           {"mpirun.openmpi", "--tune", "none," + tuned, "true"},
                           {"./prterun", "--runtime-options", "exec-Agent=/bin/time", "true"}}) {
    fs::copy_file("/bin/true", dir_ / "prterun", fs::copy_options::skip_existing);
    const auto plain = plan(line, "");
    EXPECT_EQ(plain.status, 0) << to_shell(line);
    EXPECT_THAT(plain.err, HasSubstr("run unguided")) << to_shell(line);
    const auto inside = plan(line, "/");
    EXPECT_EQ(inside.status, 3) << to_shell(line);
    EXPECT_THAT(inside.err, HasSubstr("would run outside of the image")) << to_shell(line);
  }
  const auto innocent = [&](const Strings& line) {
    EXPECT_EQ(plan(line, "/").err, "") << to_shell(line);
  };
  innocent({"srun", "-D", "/", "./missing", "--export", "csv"});
  innocent({"srun", "--export=HEDDLE_LAUNCH,LD_AUDIT", "true"});
  innocent({"mpirun.openmpi", "-n", "1", "printf", "--param", "orte_fork_agent"});
  innocent({"mpiexec.hydra", "-genvlist", "LD_AUDIT,HEDDLE_LAUNCH", "true"});
  options_.env.push_back(agent);
  innocent({"srun", "true"});
  innocent({"mpiexec.hydra", "true"});
  innocent({"./prterun", "true"});
  EXPECT_THAT(plan({"mpirun.openmpi", "true"}, "/").err, HasSubstr("outside of the image"));
  const auto script = plan({"true"}, "/");  // which may start any launcher
  EXPECT_EQ(script.status, 0);
  EXPECT_THAT(script.err, HasSubstr("of Open MPI's mpirun run outside of the image"));
  options_.env.back() = "HYDRA_ENV=none";
  EXPECT_THAT(plan({"mpiexec.hydra", "true"}, "/").err, HasSubstr("outside of the image"));
  options_.env.back() = "SLURM_EXPORT_ENV=NONE";
  innocent({"srun", "-J", "test", "--export=ALL", "true"});
  EXPECT_THAT(plan({"srun", "true"}, "/").err, HasSubstr("outside of the image"));
}

TEST_F(LaunchersLine, users_own_hooks_are_chained_or_left) {
  options_.env.back() = "OMPI_MCA_orte_fork_agent=/usr/bin/nice";
  auto plan = launch({"true"}, {"--dry-run"});
  EXPECT_THAT(plan.err, HasSubstr("OMPI_MCA_orte_fork_agent: is set already"));
  EXPECT_THAT(plan.out, Not(HasSubstr("OMPI_MCA_orte_fork_agent")));
  const auto ranks =
      launch({"mpirun.openmpi", "-n", "2", "sh", "-c", "echo $OMPI_MCA_orte_fork_agent"});
  EXPECT_EQ(ranks.out, "/usr/bin/nice\n/usr/bin/nice\n") << ranks.err;
  // A site's or user's configuration of Open MPI has it, which variables would hide.
  const auto in_file = [&](const std::string& file, const std::string& variable) {
    write_text_file(file, "# orte_fork_agent = none\n orte_fork_agent=/usr/bin/nice -n 3\n");
    options_.env.back() = variable;
    plan = launch({"true"}, {"--dry-run"});
    EXPECT_THAT(plan.err, HasSubstr(file + ": sets orte_fork_agent, which stays"));
    EXPECT_THAT(plan.out, Not(HasSubstr("OMPI_MCA_orte_fork_agent")));
    const auto nice = launch({"mpirun.openmpi", "-n", "2", "nice"}, {"--report"});
    EXPECT_EQ(nice.out, "3\n3\n") << nice.err;
    EXPECT_THAT(nice.err, HasSubstr("2 of 2 ranks guided"));
    fs::remove(file);
  };
  in_file(dir_ / "home/.openmpi/mca-params.conf", "HOME=" + dir_ / "home");
  in_file(dir_ / "site.conf", "OMPI_MCA_mca_base_param_files=/nonexistent," + dir_ / "site.conf");
  // Of an installation of its own.
  fs::create_directories(dir_ / "opt/bin");
  fs::copy_file("/bin/true", dir_ / "opt/bin/mpirun");
  write_text_file(dir_ / "opt/etc/openmpi-mca-params.conf", "orte_fork_agent = nice\n");
  options_.env.back() = "HOME=" + dir_ / "home";
  EXPECT_THAT(launch({dir_ / "opt/bin/mpirun"}, {"--dry-run"}).err, HasSubstr("opt/etc/openmpi-"));
  EXPECT_EQ(launch({"true"}, {"--dry-run"}).err, "");
  options_.env.back() = "LD_AUDIT=/nonexistent.so";
  plan = launch({"true"}, {"--dry-run"});
  EXPECT_THAT(plan.out, HasSubstr("libheddle-audit.so:/nonexistent.so"));
}

}  // namespace
}  // namespace heddle::test
