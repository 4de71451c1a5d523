// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "launch/session/messages.hpp"

namespace heddle::launch {

/// What an agent is started with; all are words without special characters but `to` and `step`.
struct AgentOptions {
  std::string id;    ///< the session's
  std::string to;    ///< directory on the node's own disk
  std::string job;   ///< names the job's directory there
  std::string step;  ///< whose ranks are meant: J.S, J, a Rank::job or empty
  std::string node;  ///< empty: as Slurm or the host itself says
};

/// The agent of a session on this node, until the session ends (messages.hpp). Result: its exit
/// status.
int run_agent(const AgentOptions& options);

/// Removes what agents that were killed have left below `to` on this node.
void sweep_node(const std::string& to);

/// A request as agents read it.
std::string to_frame(const std::string& request);

/// Collects answers from the mixed lines of many agents. A line has at most 1000 bytes, since
/// slurmstepd splits longer ones (slurmstepd/io.c, MAX_MSG_LEN).
class AnswerReader {
 public:
  /// The next answer complete with these further bytes; lines of others are left out.
  std::vector<Answer> take(std::string_view bytes);

 private:
  std::string rest_;
  std::vector<std::pair<std::string, std::string>> parts_;  ///< by node
};

}  // namespace heddle::launch
