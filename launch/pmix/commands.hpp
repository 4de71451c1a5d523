// SPDX-License-Identifier: MIT
#pragma once

// The commands of fs-launch pmix. Each returns its exit status, or throws an Error.

#include <string>
#include <vector>

namespace heddle::pmix {

struct QueryOptions {
  std::string server;      ///< as of server_uri()
  std::string name_space;  ///< empty: all
  int seconds = 10;
  bool json = false;
};
int run_query(const QueryOptions& options);

struct RunOptions {
  std::vector<std::string> set, prepend;  ///< NAME=VALUE
  std::string before, stopped;            ///< for sh
  std::string stop;                       ///< exec, init, app; empty: ranks are not stopped
  std::string events;                     ///< a file
  int seconds = 30;
  std::vector<std::string> command;
};
/// Ends this process as the launcher ended.
int run_launcher(const RunOptions& options);

struct LaunchOptions {
  int ranks = 1;
  std::string report_uri;
  std::vector<std::string> command;
};
int launch_here(const LaunchOptions& options);

}  // namespace heddle::pmix
