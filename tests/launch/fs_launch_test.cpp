// SPDX-License-Identifier: MIT
// fs-launch itself: its options, files and messages, before any launcher.

#include "tests/launch/launch_fixture.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

class FsLaunch : public LaunchFixture {};

/// As CTI_LAUNCHER_WRAPPER has it: fs-launch and its options in a variable before a launcher's
/// line.
TEST_F(FsLaunch, is_a_prefix_that_changes_no_word_of_the_launchers_line) {
  write_text_file(dir_ / "launcher", "#!/bin/sh\nprintf '[%s]' \"$@\"; exit 5\n", 0755);
  const auto line =
      " ./launcher -n 4 --map x --report -q '' 'a  b' '*' '$HOME' -- ./app : --slow -- y"s;
  const auto bare = sh(line), ours = sh("W=\"$FS_LAUNCH --slow / --via direct\"; $W" + line);
  EXPECT_EQ(ours.status, 5);
  EXPECT_EQ(ours.out, bare.out);
  EXPECT_EQ(ours.err, bare.err);
}

TEST_F(FsLaunch, program_that_mpirun_finds_elsewhere_is_the_one_that_runs) {
  fs::create_directory(dir_ / "bin");
  fs::copy_file("/bin/echo", dir_ / "bin/id");
  const auto done = launch({"mpirun.openmpi", "--path", dir_ / "bin", "-n", "1", "id", "ran"});
  EXPECT_EQ(done.out, "ran\n");
  EXPECT_THAT(done.err, HasSubstr("mpirun --path"));
}

TEST_F(FsLaunch, launcher_starts_without_a_working_directory) {
  for (const char* options : {"--job", "--map a", ""}) {
    const auto done =
        sh("mkdir gone; cd gone; rmdir ../gone; $FS_LAUNCH "s + options + " /bin/echo ran");
    EXPECT_THAT(done.out, HasSubstr("ran\n")) << done.err;
  }
}

TEST_F(FsLaunch, signals_to_the_group_of_a_launcher_below_it_arrive_once) {
  const auto app = compile("app", kLogsSignals);
  for (const char* option : {"--report", "--hold"}) {
    const auto got =
        sh("rm -f up log; sent() { for i in $(seq 200); do grep -qx $1 log && return; "
           "sleep 0.05; done; }; setsid $FS_LAUNCH -q " +
           std::string(option) + " " + app +
           " >/dev/null 2>&1 & while [ ! -s up ]; do sleep 0.05; done; read group "
           "rank <up; for n in USR2 ALRM INT; do kill -$n -- -$group; sent $(kill -l "
           "$n); done; for n in INT USR2; do kill -$n $group; sleep 0.5; done; kill "
           "-TERM -- -$group; wait; cat log");
    EXPECT_EQ(got.out, "12\n14\n2\n2\n12\n15\n") << option << got.err;
  }
}

TEST_F(FsLaunch, options_without_what_they_need_are_refused_or_named) {
  for (const auto& options :
       {Strings{"--backend", "bare"}, {"--source", "/etc/profile"}, {"--ship", "sbcast"}})
    EXPECT_EQ(launch({"true"}, options).status, 2) << options[0];
  for (const char* option : {"--tree", "--python"})
    EXPECT_THAT(launch({"true"}, {option, "/no/such"}).err, HasSubstr("this node has no such"));
  EXPECT_THAT(launch({"true"}, {"--image", "/", "--source", "/no/such", "--dry-run"}).err,
              HasSubstr("--source: cannot be read on this node"));
  const auto map = dir_ / "true.map";
  run_checked({staged_program("fs-resolve"), "build", "-o", map, "/bin/true"});
  EXPECT_THAT(launch({"true"}, {"--map", map, "--ship", "sbcast", "--dry-run"}).err,
              HasSubstr("--ship: is no bundle: the nodes read it where it is"));
  EXPECT_EQ(launch({"true"}, {"--map", map, "--ship", "no", "--dry-run"}).err, "");
  EXPECT_THAT(launch({"srun", "--export=NONE", "true"}, {"--dry-run"}).err,
              HasSubstr("--export=NONE: keeps heddle's variables from the ranks"));
  EXPECT_EQ(launch({"srun", "--export=HOME,all", "true", "--export=NONE"}, {"--dry-run"}).err, "");
  options_.env.push_back("SLURM_EXPORT_ENV=HOME");
  EXPECT_THAT(launch({"srun", "true"}, {"--dry-run"}).err, HasSubstr("--export=HOME: keeps"));
  options_.env.push_back("HEDDLE=off");
  EXPECT_THAT(launch({"true"}, {"--report"}).err, HasSubstr("HEDDLE=off: nothing is reported"));
  EXPECT_EQ(launch({"true"}, {"--report", "-q"}).err, "");
}

TEST_F(FsLaunch, report_names_a_damaged_bundle) {
  const auto resolve = staged_program("fs-resolve");
  const auto map = dir_ / "git.map", bundle = dir_ / "git.bundle";
  run_checked({resolve, "build", "-o", map, "/usr/bin/git"});
  run_checked({resolve, "pack", map, "-o", bundle});
  const auto report = [&] {
    return launch({"mpiexec.hydra", "-n", "2", "git", "--version"}, {"--report", "--map", bundle});
  };
  EXPECT_THAT(report().err, Not(HasSubstr("hash")));
  run_checked({"dd", "if=/dev/urandom", "of=" + bundle, "bs=1000", "seek=1", "count=20",
               "conv=notrunc", "status=none"});
  const auto damaged = report();
  EXPECT_EQ(damaged.status, 0) << damaged.err;
  EXPECT_THAT(damaged.err, HasSubstr("is damaged or has changed: frame 0 has another hash"));
}

TEST_F(FsLaunch, ranks_within_another_launchers_rank_are_all_counted) {
  options_.env.push_back("OMPI_COMM_WORLD_RANK=0");
  EXPECT_THAT(launch({"mpiexec.hydra", "-n", "3", "git", "--version"}, {"--report"}).err,
              HasSubstr("3 of 3 ranks guided"));
}

TEST_F(FsLaunch, heddle_off_turns_everything_off) {
  options_.env.push_back("HEDDLE=off");
  const auto off = launch({"env"});
  EXPECT_THAT(off.out, Not(AllOf(HasSubstr("LD_AUDIT="))));
  EXPECT_THAT(off.out, Not(HasSubstr("HEDDLE_LAUNCH=")));
  EXPECT_THAT(off.out, Not(HasSubstr("orte_fork_agent")));
}

TEST_F(FsLaunch, dry_run_starts_nothing) {
  const auto plan = launch({"touch", dir_ / "started"}, {"--dry-run"});
  EXPECT_EQ(plan.status, 0);
  EXPECT_THAT(plan.out, HasSubstr("HEDDLE_LAUNCH=" + fs_launch_));
  EXPECT_FALSE(fs::exists(dir_ / "started"));
  const auto gone = launch({"no-such-launcher"}, {"--dry-run"});
  EXPECT_EQ(gone.status, 127);
  EXPECT_THAT(gone.err, HasSubstr("no-such-launcher"));
}

TEST_F(FsLaunch, dry_run_prints_what_a_shell_runs) {
  const Strings odd = {"printf", "[%s]", "a b",    "x\ny'",      "",     "*",        "it's",
                       "a\\b",   "A=b",  "\x1b[m", "\xc2\x85\\", "\xff", "\xc3\xa4", "$HOME `x` !"};
  const auto bare = run(odd, options_);
  for (const bool is_off : {false, true}) {
    if (is_off) options_.env.push_back("HEDDLE=off");
    const auto plan = launch(odd, {"--dry-run"});
    EXPECT_EQ(sh(plan.out).out, bare.out);
    for (const char* control : {"\x1b", "\xc2\x85", "\xff"})
      EXPECT_EQ(plan.out.find(control), std::string::npos);
  }
  options_.env.pop_back();
  write_text_file(dir_ / "A=b", "#!/bin/sh\necho $HEDDLE_LAUNCH\n", 0755);
  options_.env.push_back("PATH=" + dir_.path() + ":" + std::getenv("PATH"));
  EXPECT_THAT(sh(launch({"A=b"}, {"--dry-run"}).out).out, HasSubstr(fs_launch_));
}

TEST_F(FsLaunch, job_with_a_useless_map_runs_as_without) {
  options_.env.push_back("XDG_CONFIG_HOME=" + dir_ / "config");
  ASSERT_EQ(launch({"create", "p", "--env", "A=1", "--env", "PATH=/none", "--map", "/none.map"},
                   {"profile"})
                .status,
            0);
  const auto plain =
      launch({"sh", "-c", "echo \"<$A $PATH>\""}, {"--profile", "p", "--report", "-q"});
  EXPECT_EQ(plain.out, "<1 /none>\n");
  EXPECT_THAT(plain.err, HasSubstr("/none.map: cannot open"));
  EXPECT_EQ(sh("ls cache/heddle | grep ^launch-").out, "");
  const auto job = launch({"true"}, {"--map", "/none.map", "--job"});
  EXPECT_THAT(job.err, HasSubstr("is not collected"));
}

/// From one shell, without a scheduler.
TEST_F(FsLaunch, each_job_has_a_name_and_the_same_last_line) {
  if (staged_program("fs-job").empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
  for (const char* name : {"SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "PBS_JOB_ID"})
    options_.env.emplace_back(name);
  options_.env.push_back("HEDDLE_JOB_SPOOL=" + dir_ / "spool");
  options_.env.emplace_back("HEDDLE_JOB_TO=./jobs/.");
  fs::create_directory(dir_ / "jobs");
  const auto ran = sh("for i in 1 2; do $FS_LAUNCH --job mpiexec.hydra -n 1 true; done");
  const auto lines = lines_of(ran.err);
  ASSERT_EQ(lines.size(), 2U) << ran.err;
  EXPECT_NE(lines[0], lines[1]);
  for (const auto& line : lines)
    EXPECT_THAT(line,
                testing::MatchesRegex("fs-launch: job launch-[0-9-]+: archives of [^ ,]+ are in " +
                                      dir_ / "jobs"));
  EXPECT_EQ(sh("ls jobs | wc -l").out, "2\n");
  options_.env.push_back("JOB=" + staged_program("fs-job"));
  // Its name is the program's; all of a directory are submitted.
  EXPECT_EQ(sh("for i in 1 2; do $FS_LAUNCH -q --job mpiexec.hydra -n 1 env true; done").status, 0);
  const auto names =
      sh("$JOB submit --db db jobs >/dev/null && $JOB query --db db --format csv --columns "
         "jobname");
  EXPECT_EQ(names.out, "jobname\ntrue\ntrue\nenv\nenv\n") << names.err;
  EXPECT_THAT(sh("$JOB outliers --db db").err, HasSubstr("jobs of 2 names are compared"));
  EXPECT_THAT(sh("mkdir none; $JOB submit --db db none").err,
              HasSubstr("none: no archive of a job"));
  EXPECT_EQ(lines_of(launch({"mpiexec.hydra", "-n", "1", "false"}, {"--job"}).err).size(), 1U);
  EXPECT_THAT(sh("$JOB submit --db db none jobs").out, HasSubstr("already in the database"));
  // A scheduler's job that the launcher makes, within another one too; archives of others beside.
  for (const char* outer : {"", "SLURM_JOB_ID=1 "}) {
    const auto made = sh("rm -rf jobs; mkdir jobs; " + std::string(outer) +
                         "$FS_LAUNCH --job sh -c 'echo >jobs/x.tar.gz; SLURM_JOB_ID=7 "
                         "mpiexec.hydra -launcher fork -n 1 true'");
    EXPECT_THAT(made.err, testing::MatchesRegex("fs-launch: new in .*/jobs: 7-[^ ,]+.tar.gz\n"));
  }
  options_.env.emplace_back("HEDDLE_JOB_SPOOL=/dev/null");
  const auto none = launch({"mpiexec.hydra", "-n", "1", "true"}, {"--job"});
  EXPECT_EQ(none.status, 0);
  EXPECT_THAT(none.err, HasSubstr("what this command does is not collected"));
  EXPECT_THAT(none.err, HasSubstr("here has no archive of it"));
}

TEST_F(FsLaunch, odd_options_of_a_hold_are_refused) {
  const auto status = [&](const Strings& options) { return launch({"true"}, options).status; };
  for (const char* id : {"../up", "a/b", "..", "a b", "a\nb", ".hidden"})
    EXPECT_EQ(status({"--hold", "--hold-id", id}), 3) << id;
  EXPECT_EQ(status({"--hold-id", "id"}), 2);
  EXPECT_EQ(status({"--tool", "1"}), 2);
  EXPECT_EQ(status({"--hold-limit", "9"}), 2);
  fs::create_directories(dir_ / "cache/heddle/hold/taken");
  EXPECT_THAT(launch({"true"}, {"--hold", "--hold-id", "taken"}).err,
              HasSubstr("taken: is the ID of another hold"));
  EXPECT_EQ(sh("ls cache/heddle/hold").out, "taken\n");
}

TEST_F(FsLaunch, holds_whose_launch_was_killed_are_removed_after_ten_minutes) {
  const auto holds =
      sh("mkdir -m 700 -p cache/heddle/hold && cd cache/heddle/hold && mkdir lives killed begun "
         "late && "
         "touch lives/alive && touch -d -20minutes killed/alive begun && touch -d -5minutes "
         "late/alive "
         "&& $FS_LAUNCH --hold --hold-id killed true && echo *");
  EXPECT_EQ(holds.out, "late lives\n") << holds.err;
}

/// As a launcher does that is interrupted.
TEST_F(FsLaunch, job_without_a_home_is_guided_and_reported) {
  std::ofstream(dir_ / "file") << "";
  for (const auto& home :
       {"HOME=" + dir_ / "file", std::string("HOME=/proc"), std::string("HOME")}) {
    options_.env.at(1) = "XDG_CACHE_HOME";
    options_.env.push_back(home);
    const auto ran =
        launch({"mpiexec.hydra", "-n", "1", "sh", "-c", "test -s \"$HEDDLE_INDEX\""}, {"--report"});
    EXPECT_EQ(ran.status, 0) << home;
    EXPECT_THAT(ran.err, HasSubstr("1 of 1 ranks guided")) << home;
    EXPECT_THAT(ran.err, HasSubstr("only ranks of this node report")) << home;
  }
  for (const Strings& needs : {Strings{"session", "create", "--local"}, {"--hold", "true"}}) {
    const auto ran = run(Strings{fs_launch_} + needs, options_);
    EXPECT_EQ(ran.status, 3) << to_shell(needs);
    EXPECT_THAT(ran.err, HasSubstr("no cache directory: XDG_CACHE_HOME and HOME name none"));
  }
}

TEST_F(FsLaunch, map_of_a_profile_is_not_for_its_image) {
  options_.env.push_back("XDG_CONFIG_HOME=" + dir_ / "config");
  ASSERT_EQ(launch({"create", "p", "--map", "/profile.map", "--image", "/"}, {"profile"}).status,
            0);
  const auto plan = launch({"true"}, {"--profile", "p", "--dry-run"});
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, Not(HasSubstr("profile.map")));
  const auto refused = launch({"true"}, {"--profile", "p", "--via=best", "--dry-run"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("--via: not allowed with the profile's image"));
}

/// Result: fs-launch of an installation in `directory`.
std::string install_in(const std::string& directory) {
  for (const std::string file : {"bin/fs-launch", "bin/fs-mount", "lib/heddle/libheddle-audit.so",
                                 "libexec/heddle/elf-worker"}) {
    const auto at = fs::path(directory) / file;
    fs::create_directories(at.parent_path());
    fs::copy_file(staged_program(at.filename()), at);
  }
  return directory + "/bin/fs-launch";
}

TEST_F(FsLaunch, path_that_LD_AUDIT_cannot_name_leaves_the_job_unguided) {
  for (const std::string name : {"a:b", "a$b"}) {
    fs_launch_ = install_in(dir_ / name);
    const auto done = launch({"mpirun.openmpi", "-n", "2", "echo", "ran"});
    EXPECT_EQ(done.out, "ran\nran\n");
    EXPECT_THAT(done.err, HasSubstr("the job runs without heddle"));
    EXPECT_THAT(done.err, Not(HasSubstr("ld.so")));
  }
}

TEST_F(FsLaunch, path_with_spaces_goes_by_a_link) {
  fs_launch_ = install_in(dir_ / "a b");
  const auto ours = launch({"mpirun.openmpi", "-n", "2", "git", "--version"}, {"--report"});
  EXPECT_THAT(ours.err, HasSubstr("2 of 2 ranks guided"));
  const auto link = dir_ / "cache/heddle/launch";
  EXPECT_EQ(fs::status(link).permissions(), fs::perms(0700));
  // The cache has such a path, too.
  options_.env.push_back("XDG_CACHE_HOME=" + dir_ / "the cache");
  const auto here = launch({"mpiexec.hydra", "-n", "2", "git", "--version"}, {"--report"});
  EXPECT_THAT(here.err, HasSubstr("2 of 2 ranks guided"));
  EXPECT_THAT(here.err, HasSubstr("ranks on other nodes run unguided"));
}

TEST_F(FsLaunch, what_ranks_load_by_dlopen_is_known_to_the_next_launch) {
  const auto farm = ElfFarm::build(dir_ / "farm",
                                   {.libraries = 5, .tag = FarmTag::runpath, .dlopen_roots = true});
  run_checked({"sleep", "2.1"});  // younger files are not cached
  options_.env.emplace_back("LD_DEBUG=libs");
  std::vector<std::ptrdiff_t> tried;
  for (int launches = 0; launches < 2; ++launches) {
    const auto done = launch({"mpiexec.hydra", "-n", "2", farm.program});
    EXPECT_EQ(done.out, farm.output + farm.output);
    tried.push_back(std::ranges::count_if(lines_of(done.err), [](const auto& line) {
      return line.find("trying file=") != line.npos && line.find("/farm/lib/") != line.npos;
    }));
  }
  EXPECT_GT(tried[0], 0);
  EXPECT_EQ(tried[1], 0);
}

TEST_F(FsLaunch, missing_map_or_launcher_is_one_line) {
  run_checked({"mkfifo", dir_ / "fifo"});
  for (const auto& path : {std::string("/nonexistent"), dir_ / "fifo", std::string("/dev/zero")}) {
    const auto map =
        run(Strings{"timeout", "20"} + launched({"echo", "ran"}, {"--map", path}), options_);
    EXPECT_EQ(map.out, "ran\n") << path;
    EXPECT_THAT(map.err, HasSubstr(path + ": "));
    EXPECT_EQ(lines_of(map.err).size(), 1U) << map.err;
    const auto plan =
        run(Strings{"timeout", "20"} + launched({"echo"}, {"--dry-run", "--map", path}), options_);
    EXPECT_EQ(plan.status, 0) << path;
  }
  const auto launcher = launch({"no-such-launcher"});
  EXPECT_EQ(launcher.status, 127);
  EXPECT_THAT(launcher.err, HasSubstr("no-such-launcher"));
  EXPECT_EQ(launch({}).status, 2);
}

}  // namespace
}  // namespace heddle::test
