// SPDX-License-Identifier: MIT
#include <string.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "record/trace/readers.hpp"

namespace heddle::trace {
namespace {

/// Takes the field up to the next tab off the front of `rest`; a last field empties it.
std::string_view take_field(std::string_view& rest) {
  const auto* tab =
      static_cast<const char*>(rest.empty() ? nullptr : memchr(rest.data(), '\t', rest.size()));
  if (tab == nullptr) return std::exchange(rest, {});
  const std::string_view field(rest.data(), static_cast<std::size_t>(tab - rest.data()));
  rest.remove_prefix(field.size() + 1);
  return field;
}

/// Decimal digits and nothing else, so that each number has one spelling only.
template <class T>
bool parse_number(std::string_view text, T& value, int base = 10) {
  if (text.empty() || text[0] == '-' || text[0] == '+') return false;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return ec == std::errc() && end == text.data() + text.size();
}

/// Gives the bytes behind an escaped field: the line's own when nothing is escaped (nearly always).
class Unescaper {
 public:
  bool operator()(std::string_view text, std::string_view& bytes, int slot) {
    if (text.empty() || memchr(text.data(), '\\', text.size()) == nullptr) {
      bytes = text;
      return true;
    }
    auto plain = unescape(text);
    if (!plain) return false;
    scratch_[slot] = std::move(*plain);
    bytes = scratch_[slot];
    return true;
  }

 private:
  std::array<std::string, 4> scratch_;
};

const char* parse_detail(std::string_view field, Event& e, Unescaper& unescaper) {
  const std::size_t equals = field.find('=');
  if (equals == std::string_view::npos) return "a detail without `=`";
  const std::string_view key = field.substr(0, equals);
  const std::string_view value = field.substr(equals + 1);
  bool good = false;
  if (key == "exe") {
    good = unescaper(value, e.exe, 1);
  } else if (key == "flags") {
    const auto flags = open_flags_from_text(value);
    if ((good = flags.has_value())) e.flags = *flags;
  } else if (key == "handle") {
    good = parse_number(value, e.handle);
  } else if (key == "count") {
    good = parse_number(value, e.count);
  } else if (key == "bytes") {
    good = parse_number(value, e.bytes);
  } else if (key == "offset") {
    good = parse_number(value, e.offset);
  } else if (key == "mode") {
    good = parse_number(value, e.mode, 8);
  } else if (key == "resolved") {
    good = unescaper(value, e.resolved, 2);
  } else if (key == "target") {
    good = unescaper(value, e.target, 3);
  } else {
    return "a detail this version does not know";
  }
  return good ? nullptr : "a detail's value";
}

/// Null, or what is wrong with the line.
const char* parse_event(std::string_view rest, Event& e, Unescaper& unescaper) {
  e = Event{};
  if (!parse_number(take_field(rest), e.ns)) return "the time";
  if (!parse_number(take_field(rest), e.pid)) return "the pid";
  if (!parse_number(take_field(rest), e.tid)) return "the tid";
  const auto op = op_from_name(take_field(rest));
  if (!op) return "the operation";
  e.op = *op;
  const auto result = result_from_name(take_field(rest));
  if (!result) return "the result";
  e.error = *result;
  if (rest.data() == nullptr) return "no path";
  if (!unescaper(take_field(rest), e.path, 0)) return "the path's escapes";
  while (!rest.empty())
    if (const char* wrong = parse_detail(take_field(rest), e, unescaper)) return wrong;
  return nullptr;
}

bool parse_header_line(std::string_view line, RunHeader& h) {
  const std::string_view key = take_field(line);
  const std::string_view field = take_field(line);
  if (key == "#start") return parse_number(field, h.start_unix_ns);
  if (!line.empty()) return false;
  if (key == "#rank") return parse_number(field, h.rank.emplace());
  if (key == "#argv") {
    const auto json = nlohmann::json::parse(field, nullptr, false);
    if (!json.is_array()) return false;
    for (const auto& word : json) {
      if (!word.is_string()) return false;
      h.argv.push_back(word.get<std::string>());
    }
    return true;
  }
  auto text = unescape(field);
  if (!text) return false;
  if (key == "#run")
    h.run_id = std::move(*text);
  else if (key == "#cwd")
    h.cwd = std::move(*text);
  else if (key == "#host")
    h.host = std::move(*text);
  else if (key == "#map")
    h.map_id = std::move(*text);
  else if (key == "#method")
    h.method = std::move(*text);
  else if (key == "#scope")
    h.scopes.push_back(std::move(*text));
  else if (key == "#note")
    h.notes.push_back(std::move(*text));
  else
    return false;
  return true;
}

bool parse_footer(std::string_view line, RunFooter& f) {
  take_field(line);
  const std::string_view state = take_field(line);
  if (state != "complete" && state != "incomplete") return false;
  f.complete = state == "complete";
  while (!line.empty()) {
    const std::string_view field = take_field(line);
    const std::size_t equals = field.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = field.substr(0, equals);
    const std::string_view value = field.substr(equals + 1);
    bool good = false;
    if (key == "exit")
      good = parse_number(value, f.exit_status.emplace());
    else if (key == "ns")
      good = parse_number(value, f.end_ns);
    else if (key == "events")
      good = parse_number(value, f.events);
    else if (key == "failed")
      good = parse_number(value, f.failed);
    else if (const auto op = op_from_name(key))
      good = parse_number(value, f.by_op[static_cast<std::size_t>(*op)]);
    if (!good) return false;
  }
  return true;
}

enum class Expect { header, events, start };

}  // namespace

Result<void> read_heddle_text(LineSource& lines, std::string_view line, TraceSink& sink,
                              const ReadOptions& options) {
  CountedSink out(sink);
  Unescaper unescaper;
  RunHeader header;
  Event event;
  Expect expect = Expect::start;
  LineSource::State state = LineSource::State::line;
  for (; state == LineSource::State::line; state = lines.next(line)) {
    if (!lines.terminated()) {
      if (options.accept_cut_line && expect == Expect::events) break;
      return fail(lines.at("the trace is cut", "its last line has no end",
                           "--partial reads it up to there"));
    }
    if (line.starts_with("#heddle-trace\t")) {
      if (expect == Expect::header) return fail(lines.at("damaged trace", "a header in a header"));
      if (expect == Expect::events) out.end_without_footer();
      int version = 0;
      if (!parse_number(line.substr(14), version))
        return fail(lines.at("damaged trace", "no version"));
      if (version != kTraceVersion) return fail(lines.at("unknown trace version", line.substr(14)));
      header = RunHeader{};
      expect = Expect::header;
    } else if (expect == Expect::header) {
      if (line.starts_with("#events\t")) {
        out.begin(header);
        expect = Expect::events;
      } else if (!parse_header_line(line, header)) {
        return fail(lines.at("damaged trace", "not a header line of this version"));
      }
    } else if (expect == Expect::start) {
      return fail(lines.at("damaged trace", "something after the footer"));
    } else if (line.starts_with("#end\t")) {
      RunFooter footer;
      if (!parse_footer(line, footer)) return fail(lines.at("damaged trace", "the footer"));
      if (!out.end(footer))
        return fail(lines.at("damaged trace", "the footer's counts are not those of the events"));
      expect = Expect::start;
    } else if (const char* wrong = parse_event(line, event, unescaper)) {
      return fail(lines.at("not an event", wrong));
    } else {
      out.event(event);
    }
  }
  if (state == LineSource::State::failed) return fail(Error(lines.error()));
  if (expect == Expect::header) return fail(lines.at("the trace is cut", "its header has no end"));
  if (out.open()) out.end_without_footer();
  return {};
}

}  // namespace heddle::trace
