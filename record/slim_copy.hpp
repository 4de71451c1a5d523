// SPDX-License-Identifier: MIT
#pragma once

#include <set>
#include <string>

#include "record/trace/trace_reader.hpp"

namespace heddle {

/// What a run used of the files that were there: opened, executed or asked about, the links on the
/// way, the folders listed.
class UsedFiles final : public trace::TraceSink {
 public:
  void begin_run(const trace::RunHeader& header, int number) override;
  void event(const trace::Event& event) override;
  void end_run(const trace::RunFooter&, trace::Ending) override {}
  const std::set<std::string>& paths() const { return paths_; }

 private:
  std::set<std::string> paths_;
  std::set<std::string> created_;  ///< by the run itself
};

struct SlimResult {
  std::uint64_t files = 0, links = 0, bytes = 0;
  std::uint64_t all_files = 0;  ///< files and folders of the root's file system; 0: not known
};

/// Copies `used` below the folder `target` (made when missing; it must be empty), each at its own
/// path, with mode, owner as far as allowed, and times. What has gone since is left out, and so are
/// devices and sockets.
Result<SlimResult> copy_slim(const UsedFiles& used, const std::string& target);

}  // namespace heddle
