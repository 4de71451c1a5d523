// SPDX-License-Identifier: MIT
#include "record/trace/trace_reader.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "record/trace/readers.hpp"

namespace heddle::trace {

Result<void> read_trace(const std::string& path, TraceSink& sink, const ReadOptions& options) {
  auto fd = path == "-" ? Result<Fd>(Fd(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)))
                        : open_file(path, O_RDONLY);
  if (!fd) return fail(std::move(fd.error()));
  if (!fd->valid()) return fail_errno("stdin", "cannot read");
  struct stat st {};
  if (::fstat(fd->get(), &st) == 0 && S_ISDIR(st.st_mode))
    return fail_errno(path, "cannot read", EISDIR);

  LineSource lines(std::move(*fd), path == "-" ? "stdin" : path);
  std::string_view first;
  switch (lines.next(first)) {
    case LineSource::State::failed:
      return fail(Error(lines.error()));
    case LineSource::State::end:
      return fail(lines.name() + ":1", "not a trace", "the file is empty");
    case LineSource::State::line:
      break;
  }
  if (first.starts_with("#heddle-trace\t")) return read_heddle_text(lines, first, sink, options);
  if (first.starts_with("{")) return read_heddle_json(lines, first, sink, options);
  if (looks_like_compat_lib(first)) return read_compat_lib(lines, first, sink, options);
  const bool binary = first.find('\0') != std::string_view::npos;
  return fail(lines.at("not a trace",
                       binary ? "binary data" : "starts neither as heddle's nor as compat-lib's"));
}

}  // namespace heddle::trace
