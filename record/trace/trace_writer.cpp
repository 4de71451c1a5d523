// SPDX-License-Identifier: MIT
#include "record/trace/trace_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <atomic>

#include "base/output_file.hpp"
#include "record/trace/trace_text.hpp"

namespace heddle::trace {
namespace {

/// Opens `path` so that it holds `header` and nothing else. A regular file is made aside and
/// renamed: somebody who reads the old one keeps it whole, and two recorders given one name do not
/// mix their lines.
Result<Fd> start_file(const std::string& path, const std::string& header) {
  if (const auto target = replaceable_path(path)) {
    static std::atomic<unsigned> counter{0};
    const std::string aside = fmt::format("{}.{}.{}.tmp", *target, ::getpid(), counter++);
    if (auto fd = open_file(aside, O_WRONLY | O_CREAT | O_EXCL)) {
      auto done = write_all(fd->get(), header, path);
      if (done && ::rename(aside.c_str(), target->c_str()) != 0)
        done = fail_errno(path, "cannot put the trace in place");
      if (done) return fd;
      ::unlink(aside.c_str());
      return fail(std::move(done.error()));
    }
    // The folder may be closed to us and the file not: then in place.
  }
  auto fd = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (!fd) return fd;
  if (auto done = write_all(fd->get(), header, path); !done) return fail(std::move(done.error()));
  return fd;
}

}  // namespace

TraceWriter::TraceWriter(std::string path, Fd fd, Form form)
    : path_(std::move(path)), fd_(std::move(fd)), form_(form) {
  buffer_.reserve(kFlushBytes + 4096);
}

Result<TraceWriter> TraceWriter::create(const std::string& path, const RunHeader& header, Form form,
                                        Fd opened) {
  const std::string lines = form == Form::text ? header_text(header) : header_json(header);
  if (!opened) {
    auto fd = open_unreplaceable(path);
    if (!fd) return fail(std::move(fd.error()));
    opened = std::move(*fd);
  }
  const bool in_place = opened.valid();
  if (in_place) {
    if (auto done = write_all(opened.get(), lines, path); !done)
      return fail(std::move(done.error()));
  } else {
    auto fd = start_file(path, lines);
    if (!fd) return fail(std::move(fd.error()));
    opened = std::move(*fd);
  }
  TraceWriter writer(path, std::move(opened), form);
  writer.in_place_ = in_place;
  writer.written_ = lines.size();
  return writer;
}

TraceWriter::~TraceWriter() {
  if (fd_) flush();
}

bool TraceWriter::append(const Event& event) {
  if (failure_) return false;
  if (form_ == Form::text) {
    append_event_text(buffer_, event);
  } else {
    append_event_json(buffer_, event);
  }
  ++footer_.events;
  footer_.failed += event.error != 0;
  ++footer_.by_op[static_cast<std::size_t>(event.op)];
  return buffer_.size() < kFlushBytes || flush();
}

bool TraceWriter::flush() {
  if (failure_) return false;
  if (buffer_.empty()) return true;
  if (auto done = write_all(fd_.get(), buffer_, path_); !done) {
    failure_ = std::make_unique<Error>(std::move(done.error()));
    // What fits of the buffer stays, up to its last whole line: the reader takes a line that is cut
    // for damage. Events of the lines dropped here are not in the footer's count either, because
    // no footer follows.
    const off_t at = ::lseek(fd_.get(), 0, SEEK_CUR);
    const auto in_file = static_cast<std::uint64_t>(at < 0 ? 0 : at) - written_;
    if (!in_place_ && at > 0 && in_file <= buffer_.size()) {
      const std::size_t end = buffer_.rfind('\n', in_file == 0 ? 0 : in_file - 1);
      const std::uint64_t keep = in_file == 0 || end == std::string::npos ? 0 : end + 1;
      [[maybe_unused]] const int ignored =
          ::ftruncate(fd_.get(), static_cast<off_t>(written_ + keep));
    }
    buffer_.clear();
    return false;
  }
  written_ += buffer_.size();
  buffer_.clear();
  return true;
}

Result<void> TraceWriter::finish(bool complete, std::optional<int> exit_status,
                                 std::uint64_t end_ns) {
  footer_.complete = complete;
  footer_.exit_status = exit_status;
  footer_.end_ns = end_ns;
  if (!failure_) {
    buffer_ += form_ == Form::text ? footer_text(footer_) : footer_json(footer_);
    flush();
  }
  // close(2) is where NFS tells of a full disk.
  const int fd = fd_.release();
  if (fd >= 0 && ::close(fd) != 0 && !failure_)
    failure_ = std::make_unique<Error>(Error::from_errno(path_, "cannot write"));
  if (failure_) return fail(Error(*failure_));
  return {};
}

}  // namespace heddle::trace
