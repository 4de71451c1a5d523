// SPDX-License-Identifier: MIT
// Sessions whose tool, agents, nodes, disks or Slurm fail: nothing of them stays.

#include "tests/session/sessions.hpp"

namespace heddle::test {
namespace {

using ::testing::AnyOf;

TEST_F(Sessions, session_ends_with_its_tool_on_kernels_without_pidfds) {
  const auto job = allocate();
  // With its seccomp filter the relay would be refused by clients that have none.
  const auto command = HEDDLE_OLD_KERNEL " 4.18 " + fs_launch_ + " session ";
  const auto id = id_of(cluster_->sh("sleep 9898 & tool=$!; echo $tool >tool; exec " + command +
                                     "create --tool $tool --job " + job));
  EXPECT_EQ(cluster_->sh(command + "daemon " + id + " --wait -- hostname").out, "n1\nn2\nn3\nn4\n");
  EXPECT_EQ(cluster_->sh("kill -9 $(cat tool)").status, 0);
  EXPECT_TRUE(wait_until(20s, [&] { return left().empty(); })) << left();
  free_all();
}

TEST_F(Sessions, session_cleans_up_whichever_part_is_killed) {
  const auto job = allocate();
  write_text_file(dir_ / "file", std::string(1'000'000, 'x'));
  const Strings kills = {"kill -9 $(pgrep -o heddle-session)",
                         // As after a boot of this host.
                         "kill -9 $(pgrep -o heddle-session); "
                         "rm /run/heddle/session.$(ls cache/heddle/sessions)",
                         "kill -9 $(pgrep -x srun)",
                         "kill -9 $(pgrep -f 'session agent' -P $(pgrep -x -d, slurmstepd))",
                         "kill -9 $(pgrep -f 'fs-launch session agent' | tail -1)",
                         "pkill -9 -x slurmstepd", "kill -9 $(pgrep -f 'fs-launch session agent')",
                         "kill -9 $(pgrep -f 'sleep 984' | head -1)"};
  for (const auto& kill : kills) {
    const auto id = id_of(session("create --job " + job));
    ASSERT_EQ(session("add " + id + " --file file").status, 0);
    ASSERT_EQ(session("ship " + id).status, 0);
    ASSERT_EQ(session("daemon " + id + " -- sh -c 'setsid sleep 984 & wait'").status, 0);
    (void)cluster_->sh(kill);
    const auto end = session("destroy " + id);
    EXPECT_EQ(lines_of(end.err).size() > 3, false) << end.err;
    // What is left of agents killed all at once the next session sweeps.
    const bool is_swept = kill == kills[5] || kill == kills[6];
    EXPECT_TRUE(wait_until(is_swept ? 3s : 35s, [&] { return left().empty(); }) || is_swept)
        << kill << "\n"
        << left();
    const auto next = session("create --job " + job);
    ASSERT_EQ(next.status, 0) << kill << next.err;
    EXPECT_EQ(session("destroy " + id_of(next)).status, 0);
    EXPECT_TRUE(wait_until(35s, [&] { return left().empty(); })) << kill << "\n" << left();
  }
  // The job ends.
  const auto id = id_of(session("create --job " + job));
  ASSERT_EQ(session("daemon " + id + " -- sleep 985").status, 0);
  free_all();
  EXPECT_TRUE(wait_until(30s, [&] { return left().empty(); })) << left();
}

TEST_F(Sessions, nothing_stays_whatever_is_killed_and_when) {
  // HEDDLE_KILLS=100 tries so many.
  const char* wanted = std::getenv("HEDDLE_KILLS");
  const int tries = wanted ? std::atoi(wanted) : 9;
  const auto job = allocate();
  write_text_file(dir_ / "file", std::string(1'000'000, 'x'));
  const auto on = [&](int node, const std::string& kill) {
    return cluster_->rsh() + " n" + std::to_string(node) + " pkill -9 " + kill;
  };
  const std::string victims[] = {"kill -9 $tool",
                                 "pkill -9 -P $front",
                                 "pkill -9 -x heddle-session",
                                 "pkill -9 -x 'srun|nsenter'",
                                 on(2, "-x slurmstepd"),
                                 on(2, "-of 'fs-launch session agent'"),
                                 on(2, "-nf 'fs-launch session agent'"),
                                 on(2, "-f 'fs-launch session agent'"),
                                 on(3, "-xf 'sleep 987'")};
  write_text_file(dir_ / "session.sh",
                  "id=$(" + fs_launch_ + " session create $2 --tool $1) || exit\n" + fs_launch_ +
                      " session add $id --file file && " + fs_launch_ + " session ship $id && " +
                      fs_launch_ +
                      " session daemon $id -- sh -c 'setsid sleep 987 & wait'\n"
                      "sleep 0.6\n" +
                      fs_launch_ + " session destroy $id\n");
  const auto is_clean = [&] {
    return left().empty() && cluster_->sh("pgrep -xf 'sleep 987'").out.empty();
  };
  for (int i = 0; i < tries; ++i) {
    const auto& kill = victims[static_cast<std::size_t>(i) % std::size(victims)];
    const auto moment = std::to_string(i * 37 % 100 * 18);  // ms, of a session of 1.8 s
    // By srun, or by remote shells, as beside mpirun and hydra.
    const auto way = (i + i / static_cast<int>(std::size(victims))) % 2 == 0
                         ? "--job " + job
                         : "--nodes n1,n2,n3,n4 --rsh " + cluster_->rsh();
    const auto ran = cluster_->sh("sleep 1000 & tool=$!; sh session.sh $tool '" + way +
                                  "' >>said 2>&1 & front=$!\n"
                                  "sleep $(printf %d.%03d $((" +
                                  moment + " / 1000)) $((" + moment + " % 1000))); " + kill +
                                  "; wait $front; kill -9 $tool; true");
    EXPECT_FALSE(ran.timed_out);
    // Only what was killed all at once on a node, or by Slurm, waits for the next session.
    const bool is_swept = kill == victims[4] || kill == victims[7];
    EXPECT_TRUE(is_swept || wait_until(35s, is_clean)) << left();
    if (!wait_until(1s, is_clean)) {
      const auto next = session("create --job " + job);
      ASSERT_EQ(next.status, 0) << kill << next.err;
      EXPECT_EQ(session("destroy " + id_of(next)).status, 0);
    }
    EXPECT_TRUE(wait_until(35s, is_clean)) << left();
    ASSERT_FALSE(HasFailure()) << way << ": " << kill << " after " << moment
                               << " ms: " << cluster_->sh("cat said").out;
  }
  free_all();
}

TEST_F(Sessions, disk_that_fills_while_a_pack_is_unpacked_and_damaged_packs_leave_nothing) {
  const auto job = allocate();
  for (int node = 1; node <= 4; ++node)
    ASSERT_EQ(
        cluster_->on(node, "mkdir /dev/shm/s && mount -t tmpfs -o size=8m none /dev/shm/s").status,
        0);
  run_checked({"sh", "-c", "head -c 3000000 /dev/urandom >" + dir_ / "large"});
  // sbcast, and then something else on n2: fills its disk up, cuts the pack short, or changes it.
  write_text_file(dir_ / "copy",
                  "#!/bin/sh\nsbcast -f --jobid=" + job + " \"$1\" \"$2\" || exit\n" +
                      cluster_->rsh() + " n2 \"sh '$PWD/then' $2\"\n",
                  0755);
  const auto list = [&] {
    std::string out;
    for (int node = 1; node <= 4; ++node)
      out += cluster_->on(node, "find /dev/shm/s -type f -size +100k").out;
    return out;
  };
  for (const auto& [then, why] :
       {std::pair{"head -c 4000000 /dev/zero >/dev/shm/s/other", "No space left on device"},
        {"truncate -s 2000000 $1", "has not arrived whole"},
        {"truncate -s 10 $1", "has not arrived whole"},
        {"rm $1", "No such file"},
        {"rm $1; mkfifo $1", "not a regular file"},
        {"rm $1; ln -s /etc/passwd $1", "has other bytes"},
        {"printf xxxx | dd of=$1 conv=notrunc status=none", "has other bytes"},
        {"printf xxxx | dd of=$1 conv=notrunc bs=1 seek=2000000 status=none", "has changed"}}) {
    const auto id = id_of(
        session("create --to /dev/shm/s --via '" + dir_ / "copy" + " {src} {dst}' --job " + job));
    ASSERT_EQ(session("add " + id + " --file large").status, 0);
    write_text_file(dir_ / "then", then + "\n"s);
    const auto failed = session("ship " + id);
    EXPECT_EQ(failed.status, 3) << then;
    EXPECT_THAT(failed.err, AllOf(HasSubstr("n2: "), HasSubstr(why), Not(HasSubstr("n3: "))))
        << then;
    EXPECT_EQ(lines_of(failed.err).size(), 1U) << failed.err;
    (void)cluster_->on(2, "rm -f /dev/shm/s/other");
    EXPECT_EQ(list(), "") << then;
    // The session is as before, and the next attempt works.
    write_text_file(dir_ / "then", "");
    const auto again = session("ship " + id);
    EXPECT_EQ(again.out, "3000000 bytes, 1 names\n") << again.err;
    EXPECT_EQ(session("destroy " + id).status, 0);
    EXPECT_EQ(list(), "") << then;
  }
  for (int node = 1; node <= 4; ++node)
    EXPECT_EQ(cluster_->on(node, "ls -A /dev/shm/s && umount /dev/shm/s && rmdir /dev/shm/s").out,
              "");
  free_all();
}

TEST_F(Sessions, bad_node_is_named_and_the_others_are_cleaned) {
  const auto job = allocate();
  ASSERT_EQ(
      cluster_->on(2, "mkdir -p /dev/shm/s && mount -t tmpfs -o noexec none /dev/shm/s").status, 0);
  for (const int node : {1, 3, 4}) ASSERT_EQ(cluster_->on(node, "mkdir -p /dev/shm/s").status, 0);
  const auto noexec = session("create --job " + job + " --to /dev/shm/s");
  EXPECT_EQ(noexec.status, 3);
  EXPECT_THAT(noexec.err, AllOf(HasSubstr("n2"), HasSubstr("noexec")));
  ASSERT_EQ(cluster_->on(2, "mount -o remount,ro,exec /dev/shm/s").status, 0);
  const auto read_only = session("create --job " + job + " --to /dev/shm/s");
  EXPECT_EQ(read_only.status, 3);
  EXPECT_THAT(read_only.err, AllOf(HasSubstr("n2"), HasSubstr("Read-only")));
  ASSERT_EQ(cluster_->on(2, "mount -o remount,rw,size=3m /dev/shm/s").status, 0);
  const auto id = id_of(session("create --job " + job + " --to /dev/shm/s"));
  run_checked({"sh", "-c", "head -c 2000000 /dev/urandom >" + dir_ / "large"});
  ASSERT_EQ(session("add " + id + " --file large").status, 0);
  const auto full = session("ship " + id);
  EXPECT_EQ(full.status, 3);
  EXPECT_THAT(full.err, AllOf(HasSubstr("n2"), HasSubstr("no room")));
  EXPECT_EQ(cluster_->on(3, "find /dev/shm/s -size +100k").out, "");
  EXPECT_EQ(session("destroy " + id).status, 0);
  for (int node = 1; node <= 4; ++node)
    EXPECT_EQ(cluster_->on(node, "ls -A /dev/shm/s").out, "") << node;
  // A node whose slurmd does not answer.
  ASSERT_EQ(cluster_->on(4, "pkill -STOP -x slurmd").status, 0);
  const auto down = session("create --timeout 8 --job " + job);
  EXPECT_EQ(down.status, 3);
  EXPECT_THAT(down.err, HasSubstr("n4"));
  (void)cluster_->on(4, "pkill -CONT -x slurmd");
  EXPECT_TRUE(wait_until(30s, [&] { return left().empty(); })) << left();
  free_all();
}

TEST_F(Sessions, node_that_dies_during_a_session_is_named_and_the_others_are_cleaned) {
  const auto job = allocate();
  const auto id = id_of(session("create --job " + job));
  ASSERT_EQ(session("daemon " + id + " -- sleep 9899").status, 0);
  ASSERT_EQ(cluster_->sh("kill -9 " + cluster_->init_of(4)).status, 0);
  const auto begin = std::chrono::steady_clock::now();
  const auto ran = session("daemon " + id + " --wait -- hostname");
  EXPECT_EQ(ran.status, 3);
  // Of n4 there is no answer in time, or srun has noticed first, has said so, and has ended all.
  EXPECT_THAT(ran.err, AnyOf(AllOf(StartsWith("fs-launch: n4: "), Not(HasSubstr("n1"))),
                             testing::ContainsRegex("the agent has ended: .*srun: error: ")));

  (void)session("destroy " + id);  // which may have ended with its srun
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 110s);
  EXPECT_TRUE(wait_until(30s, [&] { return left().empty(); })) << left();
}

TEST(Session, is_refused_in_time_when_slurm_does_not_answer) {
  HEDDLE_STAGED(fs_launch, "fs-launch");
  TestDir dir;
  write_text_file(dir / "squeue", "#!/bin/sh\nexec sleep 1000\n", 0755);
  const auto made = run({fs_launch, "session", "create", "--job", "7", "--timeout", "1"},
                        {.env = {"PATH=" + dir.path() + ":" + std::getenv("PATH"),
                                 "XDG_CACHE_HOME=" + dir.path(), "XDG_RUNTIME_DIR=" + dir.path()}});
  EXPECT_EQ(made.status, 3);
  EXPECT_THAT(made.err, HasSubstr("squeue: stopped: it takes longer than "));
}

}  // namespace
}  // namespace heddle::test
