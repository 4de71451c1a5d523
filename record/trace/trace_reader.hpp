// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"
#include "record/trace/event.hpp"

namespace heddle::trace {

/// How a run's lines ended.
enum class Ending {
  footer,         ///< with a footer (which may itself say "incomplete")
  no_footer,      ///< at a line's end, without one: the recorder was killed
  not_in_format,  ///< compat-lib's older traces never say
};

/// Takes what read_trace() finds, in the file's order: begin, events, end for each run.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  /// A run starts. `number` counts from 1 in its file.
  virtual void begin_run(const RunHeader& header, int number) = 0;
  /// Views in `event` are valid during the call only.
  virtual void event(const Event& event) = 0;
  /// `footer` has counts in every case; without one they are the reader's own.
  virtual void end_run(const RunFooter& footer, Ending ending) = 0;
};

struct ReadOptions {
  /// Drop a last line that is cut instead of refusing the file.
  bool accept_cut_line = false;
};

/// Reads our traces (text, JSON lines) and compat-lib's two variants, told apart by their first
/// line; "-" is stdin. Several runs in one file come one after the other. Constant memory.
/// Fails, naming file and line, on anything else: empty, binary, foreign, damaged, cut within a
/// line, another format version, a footer whose counts do not fit. The sink has then seen a part.
Result<void> read_trace(const std::string& path, TraceSink& sink, const ReadOptions& options = {});

}  // namespace heddle::trace
