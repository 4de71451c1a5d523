// SPDX-License-Identifier: MIT
// From the start of a job on a node to its archive.
#include "tests/jobs/collected.hpp"

namespace heddle::test {
namespace {

TEST_F(Collected, start_and_stop_are_once_each) {
  EXPECT_NE(fs_job({"stop"}).status, 0);
  EXPECT_NE(fs_job({"stage"}).status, 0);
  EXPECT_EQ(fs_job({"start", "-e"}).status, 0);
  EXPECT_EQ(fs_job({"start", "-e"}).status, 1);
  const auto again = fs_job({"start"});
  EXPECT_EQ(again.status, 0);
  EXPECT_THAT(again.err, HasSubstr("warning: 1: the job was started already"));
  EXPECT_NE(fs_job({"stage"}).status, 0);
  EXPECT_EQ(fs_job({"stop", "-e"}).status, 0);
  EXPECT_EQ(fs_job({"stop", "-e"}).status, 1);
  EXPECT_EQ(fs_job({"stop"}).status, 0);
  const auto staged = fs_job({"stage"});
  EXPECT_EQ(staged.status, 0) << staged.err;
  ASSERT_EQ(archives().size(), 1U);
  EXPECT_EQ(fs::canonical(lines_of(staged.out).at(0)), fs::canonical(archives()[0]));
  struct stat st {};
  ASSERT_EQ(::stat(archives()[0].c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777U, 0600U);
  EXPECT_FALSE(fs::exists(dir_ / "spool/1"));
}

TEST_F(Collected, a_session_without_a_job_id_is_the_job) {
  options_.env.back() = "SLURM_JOB_ID";
  const auto result = collect({"true"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.err, HasSubstr("no SLURM_JOB_ID or PBS_JOBID: the job is session-"));
  EXPECT_THAT(std::string(archive_.job["jobid"]), StartsWith("session-"));
}

TEST_F(Collected, shells_are_instrumented_and_restored) {
  const std::string before = R"(libm.so.6:/no\\such'one!)";  // ld.so says that it is missing
  options_.env.push_back("LD_PRELOAD=" + before);
  std::string missing;
  for (const std::string shell : {"bash", "sh", "csh", "tcsh", "fish"}) {
    if (run({"sh", "-c", "command -v " + shell}).status != 0) {
      missing += " " + shell;
      continue;
    }
    // A line each: csh expands the aliases of a whole line before it runs a part of it.
    const auto print = "printenv LD_PRELOAD\n";
    const auto eval = shell == "fish" ? fs_job_ + " source --shell fish | source\n"
                                      : "eval \"`" + fs_job_ + " source --shell " + shell + "`\"\n";
    std::ofstream(dir_ / "script") << eval << print << "fs_job_uninstrument\n"
                                   << print << "fs_job_instrument\n"
                                   << print;
    const auto result = run({shell, dir_ / "script"}, options_);
    const auto lines = lines_of(result.out);
    ASSERT_EQ(lines.size(), 3U) << shell << result.err;
    EXPECT_THAT(lines[0], AllOf(StartsWith(before + ":"), HasSubstr("libheddle-job.so"))) << shell;
    EXPECT_EQ(lines[1], before) << shell;
    EXPECT_EQ(lines[2], lines[0]) << shell;
  }
  if (!missing.empty()) HEDDLE_SKIP("not installed:" + missing);
}

TEST_F(Collected, archives_of_nodes_that_share_a_directory_are_all_kept) {
  // epmt's name has no host in it.
  for (int i = 0; i < 16; ++i) {
    options_.env[0] = "HEDDLE_JOB_SPOOL=" + (dir_ / ("spool" + std::to_string(i)));
    ASSERT_EQ(fs_job({"start"}).status, 0);
    ASSERT_EQ(fs_job({"stop"}).status, 0);
  }
  const auto result =
      sh("for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do HEDDLE_JOB_SPOOL=$PWD/spool$i " +
         fs_job_ + " stage --epmt & done; wait");
  EXPECT_EQ(archives().size(), 16U) << result.out << result.err;
}

TEST_F(Collected, nodes_whose_scheduler_tells_no_start_are_one_job) {
  if (run({"unshare", "-u", "hostname", "n1"}).status != 0)
    HEDDLE_SKIP("no host name of its own can be given to a process");
  options_.env = options_.env + Strings{"SLURM_JOB_NODELIST=n[1-3]", "SLURM_JOB_START_TIME"};
  const auto result = sh(
      "for n in n1 n2 n3; do HEDDLE_JOB_SPOOL=$PWD/spool-$n unshare -u sh -c \"hostname $n; exec " +
      fs_job_ + " run -q sleep 3\" & sleep 0.1; done; wait");
  ASSERT_EQ(archives().size(), 3U) << result.err;
  const auto submitted = fs_job(Strings{"submit", "--db", dir_ / "jobs.db"} + archives());
  ASSERT_EQ(submitted.status, 0) << submitted.err;
  const auto jobs =
      nlohmann::json::parse(fs_job({"query", "--db", dir_ / "jobs.db", "--format", "json"}).out);
  ASSERT_EQ(jobs.size(), 1U) << jobs;
  EXPECT_EQ(jobs[0]["num_hosts"], 3);
  EXPECT_EQ(jobs[0]["complete"], 1);
}

TEST_F(Collected, a_killed_run_is_written_by_the_next) {
  auto result = sh(fs_job_ + " run -q sh -c '/bin/echo first; echo $$ >pid; sleep 60' & run=$!\n" +
                   "while [ ! -s pid ]; do sleep 0.05; done; kill -9 $run; wait $run; echo $?");
  EXPECT_EQ(result.out, "first\n137\n");
  const auto pid = read_file(dir_ / "pid").value_or("");
  EXPECT_TRUE(wait_until(10s, [&] { return !is_running(std::stoi(pid)); }));
  EXPECT_TRUE(archives().empty());
  ASSERT_EQ(collect({"true"}).status, 0);
  EXPECT_EQ(archive_.of("echo").size(), 1U);
  EXPECT_EQ(archive_.of("true").size(), 1U);
  EXPECT_EQ(archive_.of("dash").size(), 1U);
  EXPECT_FALSE(fs::exists(dir_ / "spool/1"));
}

TEST_F(Collected, a_requeued_job_is_one_of_its_own) {
  const auto killed =
      sh(fs_job_ + " run -q sh -c '/bin/echo first; echo $$ >pid; exec sleep 60' & run=$!\n" +
         "while [ ! -s pid ]; do sleep 0.05; done; kill -9 $run; wait $run; kill -9 $(cat pid)");
  EXPECT_EQ(killed.out, "first\n");
  options_.env.push_back("SLURM_RESTART_COUNT=1");
  EXPECT_EQ(fs_job({"run", "-q", "true"}).status, 0);
  EXPECT_EQ(programs_by_restart(), (std::map<int, std::string>{{0, "echo "}, {1, "true "}}));
  const auto submitted = fs_job(Strings{"submit", "--db", dir_ / "jobs.db"} + archives());
  ASSERT_EQ(submitted.status, 0) << submitted.err;
  EXPECT_EQ(lines_of(fs_job({"list", "--db", dir_ / "jobs.db"}).out), (Strings{"1", "1"}));
}

TEST_F(Collected, a_requeued_job_of_a_prolog_is_one_of_its_own) {
  const auto environment = options_.env;
  const auto collected = [this](const std::string& program) {
    return sh("eval \"$(" + fs_job_ + " source --shell sh)\"; " + program).status;
  };
  // Prologs of a node's tasks run at once: any may be the first.
  for (const std::string first : {"start", "source"}) {
    SCOPED_TRACE(first);
    for (const auto& file : archives()) fs::remove(file);
    options_.env = environment;
    ASSERT_EQ(fs_job({"start"}).status, 0);
    EXPECT_EQ(collected("/bin/echo"), 0);
    EXPECT_EQ(fs_job({first}).status, 0);
    EXPECT_EQ(archives().size(), 0U) << "the job runs";
    options_.env.push_back("SLURM_RESTART_COUNT=1");
    EXPECT_EQ(fs_job({first}).status, 0);
    EXPECT_EQ(archives().size(), 1U);
    EXPECT_EQ(collected("/bin/true"), 0);
    EXPECT_EQ(fs_job({"start"}).status, 0);
    // Without the scheduler's variables it is the same job.
    EXPECT_EQ(sh("unset SLURM_RESTART_COUNT; " + fs_job_ + " start").status, 0);
    EXPECT_EQ(fs_job({"stop"}).status, 0);
    EXPECT_EQ(fs_job({"stage"}).status, 0);
    EXPECT_EQ(programs_by_restart(), (std::map<int, std::string>{{0, "echo "}, {1, "true "}}));
  }
}

TEST_F(Collected, a_running_job_is_annotated_by_its_own_commands) {
  const auto result = collect({"sh", "-c",
                               fs_job_ + " annotate model=a 'note=x y' && " + fs_job_ +
                                   " annotate 1 model=b && " + fs_job_ + " tag 'exp:1;quick'"},
                              {"--annotate", "model=0"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(archive_.job["annotations"], (nlohmann::json{{"model", "b"}, {"note", "x y"}}));
  EXPECT_EQ(archive_.job["tags"], (nlohmann::json{{"exp", "1"}, {"quick", "1"}}));
  ASSERT_EQ(fs_job({"start"}).status, 0);
  EXPECT_EQ(fs_job({"annotate", "a=1"}).status, 0);
  EXPECT_EQ(fs_job({"annotate", "--replace", "b=2"}).status, 0);
  EXPECT_EQ(fs_job({"stop"}).status, 0);
  EXPECT_EQ(fs_job({"annotate", "c=3"}).status, 0) << "not staged yet";
  for (const auto& file : archives()) fs::remove(file);
  EXPECT_EQ(fs_job({"stage"}).status, 0);
  EXPECT_EQ(read_job(archives().at(0)).job["annotations"],
            (nlohmann::json{{"b", "2"}, {"c", "3"}}));
  const auto none = fs_job({"annotate", "a=1"});
  EXPECT_EQ(none.status, 3);
  EXPECT_THAT(none.err, HasSubstr("no job is collected on this node"));
}

TEST_F(Collected, a_wrong_annotation_is_refused_before_anything_is_made) {
  for (const std::string wrong : {"bad", "=bad"}) {
    const auto result = fs_job({"run", "--annotate", "a=b", "--annotate", wrong, "echo", "RAN"});
    EXPECT_EQ(result.status, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("'" + wrong + "' is not KEY=VALUE"));
    EXPECT_EQ(fs_job({"start", "--annotate", wrong}).status, 2);
    EXPECT_EQ(fs_job({"annotate", "1", wrong}).status, 2);
  }
  EXPECT_FALSE(fs::exists(dir_ / "spool"));
}

TEST_F(Collected, an_epilog_writes_what_a_killed_run_has_left) {
  if (::geteuid() != 0) HEDDLE_SKIP("setpriv needs root");
  const auto scripts = fs_job_.substr(0, fs_job_.rfind("/bin/")) + "/share/heddle/fs-job-";
  const auto epilog = scripts + "epilog.sh";
  fs::create_directories(dir_ / "to");
  ASSERT_EQ(::chown((dir_ / "to").c_str(), 65534, 65534), 0);
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0777), 0);
  // Both are killed at once, as slurmd does it.
  const auto killed = [&](const std::string& id) {
    return "export SLURM_JOB_ID=" + id +
           "; rm -f pid; setsid setpriv --reuid 65534 --clear-groups " + fs_job_ +
           " run -q --to to sh -c '/bin/echo x >&2; echo $$ >pid; read x <hold' & run=$!\n" +
           "while [ ! -s pid ]; do sleep 0.05; done; kill -9 -$run; kill -9 -$(cat pid) "
           "2>/dev/null\n";
  };
  auto result = sh("mkfifo hold\n" + killed("7") + killed("8") + killed("9") +
                   "export SLURM_JOB_UID=65534 SLURM_JOB_GID=65534 SLURM_JOB_ID=; cd /\n" +
                   "SLURM_JOB_ID=7 sh " + epilog + " || exit 1; SLURM_JOB_ID=77 sh " + epilog);
  EXPECT_EQ(result.status, 0) << result.err;
  Strings found;
  for (const auto& entry : fs::directory_iterator(dir_ / "to")) found.push_back(entry.path());
  ASSERT_EQ(found.size(), 1U) << result.err;
  archive_ = read_job(found[0]);
  EXPECT_EQ(archive_.job["jobid"], "7");
  EXPECT_EQ(archive_.job["collector"]["left"], true);
  EXPECT_FALSE(archive_.job.contains("environment_changes"));
  ASSERT_EQ(archive_.of("echo").size(), 1U);
  EXPECT_LE(archive_.of("echo")[0].number("finish"), archive_.job["stop"]);
  EXPECT_EQ(archive_.of("dash").size(), 1U);
  EXPECT_FALSE(fs::exists(dir_ / "spool/7"));
  // The others by the prolog of a later job; what still runs, or may go on, stays.
  result =
      sh("for id in 1 4; do SLURM_JOB_ID=$id setpriv --reuid 65534 --clear-groups " + fs_job_ +
         " start; done\nSLURM_JOB_ID=4 setpriv --reuid 65534 --clear-groups " + fs_job_ +
         " stop\n" + "SLURM_JOB_ID=2 setpriv --reuid 65534 --clear-groups " + fs_job_ +
         " run -q --to to sh -c ': >runs; sleep 2' & while [ ! -e runs ]; do sleep 0.05; done\n" +
         "SLURM_JOB_UID=65534 SLURM_JOB_GID=65534 SLURM_JOB_ID=3 sh " + scripts +
         "prolog.sh; echo $?; ls to spool; wait");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("0\nspool:\n1\n2\n4\n"), HasSubstr("\n8-"), HasSubstr("\n9-")));
}

TEST_F(Collected, a_run_that_could_not_be_written_takes_no_later_one_with_it) {
  fs::create_directory(dir_ / "to");
  auto result = sh(fs_job_ + " run --to missing/directory -- sh -c 'echo runs >&2; exit 3'");
  EXPECT_EQ(result.status, 3);
  const auto warned =
      result.err.find("missing/directory: the job's archive cannot be written here");
  EXPECT_LT(warned, result.err.find("runs\n")) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("No such file"), HasSubstr("stage --left --jobid")));
  // The next writes both: its own, and that one into the same directory.
  result = sh(fs_job_ + " run --to to -- sh -c 'exit 4'");
  EXPECT_EQ(result.status, 4);
  EXPECT_THAT(result.err, HasSubstr(dir_ / "to/"));
  EXPECT_THAT(result.err, testing::Not(HasSubstr("cannot be written")));
  std::set<int> statuses;
  for (const auto& entry : fs::directory_iterator(dir_ / "to"))
    statuses.insert(read_job(entry.path()).job["exitcode"].get<int>());
  EXPECT_EQ(statuses, (std::set<int>{3, 4}));
  EXPECT_TRUE(fs::is_empty(dir_ / "spool"));
}

TEST_F(Collected, a_left_job_is_written_to_the_directory_that_is_asked_for) {
  for (const char* id : {"a", "b"})
    EXPECT_EQ(sh(fs_job_ + " run -q --jobid " + id + " --to missing -- true").status, 0);
  auto staged = fs_job({"stage", "--left", "--jobid", "a", "--to", "."});
  EXPECT_EQ(staged.status, 0) << staged.err;
  EXPECT_EQ(archives().size(), 1U);
  // Killed before it has removed the records, it is not written once more.
  ASSERT_EQ(sh("cp -a spool before").status, 0);
  staged = fs_job({"stage", "--left", "--to", "."});
  EXPECT_EQ(staged.status, 0) << staged.err;
  EXPECT_EQ(archives().size(), 2U);
  ASSERT_EQ(sh("cp -a before kept; rm -r spool; mv before spool").status, 0);
  const auto again = fs_job({"stage", "--left", "--to", "."});
  EXPECT_EQ(again.out, staged.out) << again.err;
  EXPECT_EQ(archives().size(), 2U);
  EXPECT_TRUE(fs::is_empty(dir_ / "spool"));
  // Another user's does not stand for it.
  if (::geteuid() != 0) return;
  ASSERT_EQ(sh("rm -r spool; mv kept spool; chown 65534 *.gz").status, 0);
  EXPECT_EQ(fs_job({"stage", "--left", "--to", "."}).status, 0);
  EXPECT_EQ(archives().size(), 3U);
}

TEST_F(Collected, a_command_that_cannot_be_executed_is_a_job_too) {
  std::ofstream(dir_ / "plain") << "";
  for (const auto& [command, status] : {std::pair{"./none", 127}, {"./plain", 126}}) {
    EXPECT_EQ(sh(fs_job_ + " run -q --jobid j" + std::to_string(status) + " -- " + command).status,
              status);
    EXPECT_TRUE(fs::is_empty(dir_ / "spool"));
  }
  std::set<int> statuses;
  for (const auto& archive : archives())
    statuses.insert(read_job(archive).job["exitcode"].get<int>());
  EXPECT_EQ(statuses, (std::set<int>{126, 127}));
}

TEST_F(Collected, an_archive_for_which_there_is_no_room_is_none_and_can_be_written_later) {
  ASSERT_EQ(fs_job({"start"}).status, 0);
  ASSERT_EQ(sh("eval \"$(" + fs_job_ + " source --shell sh)\"; /bin/true").status, 0);
  ASSERT_EQ(fs_job({"stop"}).status, 0);
  fs::create_directory(dir_ / "full");
  const auto full = dir_ / "full";
  const auto failed =
      sh("unshare -m sh -c 'mount --make-rprivate / && mount -t tmpfs -o size=4k none " + full +
         " || exit 77; head -c 4096 /dev/zero >" + full + "/x; " + fs_job_ + " stage --to " + full +
         "; code=$?; ls -A " + full + "; exit $code'");
  if (failed.status == 77) HEDDLE_SKIP("no tmpfs can be mounted");
  EXPECT_NE(failed.status, 0);
  EXPECT_EQ(failed.out, "x\n");
  EXPECT_EQ(lines_of(failed.err).size(), 2U) << failed.err;
  EXPECT_THAT(failed.err, HasSubstr("No space left on device"));
  const auto staged = fs_job({"stage"});
  ASSERT_EQ(staged.status, 0) << staged.err;
  EXPECT_EQ(read_job(archives().at(0)).of("true").size(), 1U);
}

TEST_F(Collected, runs_of_one_job_at_once_make_one_archive) {
  const auto result =
      sh("for i in 1 2 3 4 5 6 7 8; do " + fs_job_ + " run -q sleep 0.5 & done; wait");
  EXPECT_EQ(result.status, 0) << result.err;
  ASSERT_EQ(archives().size(), 1U);
  EXPECT_EQ(read_job(archives()[0]).of("sleep").size(), 8U);
}

/// One may begin while the last one before it removes the job.
TEST_F(Collected, runs_that_begin_while_others_end_are_all_collected) {
  options_.deadline = std::chrono::minutes(4);
  const auto ran = sh("seq 300 | xargs -P8 -I{} " + fs_job_ + " run -q -- true");
  EXPECT_EQ(ran.err, "");
  std::size_t programs = 0;
  for (const auto& file : archives()) programs += read_job(file).of("true").size();
  EXPECT_EQ(programs, 300U);
}

TEST_F(Collected, watch_shows_what_runs) {
  ASSERT_EQ(fs_job({"start"}).status, 0);
  const auto result =
      sh("eval \"$(" + fs_job_ + " source --shell sh)\"; sleep 30 & fs_job_uninstrument; " +
         fs_job_ + " watch 1 --interval 0.1 --count 3; kill $!");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("job 1: 1 process, "), HasSubstr("  sleep\n")))
      << result.out;
  EXPECT_NE(fs_job({"watch", "2"}).status, 0);
}

TEST_F(Collected, watch_shows_rates_in_a_terminal) {
  if (sh("command -v script").status != 0) HEDDLE_SKIP("script(1) is not installed");
  const auto spins = compile("spins", R"(
#include <fcntl.h>
#include <unistd.h>
static char bytes[1 << 16];
int main(void) {
  for (int fd = open("/dev/null", O_WRONLY);;) {
    for (volatile int i = 0; i < 100000; ++i);
    if (write(fd, bytes, sizeof bytes) < 0) return 1;
  }
})");
  ASSERT_EQ(fs_job({"start", "--lookups"}).status, 0);
  // ld.so misses a path of a preload that is not there.
  const auto result =
      sh("eval \"$(" + fs_job_ + " source --lookups --shell sh)\"; " + spins +
         " & spins=$!\nexport LD_LIBRARY_PATH=$PWD\nwhile :; do /bin/true; done & starts=$!\n"
         "fs_job_uninstrument\nscript -qec '" +
         fs_job_ +
         " watch 1 --interval 0.5 --count 3 --rows 1' /dev/null\n"
         "kill $spins $starts; wait");
  const auto last = result.out.rfind("\033[H\033[J");
  ASSERT_NE(last, std::string::npos) << result.out << result.err;
  const auto picture = result.out.substr(last);
  double starts = 0, cpu = 0, lookups = 0;
  const auto at = picture.find(" process"), failed = picture.find("failed look-ups ");
  ASSERT_NE(at, std::string::npos) << picture;
  ASSERT_NE(failed, std::string::npos) << picture;
  EXPECT_EQ(std::sscanf(picture.c_str() + at, " %*[a-z], %lf starts/s, CPU %lf", &starts, &cpu), 2);
  EXPECT_EQ(std::sscanf(picture.c_str() + failed, "failed look-ups %lf", &lookups), 1) << picture;
  EXPECT_GT(starts, 0) << picture;
  EXPECT_GT(cpu, 0) << picture;
  EXPECT_GT(lookups, 0) << picture;
  EXPECT_THAT(picture, AllOf(HasSubstr("  spins\r\n"), Not(HasSubstr(", written 0B/s"))));
}

}  // namespace
}  // namespace heddle::test
