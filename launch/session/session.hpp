// SPDX-License-Identifier: MIT
#pragma once

// The commands of fs-launch session as functions (design: messages.hpp).

#include <string>
#include <vector>

#include "base/fd.hpp"
#include "launch/session/messages.hpp"
#include "ship/job_directory.hpp"

namespace heddle::launch {

struct CreateOptions {
  std::string step;                ///< J.S: its nodes and ranks only
  std::string ranks;               ///< a Rank::job: its ranks only; empty: those of the job
  std::string job;                 ///< empty: $SLURM_JOB_ID
  std::vector<std::string> nodes;  ///< with `rsh`; else of the job's nodes these, empty: all
  std::string pmix;                ///< a table of ranks, which `ranks` and `nodes` are taken from
  std::string rsh;                 ///< `COMMAND NODE agent...`; empty: srun
  bool local = false;              ///< this machine alone: neither srun nor a remote shell
  std::string to = ship::kNodeDirectory;
  std::string via;  ///< sbcast, shared, or a command with {src} and {dst}
  int tool = -1;    ///< a pid, with which the session ends
  int seconds = 30;
};

class Session {
 public:
  /// Starts the relay and the agents. Failure names the nodes that do not answer; all others are
  /// cleaned up.
  static Result<Session> create(const CreateOptions& options);
  /// One that create() made on this node.
  static Result<Session> find(const std::string& id);

  const std::string& id() const { return settings_.id; }
  const std::string& directory() const { return directory_; }
  const SessionSettings& settings() const { return settings_; }

  /// Held by a command that changes the session's manifest. Waits for the one that has it.
  Result<Fd> lock() const;

  /// One answer of each node, sorted by node. Failure: a node's, which it names.
  Result<std::vector<Answer>> ask(const Request& request) const;

  struct Shipped {
    std::uint64_t bytes = 0;  ///< to each node
    std::size_t names = 0;
  };
  /// Sends what the manifest has and the nodes have not. Failure: no node has any of it.
  Result<Shipped> ship() const;

 private:
  Session(SessionSettings settings, std::string directory)
      : settings_(std::move(settings)), directory_(std::move(directory)) {}
  SessionSettings settings_;
  std::string directory_;
};

}  // namespace heddle::launch
