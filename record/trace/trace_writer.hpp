// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>

#include "base/fd.hpp"
#include "record/trace/event.hpp"

namespace heddle::trace {

enum class Form { text, json_lines };

/// Writes one run to one file, in the format of docs/formats/trace.md. The file is readable at any
/// time, because each write(2) ends at a line's end.
///
/// An existing file is replaced (header written to a new file, renamed), never appended to.
/// Devices, pipes, descriptors' names (/dev/stdout) and files in read-only directories are written
/// in place. One thread at a time. append() makes a system call every kFlushBytes.
class TraceWriter {
 public:
  static constexpr std::size_t kFlushBytes = 64 * 1024;

  /// `opened`: the result of open_unreplaceable() for `path`, if already known.
  static Result<TraceWriter> create(const std::string& path, const RunHeader& header, Form form,
                                    Fd opened = Fd());
  TraceWriter(TraceWriter&&) noexcept = default;
  TraceWriter& operator=(TraceWriter&&) = delete;
  /// Without finish() the trace is flushed and has no footer.
  ~TraceWriter();

  /// Copies the event into the buffer. After a write fails (disk full), events are dropped, the
  /// file ends at the last whole line and finish() returns the error.
  void append(const Event& event);
  /// Writes the buffer to the file.
  void flush();
  /// Writes the footer with the counts and closes the file. Failure: events were lost.
  Result<void> finish(bool complete, std::optional<int> exit_status, std::uint64_t end_ns);

  /// Counts of the events so far.
  const RunFooter& counts() const noexcept { return footer_; }

 private:
  TraceWriter(std::string path, Fd fd, Form form);
  std::string path_;
  Fd fd_;
  Form form_;
  bool in_place_ = false;  ///< the file cannot be truncated
  std::string buffer_;
  std::uint64_t written_ = 0;  ///< bytes of whole lines in the file
  RunFooter footer_;
  std::unique_ptr<Error> failure_;  ///< the first
};

}  // namespace heddle::trace
