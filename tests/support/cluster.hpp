// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "tests/support/run.hpp"

namespace heddle::test {

/// Nodes n1, n2, ... and a login node in namespaces, with Slurm, an ssh of their own for mpirun and
/// hydra, and a private /tmp, /dev/shm and network each (tests/support/cluster). Their end is the
/// destructor's or the test program's, however that comes about.
class Cluster {
 public:
  /// Why none can be made here: "" if it can.
  static std::string obstacle();

  /// An MPI program in C: each rank prints its host, its number and their count. The ranks send no
  /// messages: MPICH 4.0 on UCX 1.13 hangs in MPI_Finalize, in half of all runs, while a TCP
  /// connection to another node is being made.
  static const char* const kRanksSayWhere;

  /// Its files are in `directory`/c, and all nodes see `directory`, which exists. `epilog`: Slurm's
  /// Epilog program; `plugstack`: a line of plugstack.conf; `scheduler`: Slurm's, of which backfill
  /// alone starts het jobs. Throws heddle::Error unless all nodes are idle within 40 seconds.
  explicit Cluster(std::string directory, int nodes = 4, const std::string& epilog = "",
                   const std::string& plugstack = "", const std::string& scheduler = "");

  /// `sh -c script` in `directory` on the login node, as root. HOME and XDG_CACHE_HOME are below
  /// `directory`; Open MPI may run as root.
  RunResult sh(const std::string& script, RunOptions options = {}) const;
  /// The same on node `node`: 1 is n1.
  RunResult on(int node, const std::string& script, RunOptions options = {}) const;

  /// mpirun's `--mca plm_rsh_agent` and hydra's -launcher-exec: `rsh NODE COMMAND...`.
  std::string rsh() const { return directory_ + "/c/rsh"; }
  /// Starts a real sshd on each node, for root by a key of this cluster's. Result: as rsh(), by
  /// real ssh. Empty: no openssh-server.
  std::string start_sshd() const;
  /// The pid of a node's init as the login node sees it; its end is the node's end.
  std::string init_of(int node) const;

 private:
  RunResult shell(const std::vector<std::string>& prefix, const std::string& script,
                  RunOptions options) const;

  std::string directory_;
  int nodes_;
  std::optional<Child> process_;
  int init_ = -1;  ///< the login node's pid 1
};

}  // namespace heddle::test
