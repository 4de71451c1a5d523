// SPDX-License-Identifier: MIT
#include "record/trace/trace_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "base/output_file.hpp"
#include "base/try.hpp"

namespace heddle::trace {
namespace {

using nlohmann::ordered_json;

/// Whether neither form escapes the text: nearly every path.
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
  for (const Detail& detail : kDetails) {
    if (detail.text ? (e.*detail.text).empty() : e.*detail.number < 0) continue;
    out += '\t';
    out += detail.key;
    out += '=';
    if (detail.as == Detail::As::text) append_escaped(out, e.*detail.text);
    if (detail.as == Detail::As::flags) out += open_flags_text(e.*detail.number);
    if (detail.as == Detail::As::octal) out += fmt::format("{:04o}", e.*detail.number);
    if (detail.as == Detail::As::decimal)
      append_number(out, static_cast<std::uint64_t>(e.*detail.number));
  }
  out += '\n';
}

std::string event_json(const Event& e) {
  std::array<char, 16> scratch;
  ordered_json j{{"ns", e.ns}, {"pid", e.pid}, {"tid", e.tid}};
  ordered_json escaped = ordered_json::array();  // keys whose bytes JSON cannot carry
  const auto put = [&](std::string_view key, std::string_view text) {
    j[std::string(key)] = to_json_text(text);
    if (!is_valid_utf8(text)) escaped.push_back(key);
  };
  put("op", op_name(e.op));
  put("result", result_name(e.error, scratch));
  put("path", e.path);
  for (const Detail& detail : kDetails) {
    if (detail.text ? (e.*detail.text).empty() : e.*detail.number < 0) continue;
    if (detail.as == Detail::As::text)
      put(detail.key, e.*detail.text);
    else if (detail.as == Detail::As::flags)
      put(detail.key, open_flags_text(e.*detail.number));
    else
      j[std::string(detail.key)] = e.*detail.number;
  }
  if (!escaped.empty()) j["escaped"] = std::move(escaped);
  return j.dump() + "\n";
}

ordered_json json_list(const std::vector<std::string>& list) {
  ordered_json out = ordered_json::array();
  for (const auto& text : list) out.push_back(to_json_text(text));
  return out;
}

std::string header_text(const RunHeader& header) {
  std::string out = fmt::format("#heddle-trace\t{}\n", kTraceVersion);
  each_field(header, [&](std::string_view key, std::string_view, const auto& field) {
    using T = std::decay_t<decltype(field)>;
    const auto line = [&](const auto& value) { out += fmt::format("#{}\t{}\n", key, value); };
    if constexpr (std::is_same_v<T, std::string>) {
      if (!field.empty()) line(escape_for_terminal(field));
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      if (field != 0) line(fmt::format("{}\t{}", field, utc_time_text(field)));
    } else if constexpr (std::is_same_v<T, std::optional<int>>) {
      if (field) line(*field);
    } else if (key == "argv") {
      // JSON escapes control bytes itself.
      if (!field.empty()) line(json_list(field).dump());
    } else {
      for (const auto& text : field) line(escape_for_terminal(text));
    }
  });
  return out + "#events\tns\tpid\ttid\top\tresult\tpath\tdetails\n";
}

std::string header_json(const RunHeader& header) {
  ordered_json j{{"heddle_trace", kTraceVersion}};
  each_field(header, [&](std::string_view, const char* key, const auto& field) {
    using T = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<T, std::string>) {
      if (!field.empty()) j[key] = to_json_text(field);
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      if (field == 0) return;
      j[key] = field;
      j["start"] = utc_time_text(field);
    } else if constexpr (std::is_same_v<T, std::optional<int>>) {
      if (field) j[key] = *field;
    } else if (!field.empty()) {
      j[key] = json_list(field);
    }
  });
  return j.dump() + "\n";
}

std::string footer_text(const RunFooter& f) {
  std::string out = f.complete ? "#end\tcomplete" : "#end\tincomplete";
  if (f.exit_status) out += fmt::format("\texit={}", *f.exit_status);
  each_count(f, [&](std::string_view key, std::uint64_t count) {
    if (count != 0 || !op_from_name(key)) out += fmt::format("\t{}={}", key, count);
  });
  return out + "\n";
}

std::string footer_json(const RunFooter& f) {
  ordered_json j{{"end", f.complete ? "complete" : "incomplete"}};
  if (f.exit_status) j["exit"] = *f.exit_status;
  auto by_op = ordered_json::object();
  each_count(f, [&](std::string_view key, std::uint64_t count) {
    if (!op_from_name(key))
      j[std::string(key)] = count;
    else if (count != 0)
      by_op[std::string(key)] = count;
  });
  j["by_op"] = std::move(by_op);
  return j.dump() + "\n";
}

/// Opens `path` with `header` as its content. A regular file is replaced, so that readers of the
/// old one are undisturbed and two recorders do not mix their lines.
Result<Fd> start_file(const std::string& path, const std::string& header) {
  auto file = AtomicFile::create(path);
  if (!file) {
    // The directory may be read-only, but not the file.
    const int code = file.error().code();
    Fd fd;
    if (code == EACCES || code == EPERM || code == EROFS)
      if (auto there = open_in_place(path)) fd = std::move(*there);
    if (!fd) return fail(std::move(file.error()));
    TRY(write_all(fd.get(), header, path));
    return fd;
  }
  TRY(file->write(header));
  return file->commit_open();
}

}  // namespace

TraceWriter::TraceWriter(std::string path, Fd fd, Form form)
    : path_(std::move(path)), fd_(std::move(fd)), form_(form) {
  buffer_.reserve(kFlushBytes + 4096);
}

Result<TraceWriter> TraceWriter::create(const std::string& path, const RunHeader& header, Form form,
                                        Fd opened) {
  const std::string lines = form == Form::text ? header_text(header) : header_json(header);
  if (!opened) opened = TRY(open_unreplaceable(path));
  const bool in_place = opened.valid();
  if (in_place) {
    TRY(write_all(opened.get(), lines, path));
  } else {
    opened = TRY(start_file(path, lines));
  }
  TraceWriter writer(path, std::move(opened), form);
  writer.in_place_ = in_place;
  writer.written_ = lines.size();
  return writer;
}

TraceWriter::~TraceWriter() {
  if (fd_) flush();
}

void TraceWriter::append(const Event& event) {
  if (failure_) return;
  if (form_ == Form::text) {
    append_event_text(buffer_, event);
  } else {
    buffer_ += event_json(event);
  }
  ++footer_.events;
  footer_.failed += event.error != 0;
  ++footer_.by_op[static_cast<std::size_t>(event.op)];
  if (buffer_.size() >= kFlushBytes) flush();
}

void TraceWriter::flush() {
  if (failure_ || buffer_.empty()) return;
  if (auto done = write_all(fd_.get(), buffer_, path_); done) {
    written_ += buffer_.size();
  } else {
    failure_ = std::make_unique<Error>(std::move(done.error()));
    // Removes a line that is cut, which readers refuse.
    if (!in_place_) (void)!::ftruncate(fd_.get(), static_cast<off_t>(written_));
  }
  buffer_.clear();
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
  // NFS reports a full disk at close(2).
  const int fd = fd_.release();
  if (fd >= 0 && ::close(fd) != 0 && !failure_)
    failure_ = std::make_unique<Error>(Error::from_errno(path_, "cannot write"));
  if (failure_) return fail(Error(*failure_));
  return {};
}

}  // namespace heddle::trace
