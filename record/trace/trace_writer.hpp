// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>

#include "base/fd.hpp"
#include "record/trace/event.hpp"

namespace heddle::trace {

enum class Form { text, json_lines };

/// Writes one run to one file, front to back, so that the file is readable at any moment. The
/// format is specified in docs/formats/trace.md.
///
/// A file that stood at `path` is replaced when the writer is made (new file aside, header written,
/// renamed), never appended to; devices, pipes, descriptors' names (/dev/stdout) and files in
/// directories where nothing can be made are written in place. Each write(2) ends at a line's end.
/// One thread at a time; append() makes a system call every kFlushBytes; of the text form it
/// allocates nothing on its usual way.
class TraceWriter {
 public:
  static constexpr std::size_t kFlushBytes = 64 * 1024;

  /// `opened`: what open_unreplaceable() gave for `path` before, if it gave a descriptor.
  static Result<TraceWriter> create(const std::string& path, const RunHeader& header, Form form,
                                    Fd opened = Fd());
  TraceWriter(TraceWriter&&) noexcept = default;
  TraceWriter& operator=(TraceWriter&&) = delete;
  /// Without finish(): flushes and leaves the trace without footer, that is, incomplete.
  ~TraceWriter();

  /// Copies the event into the buffer. False once the file cannot be written (disk full): the event
  /// is dropped, the file ends at the last whole line and failure() says why.
  bool append(const Event& event);
  /// Hands what is buffered to the kernel: call it when the queue runs dry, so that a reader sees
  /// it.
  bool flush();
  /// Footer with the counts, flush, close. Fails with failure() when anything was lost.
  Result<void> finish(bool complete, std::optional<int> exit_status, std::uint64_t end_ns);

  /// The first error; null while all is well.
  const Error* failure() const noexcept { return failure_.get(); }
  /// What has been appended so far, as the footer will say it.
  const RunFooter& counts() const noexcept { return footer_; }

 private:
  TraceWriter(std::string path, Fd fd, Form form);
  std::string path_;
  Fd fd_;
  Form form_;
  bool in_place_ = false;  ///< no file of our own: nothing can be taken back
  std::string buffer_;
  std::uint64_t written_ = 0;  ///< bytes of whole lines in the file
  RunFooter footer_;
  std::unique_ptr<Error> failure_;
};

}  // namespace heddle::trace
