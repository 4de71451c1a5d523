// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace heddle::trace {

/// Lines of a file in constant memory. A trace is read front to back through one small buffer: it
/// stays in the CPU's cache, and a file cut while we read gives an error, not SIGBUS as a mapping
/// does.
class LineSource {
 public:
  /// No event is longer: three paths of PATH_MAX, each byte escaped to four, and room.
  static constexpr std::size_t kLongestLine = 256 * 1024;

  LineSource(Fd fd, std::string name);

  enum class State { line, end, failed };
  /// The next line without its newline, valid until the next call. On `failed` see error().
  State next(std::string_view& line);

  /// Number of the line next() gave last, from 1.
  std::uint64_t number() const noexcept { return number_; }
  /// Whether the line given last ended with a newline.
  bool terminated() const noexcept { return terminated_; }
  const std::string& name() const noexcept { return name_; }
  /// An error at the line given last: `a.txt:17: what: reason`.
  Error at(std::string_view what, std::string_view reason = {}, std::string_view hint = {}) const;
  const Error& error() const noexcept { return error_; }

 private:
  bool fill();
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

}  // namespace heddle::trace
