// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>

#include "record/trace/trace_reader.hpp"

namespace heddle {

/// What `fs-record --summary` tells of a run.
class Summary final : public trace::TraceSink {
 public:
  void begin_run(const trace::RunHeader& header, int number) override;
  void event(const trace::Event& event) override;
  void end_run(const trace::RunFooter& footer, trace::Ending ending) override;
  /// Several lines, each ended by a newline.
  std::string text() const;

 private:
  struct Process {
    std::string exe;
    std::uint64_t events = 0, opens = 0, misses = 0, libraries = 0;
    std::uint64_t first_library_ns = 0, last_library_ns = 0;
  };
  trace::RunFooter footer_;
  std::map<std::string, std::uint64_t> paths_, missing_folders_;
  std::map<std::int32_t, Process> processes_;
};

/// Whether `path` names a shared library: `x.so`, `x.so.1.2`.
bool is_library_name(std::string_view path);

}  // namespace heddle
