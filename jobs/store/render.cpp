// SPDX-License-Identifier: MIT
#include "jobs/store/render.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/bounded_json.hpp"
#include "base/escape.hpp"
#include "base/fd.hpp"
#include "jobs/store/selection.hpp"

namespace heddle::jobs::store {
namespace {

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

/// How a person reads a column: times as dates, durations in seconds.
std::string table_field(const std::string& column, const Value& value) {
  if (is_null(value)) return "-";
  if (column == "start" || column == "finish" || column == "submitted" || column == "created")
    return time_text(to_int(value));
  if (value.index() == 3) return to_text(value).empty() ? "-" : on_terminal(to_text(value));
  return human(column, to_double(value));
}

}  // namespace

std::string render(Format format, const std::vector<std::string>& columns,
                   const std::vector<Row>& rows) {
  std::string out;
  if (format == Format::json) {
    Json list = Json::array();
    for (const Row& row : rows) {
      Json& object = list.emplace_back(Json::object());
      for (std::size_t i = 0; i < columns.size(); ++i) object[columns[i]] = to_json(row[i]);
      for (const char* nested : {"tags", "annotations", "environment"})
        if (object.contains(nested) && object[nested].is_string())
          if (auto parsed = parse_bounded<Json>(object[nested].get<std::string>());
              parsed.is_object())
            object[nested] = std::move(parsed);
    }
    return list.dump(1) + "\n";
  }
  std::vector<std::vector<std::string>> lines{columns};
  for (const Row& row : rows) {
    auto& line = lines.emplace_back();
    for (std::size_t i = 0; i < columns.size(); ++i)
      line.push_back(format == Format::csv ? csv_field(to_text(row[i]))
                                           : table_field(columns[i], row[i]));
  }
  std::vector<std::size_t> widths(columns.size(), 0);
  if (format == Format::table)
    for (const auto& line : lines)
      for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      const bool last = i + 1 == line.size();
      out += line[i];
      if (format == Format::csv && !last) out += ',';
      if (format == Format::table && !last) out.append(widths[i] + 2 - line[i].size(), ' ');
    }
    out += '\n';
  }
  return out;
}

std::string on_terminal(const std::string& text) {
  const auto plain = unescape(text);
  return plain && escape_for_terminal(*plain) == text ? text : escape_for_terminal(text);
}

Json to_json(const Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return *whole;
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* text = std::get_if<std::string>(&value)) return to_json_text(*text);
  return nullptr;
}

void print(const std::string& text) { value_or_throw(write_all(STDOUT_FILENO, text, "stdout")); }

std::string counted(std::uint64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string human(std::string_view feature, double value) {
  const auto one_of = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, feature) != names.end();
  };
  double seconds = -1;
  if (one_of({"duration", "cpu_time", "inclusive_cpu_time", "usertime", "systemtime", "cpu_stall",
              "memory_stall", "io_stall"}))
    seconds = value / 1e6;
  if (one_of({"time_oncpu", "time_waiting"})) seconds = value / 1e9;
  if (seconds >= 0)
    return seconds < 100 ? fmt::format("{:.2f} s", seconds) : fmt::format("{:.0f} s", seconds);
  double bytes = -1;
  if (one_of({"rchar", "wchar", "read_bytes", "write_bytes", "cancelled_write_bytes", "memory_peak",
              "memory_max"}))
    bytes = value;
  if (feature == "rssmax") bytes = value * 1024;
  if (bytes < 0) return fmt::format("{:.10g}", value);
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

}  // namespace heddle::jobs::store
