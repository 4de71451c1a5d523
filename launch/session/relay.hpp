// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launch/session/messages.hpp"

namespace heddle::launch {

/// How the agents are started: commands, each of which starts one or several of them.
struct RelayOptions {
  SessionSettings settings;
  std::string directory;  ///< the session's: removed at its end
  std::vector<std::vector<std::string>> commands;
  /// Commands that sweep these nodes, when agents were killed.
  std::function<std::vector<std::vector<std::string>>(const std::vector<std::string>&)> sweep;
  int seconds = 30;  ///< until all agents have answered
  int tool = -1;     ///< a pid: the session ends with this process
};

/// The socket of a session in RunDirectory.
std::string socket_name(const std::string& id);

/// The relay of a session, in a process of its own; returns at the session's end. `ready` gets an
/// answer once, when all agents have answered or one has failed.
int run_relay(const RelayOptions& options, int ready);

}  // namespace heddle::launch
