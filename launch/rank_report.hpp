// SPDX-License-Identifier: MIT
#pragma once

// What ranks say to fs-launch --report: each appends a line to a file of its node in a directory
// that all nodes see.

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/temp_dir.hpp"
#include "launch/rank_watch.hpp"

namespace heddle::launch {

struct RankReport {
  std::string node;
  std::uint64_t process = 0;  ///< on the node
  std::uint64_t rank = 0;
  std::uint64_t size = 0;  ///< of the job; 0: unknown
  bool guided = false;
  bool starts_guided = false;  ///< it is not guided, but the mapped programs that it starts are
  bool from_mount = false;     ///< its libraries are in a mount that another rank started
  std::uint64_t libraries = 0;
  std::uint64_t probes = 0;        ///< failed look-ups of an unguided start
  std::uint64_t microseconds = 0;  ///< from the agent's start to APP's
  std::uint64_t cpu = 0;           ///< microseconds that the process has computed until then
  std::string why;                 ///< why it is not guided, or not by a mount
};

/// Where ranks write: `launch-NODE-XXXXXX` in `parent`, which the destructor removes. After a
/// kill -9 the next launch from this node does, since a lock in it is free then; not those of
/// other nodes, whose locks a network file system may not show.
class ReportDirectory {
 public:
  static Result<ReportDirectory> make(const std::string& parent);
  const std::string& path() const { return directory_.path(); }

 private:
  ReportDirectory(TempDir directory, Fd lock)
      : directory_(std::move(directory)), lock_(std::move(lock)) {}
  TempDir directory_;
  Fd lock_;
};

/// Failure: the directory is not seen here, or is full; the rank goes on.
Result<void> write_report(const std::string& directory, const RankReport& report);
/// Where the daemon of a node's mount writes.
std::string daemon_log(const std::string& directory, const std::string& node);
/// What these daemons have written, a line for each message and node.
std::string read_daemon_logs(const std::string& directory);

/// Of each process of a node the last one: within another launcher ranks may have its numbers.
/// Lines that cannot be read are left out.
std::vector<RankReport> read_reports(const std::string& directory);

/// The table of fs-launch --report. `job`: ranks that it had at least, and its nodes. `status`: the
/// launcher's.
std::string to_table(const std::vector<RankReport>& reports, double seconds,
                     const SeenJob& job = {}, int status = 0);

}  // namespace heddle::launch
