// SPDX-License-Identifier: MIT
// fs-launch session on four nodes, and on this machine alone.

#include <set>

#include "tests/session/local_holds.hpp"
#include "tests/session/sessions.hpp"

namespace heddle::test {
namespace {

using ::testing::AnyOf;
using ::testing::EndsWith;

TEST_F(Sessions, files_are_staged_once_and_each_binary_gets_its_own_libraries) {
  const auto say = [&](const std::string& word) {
    const auto library = build_library({dir_ / word + "/libword.so.1",
                                        "const char* word(void) { return \"" + word + "\"; }",
                                        {"-Wl,-soname,libword.so.1"}});
    build_program({dir_ / "say_" + word,
                   "#include <stdio.h>\nconst char* word(void);\n"
                   "int main(void) { puts(word()); return 0; }",
                   {library, "-Wl,-rpath," + dir_ / word}});
  };
  say("one");
  say("two");
  build_program({dir_ / "static_tool",
                 "#include <stdio.h>\nint main(void){puts(\"static\");}",
                 {"-static", "-no-pie"}});
  build_program({dir_ / "lost",
                 "const char* word(void);\nint main(void) { return !word(); }",
                 {dir_ / "one/libword.so.1"}});
  write_text_file(dir_ / "script", "#!/bin/sh\necho script\n", 0755);
  run_checked({"cp", dir_ / "say_one", dir_ / "foreign"});
  run_checked({"sh", "-c",
               "printf '\\267\\000' | dd of=" + dir_ / "foreign" +
                   " bs=1 seek=18 conv=notrunc 2>/dev/null"});
  run_checked(
      {"sh", "-c",
       "cd " + dir_.path() +
           " && mkdir -p d/deep a b && echo 1 >d/.hidden.so && echo 2 >d/deep/x "
           "&& ln -s deep/x d/link && ln -s nothing d/dangling && echo a >a/f && echo b >b/f"
           " && head -c 4000000 /dev/urandom >large"});
  const auto job = allocate();
  const auto id = id_of(session("create --job " + job));

  // What is refused names its reason, and leaves the session as it was.
  auto wrong = session("add " + id + " --binary ./lost");
  EXPECT_NE(wrong.status, 0);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("libword.so.1"), HasSubstr("lost")));
  wrong = session("add " + id + " --binary ./foreign");
  EXPECT_NE(wrong.status, 0);
  EXPECT_THAT(wrong.err, HasSubstr("another processor"));
  EXPECT_EQ(session("ship " + id).out, "0 bytes, 0 names\n");
  ASSERT_EQ(session("add " + id + " --file a/f").status, 0);
  wrong = session("add " + id + " --file b/f");
  EXPECT_NE(wrong.status, 0);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("/a/f"), HasSubstr("/b/f")));

  const auto added = session("add " + id +
                             " --binary ./say_one --binary ./say_two --binary ./static_tool "
                             "--binary ./script --directory d --file large");
  ASSERT_EQ(added.status, 0) << added.err;
  const auto shipped = session("ship " + id);
  ASSERT_EQ(shipped.status, 0) << shipped.err;
  EXPECT_GT(std::stol(shipped.out), 4'000'000);
  // Their own directories are gone: what is loaded is on the node.
  run_checked({"sh", "-c", "cd " + dir_.path() + " && mv one gone1 && mv two gone2"});
  for (const std::string tool : {"say_one", "say_two", "static_tool", "script"}) {
    const auto word = tool.substr(tool.find('_') + 1);
    const auto said = tool == "static_tool" ? "static" : word;
    const auto ran = session("daemon " + id + " --wait -- " + tool);
    EXPECT_EQ(ran.status, 0) << ran.err;
    std::string four;
    for (int node = 0; node < 4; ++node) four += said + "\n";
    EXPECT_EQ(ran.out, four) << tool << ran.err;
  }
  const auto tree = cluster_->on(2, "cd /tmp/heddle-job-0-" + job + "/session." + id +
                                        "/lib/d && cat .hidden.so deep/x link && readlink "
                                        "dangling link && ls -A | wc -l");
  EXPECT_EQ(tree.out, "1\n2\n2\nnothing\ndeep/x\n4\n");
  EXPECT_EQ(session("ship " + id).out, "0 bytes, 0 names\n");
  // Another session of the job: the same content again, by the same inode.
  const auto other = id_of(session("create --job " + job));
  ASSERT_EQ(session("add " + other + " --file large").status, 0);
  EXPECT_THAT(session("ship " + other).out, StartsWith("0 bytes, 1 names"));
  EXPECT_EQ(
      cluster_->on(3, "stat -c %h /tmp/heddle-job-0-" + job + "/session." + other + "/files/large")
          .out,
      "3\n");
  EXPECT_EQ(session("destroy " + id).status, 0);
  EXPECT_EQ(session("daemon " + other + " --wait -- sh -c 'cmp $HEDDLE_SESSION_DIR/files/large " +
                    dir_ / "large" + "'")
                .status,
            0);
  // Commands at once lose nothing of each other.
  ASSERT_EQ(cluster_
                ->sh("for i in 1 2 3 4 5 6 7 8; do echo $i >at_once_$i; " + fs_launch_ +
                     " session add " + other + " --file at_once_$i & done; wait")
                .err,
            "");
  EXPECT_THAT(session("ship " + other).out, HasSubstr(" 8 names"));
  EXPECT_EQ(session("destroy " + other).status, 0);
  EXPECT_EQ(left(), "");
  EXPECT_NE(session("destroy " + other).status, 0);
  free_all();
}

/// In the session's directory, which is full on one node.
TEST_F(Sessions, output_for_which_there_is_no_room_is_said_to_be_lost) {
  for (const int node : {1, 2})
    ASSERT_EQ(cluster_
                  ->on(node,
                       "mkdir -m 700 /tmp/small; mount -t tmpfs -o size=64k,mode=700 none "
                       "/tmp/small")
                  .status,
              0);
  const auto id = id_of(session("create --to /tmp/small --nodes n1,n2 --rsh " + cluster_->rsh()));
  (void)cluster_->on(2, "head -c 90000 /dev/zero >/tmp/small/fill");
  const auto got = session("daemon " + id + " --wait -- sh -c 'hostname; true'");
  EXPECT_EQ(got.out, "n1\n");
  EXPECT_EQ(got.status, 3);
  EXPECT_THAT(got.err, HasSubstr("n2: /tmp/small/"));
  EXPECT_THAT(got.err, HasSubstr("No space left on device"));
  (void)cluster_->on(2, "rm /tmp/small/fill");
  EXPECT_EQ(session("daemon " + id + " --wait -- hostname").out, "n1\nn2\n");
  EXPECT_EQ(session("destroy " + id).status, 0);
}

TEST_F(Sessions, hostile_directory_is_refused_without_reading_outside) {
  run_checked({"sh", "-c",
               "cd " + dir_.path() +
                   " && echo secret >secret && mkdir fifo out up abs && mkfifo fifo/f && "
                   "ln -s ../secret up/x && ln -s " +
                   dir_ / "secret" +
                   " abs/x && "
                   "mkdir up/in && ln -s /etc out/etc && touch " +
                   dir_ / "ok"});
  const auto job = allocate();
  const auto id = id_of(session("create --job " + job));
  for (const std::string name :
       {"fifo", "up", "abs", "out", "fifo/f", "missing", "up/in/../x/.."}) {
    const auto added = session("add " + id + " --directory " + name);
    EXPECT_EQ(added.status, 3) << name;
    EXPECT_EQ(lines_of(added.err).size() - (added.err.find("hint:") != std::string::npos), 1U)
        << added.err;
    EXPECT_NE(session("add " + id + " --file " + name).status, 0) << name;
  }
  EXPECT_EQ(session("ship " + id).out, "0 bytes, 0 names\n");
  EXPECT_EQ(session("add '../" + id + "' --file ok").status, 3);
  // A file that changes after it was named: no node keeps any of it.
  ASSERT_EQ(session("add " + id + " --file secret --file ok").status, 0);
  write_text_file(dir_ / "secret", "public\n");
  const auto changed = session("ship " + id);
  EXPECT_EQ(changed.status, 3);
  EXPECT_THAT(changed.err, HasSubstr("has changed"));
  EXPECT_EQ(cluster_
                ->sh("srun -Q --jobid " + job +
                     " --overlap -N4 sh -c 'find "
                     "/tmp/heddle-job-0-" +
                     job + " -type f -size +0 | grep -v locks'")
                .out,
            "");
  // A name that leads elsewhere by then: what is there is not opened.
  const auto two = id_of(session("create --job " + job));
  const bool is_traced = run({"sh", "-c", "command -v strace"}).status == 0;
  for (const std::string swap :
       {"rm swap/f; ln -s ../elsewhere/f swap/f", "rm swap/f; ln elsewhere/f swap/f",
        "mv swap old; ln -s elsewhere swap", "mv swap old; mv elsewhere swap"}) {
    run_checked({"sh", "-c",
                 "cd " + dir_.path() +
                     " && rm -rf swap old && mkdir -p swap elsewhere && echo public >swap/f && "
                     "echo hidden >elsewhere/f && echo also >also"});
    ASSERT_EQ(session("add " + two + " --file swap/f --file also").status, 0) << swap;
    run_checked({"sh", "-c", "cd " + dir_.path() + " && " + swap});
    const auto failed = cluster_->sh((is_traced ? "strace -f -y -e trace=read -o trace " : "") +
                                     fs_launch_ + " session ship " + two);
    EXPECT_EQ(failed.status, 3) << swap;
    EXPECT_THAT(failed.err, HasSubstr("swap/f: has changed since it was added")) << swap;
    if (!is_traced) continue;
    const auto trace = cluster_->sh("cat trace").out;
    EXPECT_THAT(trace, HasSubstr(dir_ / "also>")) << swap;
    EXPECT_THAT(trace, Not(AnyOf(HasSubstr("swap/f>"), HasSubstr("elsewhere/f>")))) << swap;
  }
  EXPECT_EQ(session("destroy " + two).status, 0);
  EXPECT_EQ(session("destroy " + id).status, 0);
  free_all();
}

TEST_F(Sessions, daemons_are_exact_and_end_with_their_children) {
  const auto job = allocate();
  const auto one = id_of(session("create --job " + job));
  // What is set for the ranks' srun does not change the agents'.
  const auto two = id_of(cluster_->sh(
      "SLURM_LABELIO=1 SLURM_EXPORT_ENV=NONE SLURM_TIMELIMIT=0:01 SLURM_TASK_PROLOG=/bin/false "
      "SLURM_SRUN_MULTI=1 MINE=kept " +
      fs_launch_ + " session create --job " + job));
  EXPECT_EQ(session("daemon " + two + " --wait -- sh -c 'echo $MINE'").out,
            "kept\nkept\nkept\nkept\n");
  const auto ran = session("daemon " + one +
                           " --env 'K=v w=x' --cwd /dev/shm --wait -- sh -c 'printf \"%s|\" "
                           "\"$PWD\" \"$K\" \"$#\" \"$@\"; touch $TMPDIR/x; echo' sh a 'b c' ''");
  EXPECT_EQ(ran.status, 0) << ran.err;
  std::string four;
  for (int node = 0; node < 4; ++node) four += "/dev/shm|v w=x|3|a|b c||\n";
  EXPECT_EQ(ran.out, four) << ran.err;
  EXPECT_EQ(session("daemon " + one + " --wait -- sh -c 'exit 7'").status, 7);
  const auto missing = session("daemon " + one + " -- no-such-tool");
  EXPECT_EQ(missing.status, 3);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("n1,n2,n3,n4"), HasSubstr("no-such-tool")));
  // One that n2 does not have runs nowhere, and later ones have one number on all nodes.
  const std::string tool = "/dev/shm/tool";
  for (const int node : {1, 3, 4})
    ASSERT_EQ(cluster_
                  ->on(node, "printf '#!/bin/sh\nsetsid sleep 9891 & sleep 9892\n' >" + tool +
                                 " && chmod 755 " + tool)
                  .status,
              0);
  const auto partly = session("daemon " + one + " -- " + tool);
  EXPECT_EQ(partly.status, 3);
  EXPECT_THAT(partly.err, AllOf(HasSubstr(" n2: "), HasSubstr(tool), Not(HasSubstr("n3: "))));
  EXPECT_THAT(left(), Not(AnyOf(HasSubstr("sleep 9891"), HasSubstr("sleep 9892"))));
  EXPECT_EQ(session("daemon " + one + " --wait -- hostname").out, "n1\nn2\nn3\nn4\n");
  EXPECT_EQ(session("daemon " + one + " --log log -- sh -c 'hostname; exec sleep 981'").status, 0);
  EXPECT_TRUE(wait_until(5s, [&] { return cluster_->sh("cat log.*").out == "n1\nn2\nn3\nn4\n"; }));
  // Ignores SIGTERM, and so does its child, in a session of its own.
  EXPECT_EQ(session("daemon " + two +
                    " -- sh -c 'trap \"\" TERM; setsid sleep 982 & touch $TMPDIR/on; wait'")
                .status,
            0);
  EXPECT_EQ(session("destroy " + one).status, 0);
  EXPECT_THAT(left(), AllOf(Not(HasSubstr("sleep 981")), HasSubstr("sleep 982")));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(session("destroy " + two).status, 0);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 9s);
  EXPECT_EQ(left(), "");
  free_all();
}

TEST_F(Sessions, ranks_are_slurms_and_get_each_signal_once) {
  build_program({dir_ / "app",
                 "#include <signal.h>\n#include <stdio.h>\n#include <unistd.h>\n"
                 "static volatile int got;\nstatic void count(int s) { got += s != 0; }\n"
                 "int main(void) { int child; signal(SIGUSR1, count);\n"
                 "if ((child = fork()) == 0) for (;;) pause();\n"
                 "for (int i = 0; i < 600 && !got; ++i) usleep(100000);\n"
                 "usleep(300000); printf(\"got %d\\n\", got); kill(child, SIGKILL); return 0; }"});
  const auto step = step_of("./app", "-N2 -n4 -w n2,n3");
  const auto begin = std::chrono::steady_clock::now();
  const auto wrong = session("attach 99.7");
  EXPECT_EQ(wrong.status, 3);
  EXPECT_THAT(wrong.err, HasSubstr("99.7"));
  EXPECT_EQ(session("attach " + step + "7").status, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  const auto id = id_of(session("attach " + step));
  const auto ranks = session("ranks " + id);
  EXPECT_EQ(lines_of(ranks.out).size(), 4U) << ranks.err;
  std::string pids;
  for (const int node : {2, 3})
    pids += cluster_
                ->on(node, "scontrol listpids " + step + " n" + std::to_string(node) +
                               " | awk '$4 ~ /^[0-9]+$/ { print $5, $1, \"n" +
                               std::to_string(node) + "\" }'")
                .out;
  std::string ours;
  for (const auto& line : lines_of(ranks.out)) {
    std::istringstream words(line);
    std::string rank, pid, node, job, program;
    words >> rank >> pid >> node >> job >> program;
    EXPECT_EQ(job, step);
    EXPECT_EQ(program, dir_ / "app");
    ours += rank + " " + pid + " " + node + "\n";
  }
  EXPECT_EQ(ours, pids);
  const auto nodes = session("daemon " + id + " --wait -- hostname");
  EXPECT_EQ(nodes.out, "n2\nn3\n") << nodes.err;
  EXPECT_EQ(session("signal " + id + " 0").out, "4 ranks\n");
  EXPECT_EQ(session("signal " + id + " USR1").out, "4 ranks\n");
  EXPECT_TRUE(wait_until(10s, [&] {
    return cluster_->sh("cat step.out").out == "got 1\ngot 1\ngot 1\ngot 1\n";
  })) << cluster_->sh("cat step.out").out;
  // The step has ended, and the session on its nodes goes with the job.
  EXPECT_TRUE(wait_until(20s, [&] { return left().empty(); })) << left();
}

TEST_F(Sessions, signals_reach_the_ranks_and_nothing_of_heddle_beside_them) {
  build_program({dir_ / "app", "#include <unistd.h>\nint main(void) { sleep(989); return 1; }"});
  const auto job = allocate();
  // fs-launch --job: the rank's oldest process is the agent that waits for it.
  for (const auto& launcher : Strings{"", fs_launch_ + " --job "}) {
    (void)cluster_->sh(launcher + "srun -Q --jobid=" + job +
                       " --overlap -N4 -n8 ./app >out 2>err &");
    const auto count = [&](const std::string& what) {
      std::string out;
      for (int node = 1; node <= 4; ++node) out += cluster_->on(node, "pgrep -c " + what).out;
      return out;
    };
    ASSERT_TRUE(wait_until(20s, [&] { return count("-x app") == "2\n2\n2\n2\n"; }));
    const auto one = id_of(session("create --job " + job));
    const auto two = id_of(session("create --job " + job));
    ASSERT_EQ(session("daemon " + two + " -- sleep 9894").status, 0);
    for (const auto& id : {one, two}) {
      const auto ranks = lines_of(session("ranks " + id).out);
      EXPECT_EQ(ranks.size(), 8U);
      for (const auto& rank : ranks) EXPECT_THAT(rank, EndsWith(dir_ / "app"));
    }
    EXPECT_EQ(session("signal " + one + " KILL").out, "8 ranks\n");
    EXPECT_TRUE(wait_until(20s, [&] { return count("-x app") == "0\n0\n0\n0\n"; }));
    EXPECT_EQ(count("-fx 'sleep 9894'"), "1\n1\n1\n1\n");
    EXPECT_EQ(session("signal " + one + " 0").out, "0 ranks\n");
    EXPECT_EQ(session("daemon " + two + " --wait -- hostname").out, "n1\nn2\nn3\nn4\n");
    for (const auto& id : {one, two}) EXPECT_EQ(session("destroy " + id).status, 0);
    EXPECT_TRUE(wait_until(20s, [&] { return left().empty(); })) << left();
  }
  free_all();
}

TEST_F(Sessions, agents_are_started_by_a_real_ssh) {
  const auto ssh = cluster_->start_sshd();
  if (ssh.empty()) HEDDLE_SKIP("openssh-server is not installed");
  write_text_file(dir_ / "a file", "content\n");
  const auto id = id_of(session("create --nodes n1,n2,n3,n4 --rsh " + ssh));
  EXPECT_EQ(session("add " + id + " --file 'a file'").status, 0);
  EXPECT_THAT(session("ship " + id).out, StartsWith("8 bytes"));
  EXPECT_EQ(session("daemon " + id +
                    " --wait -- sh -c 'hostname; cat \"$HEDDLE_SESSION_DIR/files/a file\"'")
                .out,
            "n1\ncontent\nn2\ncontent\nn3\ncontent\nn4\ncontent\n");
  EXPECT_EQ(session("destroy " + id).status, 0);
  EXPECT_TRUE(wait_until(20s, [&] { return left().empty(); })) << left();
}

TEST_F(Sessions, ranks_of_mpirun_and_hydra_are_found_by_remote_shells) {
  const auto rsh = " --rsh " + cluster_->rsh();
  for (const auto& launcher : launchers_by_rsh()) {
    start_sleeps(launcher, "983");
    std::string id;
    std::string ranks;
    id = id_of(session("create --nodes n1,n3" + rsh));
    EXPECT_TRUE(wait_until(10s,
                           [&] {
                             ranks = session("ranks " + id).out;
                             return lines_of(ranks).size() == 4;
                           }))
        << launcher << ranks;
    const auto lines = lines_of(ranks);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_THAT(lines[i], StartsWith(std::to_string(i) + " "));
      EXPECT_THAT(lines[i], HasSubstr(i < 2 ? " n1 " : " n3 "));
    }
    write_text_file(dir_ / "file", "content\n");
    EXPECT_EQ(session("add " + id + " --file file").status, 0);
    EXPECT_THAT(session("ship " + id).out, StartsWith("8 bytes"));
    EXPECT_EQ(session("daemon " + id + " --wait -- sh -c 'cat $HEDDLE_SESSION_DIR/files/file'").out,
              "content\ncontent\n");
    EXPECT_EQ(session("signal " + id + " CONT").out, "4 ranks\n");
    // Another job of the user on the same nodes: nothing is signalled until one is named.
    start_sleeps(launcher, "9831");
    std::set<std::string> jobs;
    for (const auto& line : lines_of(session("ranks " + id).out)) {
      std::istringstream words(line);
      std::string rank, pid, node, job;
      words >> rank >> pid >> node >> job;
      jobs.insert(job);
    }
    EXPECT_EQ(lines_of(session("ranks " + id).out).size(), 8U) << launcher;
    ASSERT_EQ(jobs.size(), 2U) << launcher;
    const auto refused = session("signal " + id + " KILL");
    EXPECT_EQ(refused.status, 3);
    EXPECT_THAT(refused.err,
                AllOf(HasSubstr(*jobs.begin()), HasSubstr(*jobs.rbegin()), HasSubstr("hint: ")));
    EXPECT_EQ(sleeps("983") + sleeps("9831"), 8) << launcher;
    const auto one = id_of(session("create --nodes n1,n3 --ranks " + *jobs.begin() + rsh));
    EXPECT_EQ(lines_of(session("ranks " + one).out).size(), 4U);
    EXPECT_EQ(session("daemon " + one + " --wait -- sh -c '" + fs_launch_ +
                      " session ranks --here --step $HEDDLE_SESSION_STEP | wc -l'")
                  .out,
              "2\n2\n");
    // The launcher ends the others when the first has died, maybe before they are signalled.
    EXPECT_THAT(session("signal " + one + " KILL").out, testing::MatchesRegex("[1-4] ranks?\n"));
    EXPECT_TRUE(wait_until(10s, [&] { return sleeps("983") + sleeps("9831") == 4; }));
    EXPECT_THAT((std::set{sleeps("983"), sleeps("9831")}), (std::set{0, 4}));
    for (const auto& each : {id, one}) EXPECT_EQ(session("destroy " + each).status, 0);
    (void)cluster_->sh("kill $(cat launcher.983 launcher.9831)");
    EXPECT_TRUE(wait_until(20s, [&] { return left().empty(); })) << left();
  }
}

TEST_F(Sessions, ranks_of_a_pmix_job_are_found_on_the_nodes_of_its_table) {
  if (staged_program("heddle-pmix").empty()) HEDDLE_SKIP("heddle is built without libpmix");
  const auto job = allocate();
  const auto sessions = Strings{"create --job " + job, "create --rsh " + cluster_->rsh()};
  for (const auto& create : sessions) {
    (void)cluster_->sh("rm -f uri; srun -Q --jobid=" + job + " --overlap -w n2 -N1 -n1 " +
                       fs_launch_ + " pmix launch -n 3 --report-uri uri sleep 9889 >out 2>&1 &");
    // Another PMIx job, on the same node and another.
    (void)cluster_->sh("srun -Q --jobid=" + job + " --overlap -w n2,n3 -N2 -n2 " + fs_launch_ +
                       " pmix launch -n 2 sleep 9888 >other 2>&1 &");
    const auto count = [&](const std::string& seconds) {
      return cluster_->on(2, "pgrep -cxf 'sleep " + seconds + "'").out;
    };
    ASSERT_TRUE(wait_until(20s, [&] { return count("9889") + count("9888") == "3\n2\n"; }))
        << cluster_->sh("cat out other").out;
    ASSERT_EQ(cluster_->on(2, fs_launch_ + " pmix query --json uri >table").status, 0);
    const auto id = id_of(session(create + " --pmix table"));
    const auto table =
        lines_of(cluster_->sh("sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p' table").out);
    const auto ranks = lines_of(session("ranks " + id).out);
    ASSERT_EQ(table.size(), 3U);
    ASSERT_EQ(ranks.size(), 3U);
    for (std::size_t i = 0; i < ranks.size(); ++i)
      EXPECT_THAT(ranks[i], StartsWith(std::to_string(i) + " " + table[i] + " n2 heddle-n2-"));
    EXPECT_EQ(session("daemon " + id + " --wait -- hostname").out, "n2\n");
    // The launcher ends the others when the first has died, maybe before they are signalled.
    EXPECT_THAT(session("signal " + id + " KILL").out, testing::MatchesRegex("[1-3] ranks?\n"));
    EXPECT_TRUE(wait_until(10s, [&] { return count("9889") == "0\n"; }));
    EXPECT_EQ(count("9888"), "2\n");
    EXPECT_EQ(session("destroy " + id).status, 0);
    (void)cluster_->on(2, "pkill -xf 'sleep 9888'");
    (void)cluster_->on(3, "pkill -xf 'sleep 9888'");
    EXPECT_TRUE(wait_until(20s, [&] { return left().empty(); })) << left();
  }
  const auto wrong = cluster_->sh("sed -i 's/\"n2\"/\"n9\"/' table; " + fs_launch_ + " session " +
                                  sessions[0] + " --pmix table");
  EXPECT_EQ(wrong.status, 3);
  EXPECT_THAT(wrong.err, HasSubstr("n9: is no node of job " + job));
  free_all();
}

TEST_F(Sessions, users_sessions_take_no_directory_of_others) {
  fs::permissions(dir_.path(), fs::perms(0755));
  run_checked({"install", "-d", "-o", "65534", dir_ / "home"});
  write_text_file(dir_ / "home/file", "content\n");
  const auto user = [&](const std::string& command) {
    return cluster_->sh("cd home; " +
                        std::string("setpriv --reuid 65534 --regid 65534 --clear-groups "
                                    "env HOME=") +
                        (dir_ / "home") + " XDG_CACHE_HOME=" + (dir_ / "home/cache") + " " +
                        command);
  };
  const auto its = fs_launch_ + " session ";
  ASSERT_EQ(user("salloc -Q -N4 --no-shell").status, 0);
  const auto job = cluster_->sh("squeue -h -u 65534 -o %A | tail -1").out;
  const auto number = job.substr(0, job.find('\n'));
  // Planted by another user: not entered.
  const auto planted = "/tmp/heddle-job-65534-" + number;
  ASSERT_EQ(cluster_->on(2, "mkdir -m 777 " + planted).status, 0);
  ASSERT_EQ(cluster_->on(3, "ln -s /etc " + planted).status, 0);
  const auto refused = user(its + "create --job " + number);
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("n2"), HasSubstr("n3"), HasSubstr(planted)));
  EXPECT_EQ(cluster_->on(2, "ls -A " + planted + "; rmdir " + planted).out, "");
  ASSERT_EQ(cluster_->on(3, "rm " + planted).status, 0);

  const auto id = id_of(user(its + "create --job " + number));
  ASSERT_EQ(user(its + "add " + id + " --file file").status, 0);
  EXPECT_EQ(user(its + "ship " + id).out, "8 bytes, 1 names\n");
  const auto ran =
      user(its + "daemon " + id + " --wait -- sh -c 'id -u; cat $HEDDLE_SESSION_DIR/files/file'");
  EXPECT_EQ(ran.out, "65534\ncontent\n65534\ncontent\n65534\ncontent\n65534\ncontent\n") << ran.err;
  EXPECT_EQ(cluster_->on(1, "stat -c '%U %a' /tmp/heddle-job-65534-" + number).out, "nobody 700\n");
  // Of another user, who is not root, it is no session.
  const auto other = cluster_->sh(
      "setpriv --reuid 65533 --regid 65533 --clear-groups env HOME=" + (dir_ / "home") +
      " XDG_CACHE_HOME=" + (dir_ / "home/cache") + " " + its + "destroy " + id);
  EXPECT_EQ(other.status, 3);
  EXPECT_EQ(user(its + "ranks " + id).status, 0);
  EXPECT_EQ(user(its + "destroy " + id).status, 0);
  EXPECT_EQ(left(), "");
  (void)cluster_->sh("scancel -u 65534");
}

TEST_F(Sessions, sessions_of_other_jobs_and_directories_of_fs_ship_are_untouched) {
  const auto create = [&](const std::string& job) {
    return id_of(session("create --nodes n1,n2 --rsh " + cluster_->rsh() + " --job " + job));
  };
  write_text_file(dir_ / "file", "content\n");
  const auto one = create("a");
  ASSERT_EQ(session("add " + one + " --file file").status, 0);
  ASSERT_EQ(session("ship " + one).status, 0);
  ASSERT_EQ(session("daemon " + one + " -- sleep 9890").status, 0);
  // As it is before fs-ship has put anything there.
  ASSERT_EQ(cluster_->on(1, "mkdir -m 700 /tmp/heddle-job-0-77").status, 0);
  for (int round = 0; round < 5; ++round) {
    const auto two = create("b");
    EXPECT_EQ(session("daemon " + two + " --wait -- hostname").out, "n1\nn2\n");
    EXPECT_EQ(session("destroy " + two).status, 0);
  }
  for (const int node : {1, 2})
    EXPECT_EQ(cluster_
                  ->on(node, "cat /tmp/heddle-job-0-a/session." + one +
                                 "/files/file && pgrep -cxf 'sleep 9890'")
                  .out,
              "content\n1\n");
  EXPECT_EQ(cluster_->on(1, "rm -f /tmp/heddle-job-0-77/locks; rmdir /tmp/heddle-job-0-77").err,
            "");
  // Each process of an agent removes all when the other is killed.
  const std::string worker = "$(pgrep -n -f 'fs-launch session [a]gent.* --job c')";
  for (const auto& which : {worker, "$(ps -o ppid= -p " + worker + ")"}) {
    const auto three = create("c");
    EXPECT_EQ(cluster_->on(1, "kill -9 " + which).status, 0);
    EXPECT_TRUE(wait_until(10s, [&] {
      return cluster_->on(1, "ls -d /tmp/heddle-job-0-c").status != 0;
    })) << which;
    (void)session("destroy " + three);
  }
  // A stale one of another job is removed: its agents were killed all at once.
  for (const int node : {1, 2}) (void)cluster_->on(node, "pkill -9 -f 'fs-launch session [a]gent'");
  EXPECT_EQ(session("destroy " + create("b")).status, 0);
  EXPECT_TRUE(wait_until(30s, [&] { return left().empty(); })) << left();
}

TEST_F(Sessions, large_manifest_is_shipped_once) {
  run_checked({"sh", "-c", "head -c 104857600 /dev/urandom >" + dir_ / "large"});
  const auto job = allocate();
  const auto id = id_of(session("create --to /dev/shm --job " + job));
  ASSERT_EQ(session("add " + id + " --file large").status, 0);
  const auto first = session("ship " + id);
  EXPECT_EQ(first.out, "104857600 bytes, 1 names\n") << first.err;
  const auto size = [&](int node) { return cluster_->on(node, "du -sm /dev/shm | cut -f1").out; };
  for (int node = 1; node <= 4; ++node) EXPECT_EQ(size(node), "100\n") << node;
  EXPECT_EQ(session("ship " + id).out, "0 bytes, 0 names\n");
  const auto other = id_of(session("create --to /dev/shm --job " + job));
  ASSERT_EQ(session("add " + other + " --file large").status, 0);
  EXPECT_EQ(session("ship " + other).out, "0 bytes, 1 names\n");
  EXPECT_EQ(session("daemon " + other + " --wait -- sh -c 'cmp $HEDDLE_SESSION_DIR/files/large " +
                    dir_ / "large" + "'")
                .status,
            0);
  for (int node = 1; node <= 4; ++node) EXPECT_EQ(size(node), "100\n") << node;
  for (const auto& each : {id, other}) EXPECT_EQ(session("destroy " + each).status, 0);
  for (int node = 1; node <= 4; ++node) EXPECT_EQ(cluster_->on(node, "ls /dev/shm").out, "");
  free_all();
}

TEST_F(Hold, session_of_this_machine_alone_needs_no_launcher) {
  const auto session = [&](const std::string& words) { return sh("$FS_LAUNCH session " + words); };
  run_checked({"sh", "-c", "cd " + dir_.path() + " && mkdir to && echo content >file"});
  const auto job = "mine-" + std::to_string(::getpid());
  (void)sh("PMIX_RANK=0 PMIX_NAMESPACE=" + job + " sleep 9888 >/dev/null 2>&1 & echo $! >pid");
  const auto made = session("create --local --to " + dir_ / "to" + " --ranks " + job);
  ASSERT_EQ(made.status, 0) << made.err;
  const auto id = lines_of(made.out).at(0);
  EXPECT_EQ(session("add " + id + " --file file").status, 0);
  EXPECT_EQ(session("ship " + id).out, "8 bytes, 1 names\n");
  EXPECT_EQ(session("daemon " + id + " --wait -- sh -c 'cat $HEDDLE_SESSION_DIR/files/file'").out,
            "content\n");
  EXPECT_TRUE(wait_until(10s, [&] {
    return session("ranks " + id).out.starts_with("0 " + sh("printf %s $(cat pid)").out + " ");
  }));
  EXPECT_EQ(session("signal " + id + " KILL").out, "1 ranks\n");
  EXPECT_EQ(session("destroy " + id).status, 0);
  EXPECT_TRUE(wait_until(20s, [&] {
    return sh("ls to heddle/sessions").out == "heddle/sessions:\n\nto:\n";
  })) << sh("ls -R to heddle/sessions").out;
}

}  // namespace
}  // namespace heddle::test
