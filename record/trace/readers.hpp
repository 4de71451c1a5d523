// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "record/trace/trace_reader.hpp"

namespace heddle::trace {

/// Reads lines in constant memory. A small buffer stays in the CPU's cache, and a file that is
/// truncated meanwhile causes no SIGBUS as a mapping would.
class LineSource {
 public:
  /// More than three paths of PATH_MAX with each byte escaped to four.
  static constexpr std::size_t kLongestLine = 256 * 1024;

  LineSource(Fd fd, std::string name)
      : fd_(std::move(fd)), name_(std::move(name)), buffer_(2 * kLongestLine) {}

  enum class State { line, end, failed };
  /// The next line without its newline, valid until the next call. On `failed` see error().
  State next(std::string_view& line) {
    std::size_t searched = 0;
    for (;;) {
      const char* start = buffer_.data() + begin_;
      const std::size_t have = end_ - begin_;
      if (have > searched) {
        if (const void* newline = std::memchr(start + searched, '\n', have - searched)) {
          line = {start, static_cast<std::size_t>(static_cast<const char*>(newline) - start)};
          begin_ += line.size() + 1;
          ++number_;
          return State::line;
        }
      }
      searched = have;
      if (have > kLongestLine) {
        ++number_;
        error_ = at("line too long", "no event has this many bytes: not a trace, or damaged");
        return State::failed;
      }
      if (at_end_) {
        if (have == 0) return State::end;
        line = {start, have};
        begin_ = end_;
        terminated_ = false;
        ++number_;
        return State::line;
      }
      if (!fill()) return State::failed;
    }
  }

  /// Number of the last line, from 1.
  std::uint64_t number() const noexcept { return number_; }
  /// Whether the last line ended with a newline.
  bool terminated() const noexcept { return terminated_; }
  const std::string& name() const noexcept { return name_; }
  /// An error at the last line: `a.txt:17: what: reason`.
  Error at(std::string_view what, std::string_view reason = {}, std::string_view hint = {}) const {
    return Error(fmt::format("{}:{}", name_, number_), what, reason, hint);
  }
  const Error& error() const noexcept { return error_; }

 private:
  bool fill() {
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    while (end_ < buffer_.size()) {
      const ssize_t n = ::read(fd_.get(), buffer_.data() + end_, buffer_.size() - end_);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        error_ = Error::from_errno(name_, "cannot read");
        return false;
      }
      if (n == 0) {
        at_end_ = true;
        break;
      }
      end_ += static_cast<std::size_t>(n);
    }
    return true;
  }
  Fd fd_;
  std::string name_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool at_end_ = false;
  bool terminated_ = true;
  std::uint64_t number_ = 0;
  Error error_{"", ""};
};

/// Reads traces of compat-lib; `first` is the first line, already taken from `lines`.
Result<void> read_compat_lib(LineSource& lines, std::string_view first, TraceSink& sink);
/// Whether `line` starts as Go's log package starts one: `2024/11/21 18:34:47 logger.go:63: `.
bool looks_like_compat_lib(std::string_view line);

/// Passes events to a sink and counts them, to check the footer.
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
  /// Ends the run if the footer's counts are those of the events; else returns false.
  bool end(const RunFooter& footer) {
    if (footer.events != counts_.events || footer.failed != counts_.failed ||
        footer.by_op != counts_.by_op)
      return false;
    open_ = false;
    sink_.end_run(footer, Ending::footer);
    return true;
  }
  /// Ends the run with the counts of the events.
  void end_without_footer(Ending ending = Ending::no_footer, bool complete = false) {
    open_ = false;
    counts_.complete = complete;
    sink_.end_run(counts_, ending);
  }
  bool open() const noexcept { return open_; }

 private:
  TraceSink& sink_;
  RunFooter counts_;
  bool open_ = false;
  int runs_ = 0;
};

}  // namespace heddle::trace
