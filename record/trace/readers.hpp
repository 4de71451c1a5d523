// SPDX-License-Identifier: MIT
#pragma once

#include "record/trace/line_source.hpp"
#include "record/trace/trace_reader.hpp"

namespace heddle::trace {

// The formats' readers, chosen by read_trace(). Each gets the first line already taken from
// `lines`.
Result<void> read_heddle_text(LineSource& lines, std::string_view first, TraceSink& sink,
                              const ReadOptions& options);
Result<void> read_heddle_json(LineSource& lines, std::string_view first, TraceSink& sink,
                              const ReadOptions& options);
Result<void> read_compat_lib(LineSource& lines, std::string_view first, TraceSink& sink,
                             const ReadOptions& options);
/// Whether `line` starts as Go's log package starts one: `2024/11/21 18:34:47 logger.go:63: `.
bool looks_like_compat_lib(std::string_view line);

/// Counts events beside the sink, to hold the footer against them.
class CountedSink {
 public:
  explicit CountedSink(TraceSink& sink) : sink_(sink) {}
  void begin(const RunHeader& header) {
    counts_ = {};
    open_ = true;
    sink_.begin_run(header, ++runs_);
  }
  void event(const Event& e) {
    ++counts_.events;
    counts_.failed += e.error != 0;
    ++counts_.by_op[static_cast<std::size_t>(e.op)];
    counts_.end_ns = e.ns > counts_.end_ns ? e.ns : counts_.end_ns;
    sink_.event(e);
  }
  /// Whether the footer's counts are those of the events seen; ends the run if so.
  bool end(const RunFooter& footer) {
    if (footer.events != counts_.events || footer.failed != counts_.failed ||
        footer.by_op != counts_.by_op)
      return false;
    open_ = false;
    sink_.end_run(footer, Ending::footer);
    return true;
  }
  /// Ends the run with the counts seen here.
  void end_without_footer(Ending ending = Ending::no_footer, bool complete = false) {
    open_ = false;
    counts_.complete = complete;
    sink_.end_run(counts_, ending);
  }
  bool open() const noexcept { return open_; }
  const RunFooter& counts() const noexcept { return counts_; }

 private:
  TraceSink& sink_;
  RunFooter counts_;
  bool open_ = false;
  int runs_ = 0;
};

}  // namespace heddle::trace
