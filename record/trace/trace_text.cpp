// SPDX-License-Identifier: MIT
#include "record/trace/trace_text.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"

namespace heddle::trace {
namespace {

/// Printable ASCII without what either form must escape: nearly every path.
bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c - 0x20) < 0x5F && c != '\\' && c != '"';
  });
}

void append_escaped(std::string& out, std::string_view text) {
  if (is_plain(text)) {
    out += text;
  } else {
    out += escape_for_terminal(text);
  }
}

void append_number(std::string& out, std::uint64_t value) {
  char digits[20];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void append_detail(std::string& out, std::string_view key, std::string_view value) {
  if (value.empty()) return;
  out += '\t';
  out += key;
  append_escaped(out, value);
}

void append_detail(std::string& out, std::string_view key, std::int64_t value) {
  if (value < 0) return;
  out += '\t';
  out += key;
  append_number(out, static_cast<std::uint64_t>(value));
}

void append_json_string(std::string& out, std::string_view text) {
  if (is_plain(text)) {
    out += '"';
    out += text;
    out += '"';
  } else {
    out += nlohmann::json(to_json_text(text)).dump();
  }
}

/// Appends `,"key":"text"`, and notes in `escaped` the keys whose bytes JSON cannot carry.
void append_json_field(std::string& out, std::string& escaped, std::string_view key,
                       std::string_view text) {
  out += ",\"";
  out += key;
  out += "\":";
  append_json_string(out, text);
  if (is_plain(text) || is_valid_utf8(text)) return;
  escaped += escaped.empty() ? "\"" : ",\"";
  escaped += key;
  escaped += '"';
}

void append_json_field(std::string& out, std::string_view key, std::int64_t value) {
  if (value < 0) return;
  out += ",\"";
  out += key;
  out += "\":";
  append_number(out, static_cast<std::uint64_t>(value));
}

}  // namespace

std::string_view format_name(Format format) {
  switch (format) {
    case Format::heddle_text:
      return "heddle";
    case Format::heddle_json:
      return "heddle JSON lines";
    case Format::compat_lib:
      return "compat-lib";
  }
  return "";
}

std::string utc_time_text(std::uint64_t unix_ns) {
  const auto seconds = static_cast<time_t>(unix_ns / 1'000'000'000);
  tm utc{};
  gmtime_r(&seconds, &utc);
  char date[32];
  const std::size_t n = strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:09}Z", std::string_view(date, n), unix_ns % 1'000'000'000);
}

void append_event_text(std::string& out, const Event& e) {
  std::array<char, 16> scratch;
  append_number(out, e.ns);
  out += '\t';
  append_number(out, static_cast<std::uint64_t>(e.pid));
  out += '\t';
  append_number(out, static_cast<std::uint64_t>(e.tid));
  out += '\t';
  out += op_name(e.op);
  out += '\t';
  out += result_name(e.error, scratch);
  out += '\t';
  append_escaped(out, e.path);
  append_detail(out, "exe=", e.exe);
  if (e.flags >= 0) append_detail(out, "flags=", open_flags_text(e.flags));
  if (e.mode >= 0) append_detail(out, "mode=", fmt::format("{:04o}", e.mode));
  append_detail(out, "handle=", e.handle);
  append_detail(out, "count=", e.count);
  append_detail(out, "bytes=", e.bytes);
  append_detail(out, "offset=", e.offset);
  append_detail(out, "resolved=", e.resolved);
  append_detail(out, "target=", e.target);
  out += '\n';
}

void append_event_json(std::string& out, const Event& e) {
  std::array<char, 16> scratch;
  std::string escaped;
  out += "{\"ns\":";
  append_number(out, e.ns);
  append_json_field(out, "pid", e.pid);
  append_json_field(out, "tid", e.tid);
  append_json_field(out, escaped, "op", op_name(e.op));
  append_json_field(out, escaped, "result", result_name(e.error, scratch));
  append_json_field(out, escaped, "path", e.path);
  if (!e.exe.empty()) append_json_field(out, escaped, "exe", e.exe);
  if (e.flags >= 0) append_json_field(out, escaped, "flags", open_flags_text(e.flags));
  append_json_field(out, "mode", e.mode);
  append_json_field(out, "handle", e.handle);
  append_json_field(out, "count", e.count);
  append_json_field(out, "bytes", e.bytes);
  append_json_field(out, "offset", e.offset);
  if (!e.resolved.empty()) append_json_field(out, escaped, "resolved", e.resolved);
  if (!e.target.empty()) append_json_field(out, escaped, "target", e.target);
  if (!escaped.empty()) out += ",\"escaped\":[" + escaped + "]";
  out += "}\n";
}

}  // namespace heddle::trace
