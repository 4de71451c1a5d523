// SPDX-License-Identifier: MIT
#pragma once

// Sessions and holds on four nodes.

#include <optional>
#include <string>

#include "tests/support/cluster.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

class Sessions : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto obstacle = Cluster::obstacle(); !obstacle.empty()) HEDDLE_SKIP(obstacle);
    fs_launch_ = staged_program("fs-launch");
    if (fs_launch_.empty()) HEDDLE_SKIP("fs-launch is not installed in $HEDDLE_STAGE");
    cluster_.emplace(dir_.path());
  }
  /// What sessions leave on the nodes and on the login node.
  std::string left() const {
    std::string out;
    for (int node = 1; node <= 4; ++node) {
      const auto found = cluster_->on(node,
                                      "ls -d /tmp/heddle-job-* 2>/dev/null; pgrep -a fs-launch; "
                                      "pgrep -a heddle-hold; pgrep -af '^[/a-z]*sleep 98'");
      if (!found.out.empty()) out += "n" + std::to_string(node) + ": " + found.out;
    }
    return out + cluster_->sh("pgrep -a heddle-session; ls cache/heddle/sessions 2>/dev/null").out;
  }
  void TearDown() override {
    if (cluster_) {
      EXPECT_TRUE(wait_until(20s, [&] { return left().empty(); })) << left();
    }
    cluster_.reset();
  }

  RunResult session(const std::string& arguments) const {
    return cluster_->sh(fs_launch_ + " session " + arguments);
  }
  std::string id_of(const RunResult& made) const {
    EXPECT_EQ(made.status, 0) << made.err;
    return made.out.substr(0, made.out.find('\n'));
  }
  /// A job of four nodes without a step.
  std::string allocate() const {
    const auto got = cluster_->sh("salloc -Q -N4 --no-shell && squeue -h -o %A | tail -1");
    EXPECT_EQ(got.status, 0) << got.err;
    return got.out.substr(0, got.out.find('\n'));
  }
  void free_all() const { (void)cluster_->sh("scancel -u root"); }
  /// A running step of `ranks`, two a node: its J.S when all run.
  std::string step_of(const std::string& program, const std::string& options = "-N4 -n8") const {
    // A step that has ended may still be listed for a moment.
    const auto listed = [&] {
      return lines_of(cluster_->sh("squeue -h -s -o %i | grep -F .0").out);
    };
    const auto before = listed();
    (void)cluster_->sh("srun -Q " + options + " " + program + " >step.out 2>&1 &");
    std::string step;
    EXPECT_TRUE(wait_until(20s, [&] {
      for (const auto& name : listed())
        if (std::ranges::count(before, name) == 0) step = name;
      return !step.empty();
    }));
    return step;
  }

  /// Those installed that start four ranks on n1 and n3 by remote shells.
  Strings launchers_by_rsh() const {
    Strings out = {"mpirun.openmpi --mca plm_rsh_agent " + cluster_->rsh() + " -host n1:2,n3:2 ",
                   "mpiexec.hydra -launcher ssh -launcher-exec " + cluster_->rsh() +
                       " -hosts n1:2,n3:2 -n 4 "};
    std::erase_if(out, [](const std::string& each) {
      return run({"sh", "-c", "command -v " + each.substr(0, each.find(' '))}).status != 0;
    });
    return out;
  }
  int sleeps(const std::string& seconds) const {
    int out = 0;
    for (const int node : {1, 3})
      out += std::atoi(cluster_->on(node, "pgrep -cfx 'sleep " + seconds + "'").out.c_str());
    return out;
  }
  /// One start in ten hangs in this cluster, also without heddle.
  void start_sleeps(const std::string& launcher, const std::string& seconds) const {
    for (int attempt = 0; attempt < 4 && sleeps(seconds) != 4; ++attempt) {
      const auto pid = "launcher." + seconds;
      (void)cluster_->sh("kill $(cat " + pid + "); " + launcher + "sleep " + seconds +
                         " >/dev/null 2>&1 & echo $! >" + pid);
      (void)wait_until(5s, [&] { return sleeps(seconds) == 4; });
    }
  }

  /// `fs-launch --hold` with these words, launcher first, and ./app, whose pid is in the file
  /// `front` and whose end in `status`; until all ranks are held as `h`. What they are, by --list.
  Strings hold(const std::string& options, const std::string& launcher) const {
    const auto list = [&] { return cluster_->sh(fs_launch_ + " release --list h"); };
    for (int attempt = 0; attempt < 4; ++attempt) {
      (void)cluster_->sh("rm -f out err status front; (" + fs_launch_ + " --hold-id h " + options +
                         " " + launcher +
                         " ./app >out 2>err & echo $! >front; wait $!; echo $? >status) "
                         ">/dev/null 2>&1 &");
      if (wait_until(10s, [&] { return list().status == 0; })) return lines_of(list().out);
      (void)cluster_->sh("kill -9 $(cat front); scancel -u root; pkill -9 -f '^mpi'");
      (void)wait_until(20s, [&] { return apps().empty(); });
      (void)cluster_->sh("rm -rf cache/heddle/hold/h");
    }
    ADD_FAILURE() << launcher << cluster_->sh("cat err").out;
    return {};
  }
  /// The ranks and keepers that there are.
  std::string apps() const {
    std::string out;
    for (int node = 1; node <= 4; ++node)
      out += cluster_
                 ->on(node, "pgrep -a -x app; pgrep -a heddle-hold; pgrep -af 'fs-launch --[r]ank'")
                 .out;
    return out;
  }

  TestDir dir_;
  std::string fs_launch_;
  std::optional<Cluster> cluster_;
};

}  // namespace heddle::test
