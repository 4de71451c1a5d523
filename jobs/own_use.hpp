// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "jobs/collector/record_format.hpp"

namespace heddle::jobs {

/// The record of the start of a program that the collector may not be in. `mode`: the first of
/// kJobVariable's. `path`: the program's.
std::string foreign_start(char mode, int pid, std::int64_t start, const StartBody& body,
                          const std::string& path, const std::vector<std::string>& command);

/// For a program of heddle's that becomes one of a collected job's by exec: what this process uses
/// until end() counts for none of the job's programs. No effect where nothing is collected. If a
/// record cannot be written, what ld.so does for the next program is left out, too.
class OwnUse {
 public:
  /// Changes this process's environment.
  OwnUse();
  /// Just before the exec of `path`. Empty: it is no program of the job.
  void end(const std::string& path, const std::vector<std::string>& command) const;

 private:
  std::int64_t start_ = 0;     ///< microseconds since the epoch; 0: nothing is collected
  std::int64_t previous_ = 0;  ///< of the job's program that this process was before; 0: none
  ProcessUsage used_before_{};
};

}  // namespace heddle::jobs
