// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::trace {

/// Decimal digits (or `base`'s) without a sign, so that each number has one spelling only.
template <class T>
bool parse_number(std::string_view text, T& value, int base = 10) {
  if (text.empty() || text[0] == '-' || text[0] == '+') return false;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return ec == std::errc() && end == text.data() + text.size();
}

/// The operations, by their names in a trace and in the order of its counts.
#define HEDDLE_TRACE_OPS                                                                           \
  lookup, open, create, read, write, readlink, opendir, stat, access, exec, rename, unlink, mkdir, \
      close, link, symlink, rmdir, mknod, truncate, chmod, chown, utimens, setxattr

enum class Op : std::uint8_t { HEDDLE_TRACE_OPS };
inline constexpr std::size_t kOpCount = 23;

std::string_view op_name(Op op);
std::optional<Op> op_from_name(std::string_view name);
/// All names: "lookup, open, ...".
std::string op_names();

/// "OK" for 0, else the errno's name ("ENOENT"), else "E<number>".
std::string_view result_name(int error, std::array<char, 16>& scratch);
/// The reverse; nullopt for any other text.
std::optional<int> result_from_name(std::string_view name);

/// One event. Its views, of unescaped bytes, are valid during the call that it is passed to.
struct Event {
  std::uint64_t ns = 0;  ///< since the run's start
  std::int32_t pid = 0;  ///< 0: unknown
  std::int32_t tid = 0;
  Op op = Op::lookup;
  int error = 0;  ///< 0 or an errno
  std::string_view path{};
  std::string_view exe{};       ///< executable of pid; empty: unknown
  std::string_view resolved{};  ///< path after symlinks, if different
  std::string_view target{};    ///< of readlink and symlink; the new name of rename and link
  std::int64_t flags = -1;      ///< of open(2); -1: unknown, as below
  std::int64_t mode = -1;       ///< permission bits
  std::int64_t handle = -1;     ///< numbers an open and its read, write and close
  std::int64_t count = -1;      ///< reads or writes in this event
  std::int64_t bytes = -1;      ///< read or written by them
  std::int64_t offset = -1;     ///< of a single read or write

  bool operator==(const Event&) const = default;
};

/// `O_RDWR|O_APPEND`; bits without a name as one hex number. And back.
std::string open_flags_text(std::int64_t flags);
std::optional<std::int64_t> open_flags_from_text(std::string_view text);

/// The optional fields of an event, in the order of both forms: a text, or a number (negative:
/// unknown).
struct Detail {
  enum class As : std::uint8_t { text, decimal, octal, flags };
  std::string_view key;
  As as;
  std::string_view Event::*text;
  std::int64_t Event::*number;
};
inline constexpr Detail kDetails[] = {{"exe", Detail::As::text, &Event::exe, nullptr},
                                      {"flags", Detail::As::flags, nullptr, &Event::flags},
                                      {"mode", Detail::As::octal, nullptr, &Event::mode},
                                      {"handle", Detail::As::decimal, nullptr, &Event::handle},
                                      {"count", Detail::As::decimal, nullptr, &Event::count},
                                      {"bytes", Detail::As::decimal, nullptr, &Event::bytes},
                                      {"offset", Detail::As::decimal, nullptr, &Event::offset},
                                      {"resolved", Detail::As::text, &Event::resolved, nullptr},
                                      {"target", Detail::As::text, &Event::target, nullptr}};

inline constexpr int kTraceVersion = 1;

enum class Format { heddle_text, heddle_json, compat_lib };
std::string_view format_name(Format format);

/// Precedes a run's events. Unknown fields are empty, 0 or nullopt.
struct RunHeader {
  Format format = Format::heddle_text;  ///< set by the reader
  std::string run_id;
  std::vector<std::string> argv;
  std::string cwd;
  std::string host;
  std::uint64_t start_unix_ns = 0;
  std::optional<int> rank;
  std::string map_id;
  std::string method;               ///< how it was recorded: "namespace", "fusermount3", "proot"
  std::vector<std::string> scopes;  ///< `--scope` directories; empty: everything
  std::vector<std::string> notes;   ///< native directories, limits: one sentence each

  bool operator==(const RunHeader&) const = default;
};

/// Follows a run's events.
struct RunFooter {
  bool complete = false;
  std::optional<int> exit_status;  ///< 128+n for a signal
  std::uint64_t end_ns = 0;        ///< since start
  std::uint64_t events = 0;
  std::uint64_t failed = 0;  ///< events whose result is not OK
  std::array<std::uint64_t, kOpCount> by_op{};

  bool operator==(const RunFooter&) const = default;
};

/// Visits the fields of a header in the order of both forms: visit(text key, JSON key, field).
template <class Header, class Visit>
void each_field(Header& header, Visit visit) {
  visit("run", "run", header.run_id);
  visit("argv", "argv", header.argv);
  visit("cwd", "cwd", header.cwd);
  visit("host", "host", header.host);
  visit("start", "start_unix_ns", header.start_unix_ns);
  visit("rank", "rank", header.rank);
  visit("map", "map", header.map_id);
  visit("method", "method", header.method);
  visit("scope", "scopes", header.scopes);
  visit("note", "notes", header.notes);
}

/// Visits the counts of a footer, in both forms: visit(key, number).
template <class Footer, class Visit>
void each_count(Footer& footer, Visit visit) {
  visit("ns", footer.end_ns);
  visit("events", footer.events);
  visit("failed", footer.failed);
  for (std::size_t i = 0; i < kOpCount; ++i) visit(op_name(static_cast<Op>(i)), footer.by_op[i]);
}

/// `2026-11-21T10:17:03.000000000Z`.
std::string utc_time_text(std::uint64_t unix_ns);

}  // namespace heddle::trace
