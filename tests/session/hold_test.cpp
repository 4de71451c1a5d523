// SPDX-License-Identifier: MIT
// fs-launch --hold and release, on four nodes and on this machine alone.

#include "tests/session/local_holds.hpp"
#include "tests/session/sessions.hpp"

namespace heddle::test {
namespace {

TEST_F(Sessions, held_ranks_wait_until_they_are_released) {
  build_program({dir_ / "app", "#include <stdio.h>\nint main(void){puts(\"ran\");return 3;}"});
  const auto release = fs_launch_ + " release ";
  for (const std::string mode : {"agent", "exec"}) {
    (void)cluster_->sh("(" + fs_launch_ + " --hold " + mode +
                       " --hold-id h srun -Q -N4 -n8 ./app "
                       ">out 2>err; echo $? >status) >/dev/null 2>&1 &");
    EXPECT_TRUE(wait_until(30s, [&] { return cluster_->sh(release + "--list h").status == 0; }))
        << cluster_->sh("cat err").out;
    const auto held = lines_of(cluster_->sh(release + "--list h").out);
    EXPECT_EQ(held.size(), 8U);
    for (const auto& line : held) {
      std::istringstream words(line);
      std::string rank, pid, node;
      words >> rank >> pid >> node;
      const auto look =
          cluster_->on(std::stoi(node.substr(1)), "grep -E '^(State|TracerPid)' /proc/" + pid +
                                                      "/status; "
                                                      "grep -o '/[^ ]*$' /proc/" +
                                                      pid + "/maps | sort -u");
      if (mode == "exec") {
        EXPECT_THAT(look.out, HasSubstr("T (stopped)"));
        EXPECT_THAT(look.out, HasSubstr("TracerPid:\t0\n"));
        EXPECT_THAT(look.out, HasSubstr(dir_ / "app"));
        EXPECT_THAT(look.out, Not(HasSubstr("libc.so")));
      } else {
        EXPECT_THAT(look.out, Not(HasSubstr(dir_ / "app")));
      }
    }
    EXPECT_EQ(cluster_->sh("cat out").out, "");
    const auto id = id_of(session("attach $(squeue -h -s -o %i | grep -F .0)"));
    EXPECT_EQ(lines_of(session("ranks " + id).out).size(), 8U);
    EXPECT_EQ(session("destroy " + id).status, 0);
    EXPECT_EQ(cluster_->sh(release + "h").status, 0);
    const auto again = cluster_->sh(release + "h");
    EXPECT_EQ(again.status == 1 ? 1 : 3, again.status);
    EXPECT_NE(again.status, 0);
    EXPECT_TRUE(wait_until(20s, [&] { return cluster_->sh("cat status").out == "3\n"; }));
    EXPECT_EQ(lines_of(cluster_->sh("cat out").out).size(), 8U) << cluster_->sh("cat err").out;
    EXPECT_EQ(cluster_->sh("rm status; ls cache/heddle/hold").out, "");
  }
}

TEST_F(Sessions, held_ranks_of_each_launcher_load_what_was_changed_meanwhile) {
  const auto build = [&](const std::string& word) {
    const auto library = build_library({dir_ / word + "/libword.so.1",
                                        "const char* word(void) { return \"" + word + "\"; }",
                                        {"-Wl,-soname,libword.so.1"}});
    build_program({dir_ / word + "/app",
                   "#include <stdio.h>\nconst char* word(void);\n"
                   "int main(void) { printf(\"" +
                       word + " %s\\n\", word()); return 0; }",
                   {library, "-Wl,-rpath," + dir_ / "lib"}});
  };
  build("old");
  build("new");
  const auto install = [&](const std::string& word) {
    run_checked({"sh", "-c",
                 "cd " + dir_.path() + " && mkdir -p lib && cp " + word +
                     "/libword.so.1 lib/x && " + "mv lib/x lib/libword.so.1 && cp " + word +
                     "/app x && mv x app"});
  };
  const auto rsh = " --rsh " + cluster_->rsh() + " --nodes n1,n3";
  for (const auto& launcher : Strings{"srun -Q -w n1,n3 -N2 -n4"} + launchers_by_rsh())
    for (const std::string mode : {"agent", "exec"}) {
      install("old");
      const auto held = hold("--hold " + mode, launcher);
      ASSERT_EQ(held.size(), 4U) << launcher;
      std::string job;
      for (const auto& line : held) {
        std::istringstream words(line);
        std::string rank, pid, node;
        words >> rank >> pid >> node >> job;
        const auto look = cluster_->on(std::stoi(node.substr(1)),
                                       "grep -E '^(State|TracerPid)' /proc/" + pid +
                                           "/status; grep -o '/[^ ]*$' /proc/" + pid + "/maps");
        if (mode == "agent") {
          EXPECT_THAT(look.out, Not(HasSubstr(dir_ / "app"))) << launcher;
          continue;
        }
        EXPECT_THAT(look.out, AllOf(HasSubstr("T (stopped)"), HasSubstr("TracerPid:\t0\n"),
                                    HasSubstr(dir_ / "app"), Not(HasSubstr("libc.so"))))
            << launcher;
      }
      // A session finds them by the name that the list has.
      const auto id = id_of(launcher.starts_with("srun") ? session("attach " + job)
                                                         : session("create --ranks " + job + rsh));
      EXPECT_EQ(lines_of(session("ranks " + id).out).size(), 4U) << launcher << job;
      if (mode == "agent") install("new");
      EXPECT_EQ(session("destroy " + id).status, 0);
      EXPECT_EQ(cluster_->sh("cat out").out, "");
      EXPECT_EQ(cluster_->sh(fs_launch_ + " release h").status, 0);
      EXPECT_TRUE(wait_until(20s, [&] { return cluster_->sh("cat status").out == "0\n"; }))
          << launcher << cluster_->sh("cat status err").out;
      const std::string said = mode == "agent" ? "new new\n" : "old old\n";
      EXPECT_EQ(cluster_->sh("cat out").out, said + said + said + said) << launcher << mode;
      EXPECT_TRUE(wait_until(20s, [&] { return apps().empty(); })) << launcher << apps();
    }
}

TEST_F(Sessions, held_ranks_go_on_or_end_whatever_is_killed) {
  build_program({dir_ / "app", "#include <stdio.h>\nint main(void){puts(\"ran\");return 0;}"});
  const auto on = [&](const std::string& node, const std::string& kill) {
    return cluster_->rsh() + " " + node + " " + kill;
  };
  const std::string srun = "srun -Q -w n1,n3 -N2 -n4";
  const std::string front = "kill -9 $(cat front)";
  const std::string on_kill = " --on-tool-exit kill";
  struct Case {
    std::string launcher, options, kill;
    int least, most;  ///< ranks that then run
  };
  // The launcher dies with a killed fs-launch, and ends the ranks, if it gets to that, first.
  std::vector<Case> cases = {
      {srun, "--hold agent", front, 0, 4},
      {srun, "--hold exec", front, 0, 4},
      {srun, "--hold exec" + on_kill, front, 0, 0},
      // srun ends at the second within a second; two at once may be one to the kernel.
      {srun, "--hold exec" + on_kill,
       "for i in 1 2 3 4; do kill -INT $(cat front); sleep 0.3; done 2>/dev/null", 0, 0},
      // Slurm takes its time to notice; what is released runs, on n3 too.
      {srun, "--hold exec", on("n1", "pkill -9 -x slurmstepd") + "; " + fs_launch_ + " release h",
       2, 4}};
  for (const auto& launcher : Strings{srun} + launchers_by_rsh()) {
    const auto name = launcher.substr(0, launcher.find(' '));
    const int most = launcher == srun ? 0 : 4;  // mpirun's SIGTERM comes after a SIGCONT
    cases.push_back({launcher, "--hold exec", "kill -TERM $(cat front)", 0, most});
    cases.push_back({launcher, "--hold exec" + on_kill, "pkill -9 -x " + name, 0, most});
    cases.push_back({launcher, "--hold exec", fs_launch_ + " release --kill h", 0, 0});
  }
  for (const auto& each : cases) {
    const auto text = each.launcher + ": " + each.options + ": " + each.kill + "\n";
    ASSERT_EQ(hold(each.options, each.launcher).size(), 4U) << text;
    (void)cluster_->sh(each.kill);
    EXPECT_TRUE(wait_until(40s, [&] { return apps().empty(); })) << text << apps();
    // The launcher's status, which says that it has failed, unless all ranks ran; srun waits for a
    // lost slurmstepd. One hydra in sixty hangs at SIGTERM, also without heddle.
    std::string status;
    if (each.least == 0 &&
        !wait_until(20s, [&] { return !(status = cluster_->sh("cat status").out).empty(); })) {
      EXPECT_THAT(each.launcher, testing::StartsWith("mpiexec.hydra")) << text;
      (void)cluster_->sh("kill -9 $(cat front)");
    }
    const auto ran = std::atoi(cluster_->sh("grep -cx ran out").out.c_str());
    EXPECT_TRUE(status != "0\n" || ran == 4) << text << ran;
    EXPECT_GE(ran, each.least) << text;
    EXPECT_LE(ran, each.most) << text;
    // An fs-launch that ends later would release the next one's ranks, which are held by this name.
    (void)cluster_->sh("scancel -u root");
    EXPECT_TRUE(wait_until(20s, [&] { return !cluster_->sh("cat status").out.empty(); })) << text;
    (void)cluster_->sh("rm -rf cache/heddle/hold/h");
    EXPECT_TRUE(wait_until(20s, [&] { return cluster_->sh("squeue -h").out.empty(); })) << text;
    ASSERT_FALSE(HasFailure());
  }
}

TEST_F(Sessions, rank_without_keepers_goes_on_by_a_signal) {
  build_program({dir_ / "app", "#include <stdio.h>\nint main(void){puts(\"ran\");return 0;}"});
  ASSERT_EQ(hold("--hold exec", "srun -Q -N4 -n4").size(), 4U);
  const auto id = id_of(session("attach $(squeue -h -s -o %i | grep -F .0)"));
  EXPECT_EQ(cluster_->on(2, "pkill -9 heddle-hold").status, 0);
  EXPECT_EQ(cluster_->sh(fs_launch_ + " release h").status, 0);
  EXPECT_TRUE(wait_until(10s, [&] { return lines_of(cluster_->sh("cat out").out).size() == 3; }));
  EXPECT_EQ(session("signal " + id + " CONT").out, "1 ranks\n");
  EXPECT_TRUE(wait_until(10s, [&] { return lines_of(cluster_->sh("cat out").out).size() == 4; }));
}

TEST_F(Sessions, ranks_of_killed_keepers_are_still_released) {
  build_program({dir_ / "app", "#include <stdio.h>\nint main(void){puts(\"ran\");return 0;}"});
  const auto release = fs_launch_ + " release ";
  (void)cluster_->sh(
      "(" + fs_launch_ +
      " --hold exec --hold-id h srun -Q -N4 -n4 ./app >out 2>err) >/dev/null 2>&1 &");
  ASSERT_TRUE(wait_until(30s, [&] { return cluster_->sh(release + "--list h").status == 0; }));
  ASSERT_TRUE(wait_until(5s, [&] {
    return cluster_->on(1, "pgrep -c heddle-hold").out +
               cluster_->on(3, "pgrep -c heddle-hold").out ==
           "2\n2\n";
  }));
  for (const int node : {1, 2, 3, 4})
    ASSERT_EQ(
        cluster_->on(node, std::string("pkill -9 ") + (node < 3 ? "-o" : "-n") + " heddle-hold")
            .status,
        0);
  // All still wait, and no tracer has them.
  for (const int node : {1, 2, 3, 4})
    EXPECT_THAT(
        cluster_->on(node, "grep -hE '^(State|TracerPid)' /proc/$(pgrep -x app)/status").out,
        AllOf(HasSubstr("T (stopped)"), HasSubstr("TracerPid:\t0\n")));
  EXPECT_EQ(cluster_->sh("cat out").out, "");
  EXPECT_EQ(cluster_->sh(release + "h").status, 0);
  EXPECT_TRUE(wait_until(20s, [&] {
    return cluster_->sh("cat out").out == "ran\nran\nran\nran\n";
  })) << cluster_->sh("cat out err").out;
}

TEST_F(Sessions, second_release_fails_and_the_end_of_the_tool_releases_or_kills) {
  const auto start = [&](const std::string& options) {
    (void)cluster_->sh("sleep 986 & echo $! >tool; rm -f out; (" + fs_launch_ +
                       " --hold exec --hold-id h --tool $(cat tool) " + options +
                       " srun -Q -N4 -n4 sh -c 'echo ran; sleep 1' >out 2>err) >/dev/null 2>&1 & "
                       "echo $! >pid");
    EXPECT_TRUE(wait_until(30s, [&] {
      return cluster_->sh(fs_launch_ + " release --list h").status == 0;
    })) << cluster_->sh("cat err").out;
  };
  const auto ran = [&] { return lines_of(cluster_->sh("cat out").out).size(); };
  start("");
  EXPECT_EQ(cluster_->sh(fs_launch_ + " release h").status, 0);
  const auto twice = cluster_->sh(fs_launch_ + " release h");
  EXPECT_EQ(twice.status, 1);
  EXPECT_THAT(twice.err, HasSubstr("released already"));
  EXPECT_TRUE(wait_until(10s, [&] { return ran() == 4; }));
  EXPECT_TRUE(wait_until(10s, [&] { return cluster_->sh("squeue -h").out.empty(); }));
  (void)cluster_->sh("kill $(cat tool)");

  start("");
  (void)cluster_->sh("kill -9 $(cat tool)");
  EXPECT_TRUE(wait_until(10s, [&] { return ran() == 4; }));
  EXPECT_TRUE(wait_until(10s, [&] { return cluster_->sh("squeue -h").out.empty(); }));

  start("--on-tool-exit kill");
  (void)cluster_->sh("kill -9 $(cat tool)");
  EXPECT_TRUE(wait_until(20s, [&] { return cluster_->sh("squeue -h").out.empty(); }));
  EXPECT_EQ(ran(), 0U);
}

TEST_F(Hold, fs_ship_keeps_its_directory_when_the_last_session_of_the_job_ends) {
  if (run({"sh", "-c", "command -v strace"}).status != 0) HEDDLE_SKIP("strace is not installed");
  const auto session = [&](const std::string& words) { return sh("$FS_LAUNCH session " + words); };
  run_checked({"mkdir", dir_ / "to"});
  const auto id = lines_of(session("create --local --to " + dir_ / "to").out).at(0);
  const auto job = dir_ / "to/heddle-job-" + std::to_string(::geteuid()) + "-s" + id;
  // Stopped for two seconds when it has opened the directory and has put nothing there.
  const std::string bundle(64, 'a');
  (void)sh("strace -o trace -e inject=symlinkat:delay_enter=2000000:when=1 " +
           staged_program("fs-ship") + " --receive --id " + bundle + " --size 9 --part x --to " +
           dir_ / "to" + " --job s" + id + " source </dev/null >said 2>&1 &");
  ASSERT_TRUE(wait_until(10s, [&] { return sh("grep -c unlinkat trace").out == "1\n"; }));
  EXPECT_EQ(session("destroy " + id).status, 0);
  EXPECT_TRUE(wait_until(10s, [&] { return !sh("cat said").out.empty(); }));
  EXPECT_THAT(sh("cat said").out, HasSubstr("\"state\":\"ready\""));
  EXPECT_TRUE(fs::is_symlink(job + "/" + bundle + ".source"));
}

TEST_F(Hold, tool_lives_while_the_terminal_has_stopped_fs_launch) {
  (void)sh("setsid $FS_LAUNCH --hold --hold-id h sleep 9895 >/dev/null 2>&1 & echo $! >pid");
  ASSERT_TRUE(wait_until(10s, [&] { return content("alive").starts_with("0"); }));
  EXPECT_EQ(sh("kill -STOP -$(cat pid)").status, 0);
  ASSERT_TRUE(wait_until(10s, [&] {
    return sh("grep ^State /proc/$(cat pid)/status").out == "State:\tT (stopped)\n";
  }));
  const auto before = content("alive");
  EXPECT_TRUE(wait_until(10s, [&] { return content("alive") != before; }));
  EXPECT_EQ(sh("kill -CONT -$(cat pid); kill $(cat pid)").status, 0);
  EXPECT_TRUE(wait_until(10s, [&] { return sh("ls heddle/hold").out.empty(); }));
}

TEST_F(Hold, ends_after_its_limit_as_with_the_tool) {
  build_program({dir_ / "app", "int main(void) { return 0; }"});
  for (const auto& [mode, on_exit] : {std::pair("agent"s, "release"s), {"exec", "kill"}}) {
    (void)sh("rm -f ended; $FS_LAUNCH --hold " + mode +
             " --hold-id h --hold-limit 4 --on-tool-exit " + on_exit +
             " sh -c 'PMI_RANK=0 PMI_SIZE=1 ./app; echo $? >ended' >/dev/null 2>&1 &");
    ASSERT_TRUE(wait_until(10s, [&] { return sh("$FS_LAUNCH release --list h").status == 0; }));
    EXPECT_EQ(content("state"), "hold\n");
    EXPECT_TRUE(wait_until(10s, [&] { return !sh("cat ended").out.empty(); })) << mode;
    EXPECT_EQ(sh("cat ended").out, on_exit == "kill" ? "137\n" : "0\n") << mode;
    EXPECT_TRUE(wait_until(10s, [&] { return sh("ls heddle/hold").out.empty(); }));
  }
}

TEST_F(Hold, one_rank_of_a_node_looks_at_the_shared_directory_for_all) {
  if (run({"sh", "-c", "command -v strace"}).status != 0) HEDDLE_SKIP("strace is not installed");
  build_program({dir_ / "app", "int main(void) { return 0; }"});
  (void)sh(
      "strace -f -e trace=openat -o trace $FS_LAUNCH --hold agent --hold-id h sh -c "
      "'for i in 0 1 2 3 4 5 6 7; do PMI_RANK=$i PMI_SIZE=8 ./app && echo $i >>ran & done; "
      "wait' >/dev/null 2>&1 & echo $! >pid");
  const auto held = [&] { return lines_of(sh("$FS_LAUNCH release --list h").out); };
  ASSERT_TRUE(wait_until(30s, [&] { return held().size() == 8; })) << held().size();
  const auto beats = [&] { return std::stoi(content("alive")); };
  const auto looks = [&] { return std::stoi(sh("grep -c h/state trace").out); };
  ASSERT_TRUE(wait_until(10s, [&] { return content("alive").starts_with("0"); }));
  const auto first = beats();
  const auto before = looks();
  ASSERT_TRUE(wait_until(30s, [&] { return beats() >= first + 3; }));
  // Four a second, in at least three seconds; and each once more, if ten have gone by.
  EXPECT_LE(looks() - before, 4 * (beats() - first + 2) + 8);
  // When ranks are killed, among them the one that looks, others do so.
  for (std::size_t i = 0; i < 4; ++i) {
    std::istringstream words(held()[i]);
    std::string rank, pid;
    words >> rank >> pid;
    EXPECT_EQ(sh("kill -9 " + pid).status, 0);
  }
  // Or is stopped.
  std::istringstream words(held()[4]);
  std::string rank, pid;
  words >> rank >> pid;
  EXPECT_EQ(sh("kill -STOP " + pid + "; $FS_LAUNCH release h").status, 0);
  EXPECT_TRUE(wait_until(30s, [&] { return lines_of(sh("cat ran").out).size() == 3; }));
  EXPECT_EQ(sh("kill -CONT " + pid).status, 0);
  EXPECT_TRUE(wait_until(30s, [&] { return sh("ls heddle/hold").out.empty(); }));
  EXPECT_EQ(lines_of(sh("cat ran").out).size(), 4U);
}

TEST_F(Hold, ends_with_the_tool_on_kernels_without_pidfds) {
  for (const std::string kernel : {"", "4.18"}) {
    if (!kernel.empty() && ::geteuid() != 0) continue;
    const auto under = kernel.empty() ? "" : HEDDLE_OLD_KERNEL " " + kernel + " ";
    (void)sh("sleep 9896 & tool=$!; echo $tool >tool; " + under +
             "$FS_LAUNCH --hold-id h --tool $tool --hold sleep 9897 >/dev/null 2>said & "
             "echo $! >pid");
    ASSERT_TRUE(wait_until(10s, [&] { return !content("alive").empty(); })) << sh("cat said").out;
    const auto before = content("alive");
    EXPECT_TRUE(wait_until(10s, [&] { return content("alive") != before; }));
    EXPECT_EQ(content("state"), "hold\n");
    EXPECT_EQ(sh("kill -9 $(cat tool)").status, 0);
    EXPECT_TRUE(wait_until(10s, [&] { return content("state") == "release\n"; }));
    EXPECT_EQ(sh("kill $(cat pid)").status, 0);
    EXPECT_TRUE(wait_until(10s, [&] { return sh("ls heddle/hold").out.empty(); }));
    const auto none = sh(under + "$FS_LAUNCH --hold agent --tool 4194304 true");
    EXPECT_EQ(none.status, 3);
    EXPECT_THAT(none.err, HasSubstr("is no process"));
  }
}

}  // namespace
}  // namespace heddle::test
