// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"
#include "record/trace/event.hpp"

namespace heddle::trace {

/// How a run's lines ended.
enum class Ending {
  footer,         ///< with a footer (which may itself say "incomplete")
  no_footer,      ///< at a line's end: the recorder was killed
  not_in_format,  ///< unknown, in compat-lib's older traces
};

/// Whether the trace has all of its run.
inline bool is_complete(const RunFooter& footer, Ending ending) {
  return ending != Ending::no_footer && (footer.complete || ending == Ending::not_in_format);
}

/// Receives the contents of a trace in the file's order: begin, events, end for each run.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  /// `number` counts the runs of a file, from 1.
  virtual void begin_run(const RunHeader& header, int number) = 0;
  virtual void event(const Event& event) = 0;
  /// Without a footer in the file, the counts are the reader's.
  virtual void end_run(const RunFooter& footer, Ending ending) = 0;
};

struct ReadOptions {
  /// Drop a last line that is cut instead of refusing the file.
  bool accept_cut_line = false;
  /// How the caller's user can have that; empty: not at all.
  std::string_view cut_line_hint = {};
};

/// Reads heddle's traces (text, JSON lines) and compat-lib's two variants, distinguished by their
/// first line; "-" is stdin. A file may hold several runs. Text lines before the first trace are
/// skipped, with a warning. Constant memory.
/// Failure, with file and line: anything else, such as an empty or damaged file, one cut within a
/// line, another format version, or a footer with wrong counts. The sink has then received a part.
Result<void> read_trace(const std::string& path, TraceSink& sink, const ReadOptions& options = {});

}  // namespace heddle::trace
