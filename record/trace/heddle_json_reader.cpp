// SPDX-License-Identifier: MIT
// Our JSON lines: the same runs as the text form, made for other programs; speed is the text's job.
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "record/trace/readers.hpp"

namespace heddle::trace {
namespace {

using nlohmann::json;

/// Thrown within this file only: what is wrong with the line.
struct BadLine {
  const char* what;
};

std::string text_of(const json& value) {
  if (!value.is_string()) throw BadLine{"text expected"};
  return value.get<std::string>();
}

template <class T>
T number_of(const json& value) {
  if (!value.is_number_integer()) throw BadLine{"number expected"};
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<T>::max()))
      throw BadLine{"number out of range"};
    return static_cast<T>(number);
  }
  throw BadLine{"number out of range"};
}

std::vector<std::string> list_of(const json& value) {
  if (!value.is_array()) throw BadLine{"list expected"};
  std::vector<std::string> out;
  for (const auto& item : value) out.push_back(text_of(item));
  return out;
}

RunHeader header_of(const json& j) {
  RunHeader h;
  for (const auto& [key, value] : j.items()) {
    if (key == "heddle_trace" || key == "start") continue;
    if (key == "run")
      h.run_id = text_of(value);
    else if (key == "argv")
      h.argv = list_of(value);
    else if (key == "cwd")
      h.cwd = text_of(value);
    else if (key == "host")
      h.host = text_of(value);
    else if (key == "start_unix_ns")
      h.start_unix_ns = number_of<std::uint64_t>(value);
    else if (key == "rank")
      h.rank = number_of<int>(value);
    else if (key == "map")
      h.map_id = text_of(value);
    else if (key == "method")
      h.method = text_of(value);
    else if (key == "scopes")
      h.scopes = list_of(value);
    else if (key == "notes")
      h.notes = list_of(value);
    else
      throw BadLine{"a header field this version does not know"};
  }
  h.format = Format::heddle_json;
  return h;
}

RunFooter footer_of(const json& j) {
  RunFooter f;
  for (const auto& [key, value] : j.items()) {
    if (key == "end") {
      const std::string state = text_of(value);
      if (state != "complete" && state != "incomplete") throw BadLine{"the footer's state"};
      f.complete = state == "complete";
    } else if (key == "exit") {
      f.exit_status = number_of<int>(value);
    } else if (key == "ns") {
      f.end_ns = number_of<std::uint64_t>(value);
    } else if (key == "events") {
      f.events = number_of<std::uint64_t>(value);
    } else if (key == "failed") {
      f.failed = number_of<std::uint64_t>(value);
    } else if (key == "by_op" && value.is_object()) {
      for (const auto& [name, count] : value.items()) {
        const auto op = op_from_name(name);
        if (!op) throw BadLine{"the footer's counts"};
        f.by_op[static_cast<std::size_t>(*op)] = number_of<std::uint64_t>(count);
      }
    } else {
      throw BadLine{"a footer field this version does not know"};
    }
  }
  return f;
}

/// An event and the strings its views look into.
struct EventLine {
  std::string path, exe, resolved, target;
  Event event;

  explicit EventLine(const json& j) {
    bool has_op = false, has_path = false, has_result = false, has_time = false;
    for (const auto& [key, value] : j.items()) {
      if (key == "ns")
        event.ns = number_of<std::uint64_t>(value), has_time = true;
      else if (key == "pid")
        event.pid = number_of<std::int32_t>(value);
      else if (key == "tid")
        event.tid = number_of<std::int32_t>(value);
      else if (key == "path")
        path = text_of(value), has_path = true;
      else if (key == "exe")
        exe = text_of(value);
      else if (key == "resolved")
        resolved = text_of(value);
      else if (key == "target")
        target = text_of(value);
      else if (key == "mode")
        event.mode = number_of<std::int64_t>(value);
      else if (key == "handle")
        event.handle = number_of<std::int64_t>(value);
      else if (key == "count")
        event.count = number_of<std::int64_t>(value);
      else if (key == "bytes")
        event.bytes = number_of<std::int64_t>(value);
      else if (key == "offset")
        event.offset = number_of<std::int64_t>(value);
      else if (key == "op") {
        const auto op = op_from_name(text_of(value));
        if (!op) throw BadLine{"the operation"};
        event.op = *op, has_op = true;
      } else if (key == "result") {
        const auto result = result_from_name(text_of(value));
        if (!result) throw BadLine{"the result"};
        event.error = *result, has_result = true;
      } else if (key == "flags") {
        const auto flags = open_flags_from_text(text_of(value));
        if (!flags) throw BadLine{"the flags"};
        event.flags = *flags;
      } else if (key != "escaped") {
        throw BadLine{"an event field this version does not know"};
      }
    }
    if (!has_op || !has_path || !has_result || !has_time) throw BadLine{"a field is missing"};
    if (const auto it = j.find("escaped"); it != j.end())
      for (const std::string& key : list_of(*it)) restore(key);
    event.path = path, event.exe = exe, event.resolved = resolved, event.target = target;
  }

  void restore(const std::string& key) {
    std::string* field = key == "path"       ? &path
                         : key == "exe"      ? &exe
                         : key == "resolved" ? &resolved
                         : key == "target"   ? &target
                                             : nullptr;
    auto bytes = field != nullptr ? unescape(*field) : std::nullopt;
    if (!bytes) throw BadLine{"an escaped field"};
    *field = std::move(*bytes);
  }
};

}  // namespace

Result<void> read_heddle_json(LineSource& lines, std::string_view line, TraceSink& sink,
                              const ReadOptions& options) {
  CountedSink out(sink);
  LineSource::State state = LineSource::State::line;
  for (; state == LineSource::State::line; state = lines.next(line)) {
    if (!lines.terminated()) {
      if (options.accept_cut_line && out.open()) break;
      return fail(lines.at("the trace is cut", "its last line has no end",
                           "--partial reads it up to there"));
    }
    const json j = json::parse(line, nullptr, false);
    if (!j.is_object()) return fail(lines.at("damaged trace", "not a JSON object"));
    try {
      if (const auto version = j.find("heddle_trace"); version != j.end()) {
        if (*version != kTraceVersion)
          return fail(lines.at("unknown trace version", version->dump(-1, ' ', true)));
        const RunHeader header = header_of(j);
        if (out.open()) out.end_without_footer();
        out.begin(header);
      } else if (!out.open()) {
        return fail(lines.at(lines.number() == 1 ? "not a trace" : "damaged trace",
                             "JSON, but no heddle_trace header"));
      } else if (j.contains("end")) {
        if (!out.end(footer_of(j)))
          return fail(lines.at("damaged trace", "the footer's counts are not those of the events"));
      } else {
        out.event(EventLine(j).event);
      }
    } catch (const BadLine& bad) {
      return fail(lines.at("damaged trace", bad.what));
    }
  }
  if (state == LineSource::State::failed) return fail(Error(lines.error()));
  if (out.open()) out.end_without_footer();
  return {};
}

}  // namespace heddle::trace
