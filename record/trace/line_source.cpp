// SPDX-License-Identifier: MIT
#include "record/trace/line_source.hpp"

#include <fmt/format.h>
#include <string.h>

namespace heddle::trace {

LineSource::LineSource(Fd fd, std::string name)
    : fd_(std::move(fd)), name_(std::move(name)), buffer_(2 * kLongestLine) {}

Error LineSource::at(std::string_view what, std::string_view reason, std::string_view hint) const {
  return Error(fmt::format("{}:{}", name_, number_), what, reason, hint);
}

bool LineSource::fill() {
  if (begin_ > 0) {
    memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
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

LineSource::State LineSource::next(std::string_view& line) {
  std::size_t searched = 0;
  for (;;) {
    const char* start = buffer_.data() + begin_;
    const std::size_t have = end_ - begin_;
    if (have > searched) {
      if (const void* newline = memchr(start + searched, '\n', have - searched)) {
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

}  // namespace heddle::trace
