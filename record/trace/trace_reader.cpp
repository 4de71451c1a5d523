// SPDX-License-Identifier: MIT
#include "record/trace/trace_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "record/trace/readers.hpp"

namespace heddle::trace {

namespace {

/// Removes the field up to the next tab, or all, from the front of `rest`.
std::string_view take_field(std::string_view& rest) {
  const auto* tab =
      static_cast<const char*>(rest.empty() ? nullptr : memchr(rest.data(), '\t', rest.size()));
  if (tab == nullptr) return std::exchange(rest, {});
  const std::string_view field(rest.data(), static_cast<std::size_t>(tab - rest.data()));
  rest.remove_prefix(field.size() + 1);
  return field;
}

/// The bytes of an escaped field: a view of the line when nothing is escaped (nearly always), else
/// of `scratch`.
bool unescape_field(std::string_view text, std::string_view& bytes, std::string& scratch) {
  bytes = text;
  if (text.empty() || memchr(text.data(), '\\', text.size()) == nullptr) return true;
  auto plain = unescape(text);
  if (!plain) return false;
  bytes = scratch = std::move(*plain);
  return true;
}

// The fields of every event: in the text form by position, in JSON by these keys.
constexpr std::string_view kPlaces[] = {"ns", "pid", "tid", "op", "result", "path"};
constexpr std::size_t kPathPlace = 5;

/// Null, or the field that is wrong.
const char* set_place(Event& e, std::size_t place, std::string_view text) {
  std::optional<Op> op;
  std::optional<int> result;
  switch (place) {
    case 0:
      return parse_number(text, e.ns) ? nullptr : "the time";
    case 1:
      return parse_number(text, e.pid) ? nullptr : "the pid";
    case 2:
      return parse_number(text, e.tid) ? nullptr : "the tid";
    case 3:
      if (!(op = op_from_name(text))) return "the operation";
      e.op = *op;
      return nullptr;
    case 4:
      if (!(result = result_from_name(text))) return "the result";
      e.error = *result;
      return nullptr;
    default:
      e.path = text;
      return nullptr;
  }
}

const Detail* find_detail(std::string_view key) {
  const auto* const at = std::find_if(std::begin(kDetails), std::end(kDetails),
                                      [&](const Detail& detail) { return detail.key == key; });
  return at == std::end(kDetails) ? nullptr : at;
}

bool set_detail(Event& e, const Detail& detail, std::string_view value, int mode_base) {
  if (detail.as == Detail::As::text) {
    e.*detail.text = value;
    return true;
  }
  if (detail.as != Detail::As::flags)
    return parse_number(value, e.*detail.number, detail.as == Detail::As::octal ? mode_base : 10);
  const auto flags = open_flags_from_text(value);
  e.flags = flags.value_or(-1);
  return flags.has_value();
}

/// Sets the header's field, or a list's next element. False: unknown field, or wrong value.
bool set_header_field(RunHeader& header, std::string_view key, std::string text, bool json) {
  bool good = false;
  each_field(header, [&](std::string_view name, std::string_view json_name, auto& field) {
    using T = std::decay_t<decltype(field)>;
    if ((json ? json_name : name) != key) return;
    good = true;
    if constexpr (std::is_same_v<T, std::string>)
      field = std::move(text);
    else if constexpr (std::is_same_v<T, std::vector<std::string>>)
      field.push_back(std::move(text));
    else if constexpr (std::is_same_v<T, std::optional<int>>)
      good = parse_number(text, field.emplace());
    else
      good = parse_number(text, field);
  });
  return good;
}

bool set_footer_field(RunFooter& footer, std::string_view key, std::string_view value) {
  footer.complete = footer.complete || (key == "end" && value == "complete");
  if (key == "end") return footer.complete || value == "incomplete";
  if (key == "exit") return parse_number(value, footer.exit_status.emplace());
  bool good = false;
  each_count(footer, [&](std::string_view name, std::uint64_t& count) {
    if (name == key) good = parse_number(value, count);
  });
  return good;
}

using nlohmann::json;

/// A JSON text or number as in the text form; a view of `value`, or for numbers of `scratch`.
std::string_view text_of(const json& value, std::string& scratch) {
  if (value.is_string()) return value.get_ref<const std::string&>();
  return scratch = value.is_number() ? value.dump() : "";
}

/// Reads the lines of heddle's two forms. The text form is the fast one.
class HeddleLines {
 public:
  HeddleLines(TraceSink& sink, bool is_json) : out_(sink), is_json_(is_json) {}

  /// Null, or why the line is wrong; what() is then the error.
  const char* take(std::string_view line) {
    what_ = "damaged trace";
    return is_json_ ? json_line(line) : text_line(line);
  }
  const char* what() const { return what_; }
  bool in_header() const { return in_header_; }
  CountedSink& out() { return out_; }

 private:
  const char* begin_header(std::string_view version) {
    int number = 0;
    if (!parse_number(version, number)) return "no version";
    what_ = "unknown trace version";
    if (number != kTraceVersion) return (version_ = version).c_str();
    if (out_.open()) out_.end_without_footer();
    header_ = RunHeader{};
    if (is_json_) header_.format = Format::heddle_json;
    return nullptr;
  }
  const char* end(const RunFooter& footer) {
    return out_.end(footer) ? nullptr : "the footer's counts are not those of the events";
  }

  const char* text_line(std::string_view line) {
    constexpr std::string_view kStart = "#heddle-trace\t";
    if (line.starts_with(kStart)) {
      if (in_header_) return "a header in a header";
      in_header_ = true;
      return begin_header(line.substr(kStart.size()));
    }
    if (in_header_) {
      if (!line.starts_with("#events\t")) return text_header(line);
      in_header_ = false;
      out_.begin(header_);
      return nullptr;
    }
    if (!out_.open()) return "something after the footer";
    if (line.starts_with("#end\t")) return text_footer(line.substr(1));
    what_ = "not an event";
    return text_event(line);
  }
  const char* text_header(std::string_view line) {
    const std::string_view key = take_field(line);
    const std::string_view text = take_field(line);
    if (!key.starts_with('#')) return "not a header line of this version";
    bool good = line.empty() || key == "#start";  // which has a date too
    if (key == "#argv") {
      const auto argv = json::parse(text, nullptr, false);
      good = good && argv.is_array();
      for (const auto& word : argv) good = good && word.is_string();
      if (good) header_.argv = argv.get<std::vector<std::string>>();
    } else {
      auto plain = unescape(text);
      good = good && plain && set_header_field(header_, key.substr(1), std::move(*plain), false);
    }
    return good ? nullptr : "not a header line of this version";
  }
  const char* text_footer(std::string_view line) {
    RunFooter footer;
    bool good = take_field(line) == "end" && set_footer_field(footer, "end", take_field(line));
    while (good && !line.empty()) {
      const std::string_view field = take_field(line);
      const std::size_t equals = std::min(field.find('='), field.size() - 1);
      good = set_footer_field(footer, field.substr(0, equals), field.substr(equals + 1));
    }
    return good ? end(footer) : "the footer";
  }
  const char* text_event(std::string_view rest) {
    event_ = Event{};
    for (std::size_t place = 0; place < kPathPlace; ++place)
      if (const char* wrong = set_place(event_, place, take_field(rest))) return wrong;
    if (rest.data() == nullptr) return "no path";
    if (!unescape_field(take_field(rest), event_.path, scratch_[std::size(kDetails)]))
      return "the path's escapes";
    while (!rest.empty()) {
      const std::string_view field = take_field(rest);
      const std::size_t equals = field.find('=');
      if (equals == std::string_view::npos) return "a detail without `=`";
      const Detail* detail = find_detail(field.substr(0, equals));
      if (!detail) return "a detail this version does not know";
      std::string_view value = field.substr(equals + 1);
      if ((detail->text && !unescape_field(value, value, scratch_[detail - kDetails])) ||
          !set_detail(event_, *detail, value, 8))
        return "a detail's value";
    }
    out_.event(event_);
    return nullptr;
  }

  const char* json_line(std::string_view line) {
    const json j = json::parse(line, nullptr, false);
    if (!j.is_object()) return "not a JSON object";
    if (j.contains("heddle_trace")) return json_header(j);
    if (!out_.open()) {
      if (header_.format != Format::heddle_json) what_ = "not a trace";
      return "JSON, but no heddle_trace header";
    }
    return j.contains("end") ? json_footer(j) : json_event(j);
  }
  const char* json_header(const json& j) {
    std::string scratch;
    if (const char* wrong = begin_header(text_of(j["heddle_trace"], scratch))) return wrong;
    what_ = "damaged trace";
    for (const auto& [key, value] : j.items()) {
      if (key == "heddle_trace" || key == "start") continue;
      for (const json& item : value.is_array() ? value : json::array({value}))
        if (!set_header_field(header_, key, std::string(text_of(item, scratch)), true))
          return "a header field this version does not know";
    }
    out_.begin(header_);
    return nullptr;
  }
  const char* json_footer(const json& j) {
    RunFooter footer;
    std::string scratch;
    bool good = true;
    for (const auto& [key, value] : j.items())
      if (key != "by_op") good = good && set_footer_field(footer, key, text_of(value, scratch));
    const json by_op = j.value("by_op", json::object());
    for (const auto& [op, count] : by_op.items())
      good = good && op_from_name(op) && set_footer_field(footer, op, text_of(count, scratch));
    return good ? end(footer) : "the footer";
  }
  const char* json_event(const json& j) {
    event_ = Event{};
    std::size_t places = 0;
    std::string number;
    const json escaped = j.value("escaped", json::array());
    for (const auto& [key, value] : j.items()) {
      if (key == "escaped") continue;
      const Detail* detail = find_detail(key);
      const auto* const place = std::find(std::begin(kPlaces), std::end(kPlaces), key);
      const bool is_place = place != std::end(kPlaces);
      const bool is_number = is_place ? place - kPlaces < 3
                                      : detail && (detail->as == Detail::As::decimal ||
                                                   detail->as == Detail::As::octal);
      // Texts are views: of `value`, or of a scratch string for this field.
      if (is_number ? !value.is_number_integer() : !value.is_string())
        return "an event field of another type";
      std::string_view text = text_of(value, number);
      const bool may_be_escaped = key == "path" || (detail && detail->as == Detail::As::text);
      const auto slot = detail ? detail - kDetails : std::ssize(kDetails);
      if (std::find(escaped.begin(), escaped.end(), key) != escaped.end() &&
          (!may_be_escaped || !unescape_field(text, text, scratch_[slot])))
        return "an escaped field";
      if (is_place) {
        ++places;
        if (const char* wrong = set_place(event_, static_cast<std::size_t>(place - kPlaces), text))
          return wrong;
      } else if (!detail || !set_detail(event_, *detail, text, 10)) {
        return "an event field this version does not know";
      }
    }
    if (places != std::size(kPlaces)) return "a field is missing";
    out_.event(event_);
    return nullptr;
  }

  CountedSink out_;
  const bool is_json_;
  bool in_header_ = false;
  RunHeader header_;
  Event event_;
  std::string scratch_[std::size(kDetails) + 1];  ///< of each text of an event, and the path
  std::string version_;
  const char* what_ = "";
};

Result<void> read_heddle(LineSource& lines, std::string_view line, TraceSink& sink,
                         const ReadOptions& options) {
  HeddleLines reader(sink, line.starts_with('{'));
  LineSource::State state = LineSource::State::line;
  for (; state == LineSource::State::line; state = lines.next(line)) {
    if (!lines.terminated()) {
      if (options.accept_cut_line && reader.out().open()) break;
      return fail(lines.at("the trace is cut", "its last line has no end", options.cut_line_hint));
    }
    if (const char* wrong = reader.take(line)) return fail(lines.at(reader.what(), wrong));
  }
  if (state == LineSource::State::failed) return fail(Error(lines.error()));
  if (reader.in_header()) return fail(lines.at("the trace is cut", "its header has no end"));
  if (reader.out().open()) reader.out().end_without_footer();
  return {};
}

bool begins_trace(std::string_view line) {
  return line.starts_with("#heddle-trace\t") || looks_like_compat_lib(line) ||
         (line.starts_with('{') && line.find("\"heddle_trace\":") != line.npos);
}

/// Skips other output before the trace, as in a container's log. Result: the trace's first line.
Result<std::string_view> find_trace(LineSource& lines) {
  std::string_view line;
  std::optional<Error> refused;
  for (;;) {
    const auto state = lines.next(line);
    if (state == LineSource::State::failed && !refused) return fail(Error(lines.error()));
    if (state != LineSource::State::line)
      return fail(refused.value_or(Error(lines.name() + ":1", "not a trace", "the file is empty")));
    if (begins_trace(line)) break;
    const bool binary = line.find('\0') != line.npos;
    if (!refused)
      refused = lines.at("not a trace",
                         binary ? "binary data" : "no line begins as heddle's or compat-lib's do");
    if (binary) return fail(*refused);
  }
  if (refused)
    warn(fmt::format("{}: lines of other output before the trace were skipped: {}",
                     escape_for_terminal(lines.name()), lines.number() - 1));
  return line;
}

}  // namespace

Result<void> read_trace(const std::string& path, TraceSink& sink, const ReadOptions& options) {
  Fd fd = TRY(path == "-" ? Result<Fd>(Fd(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)))
                          : open_file(path, O_RDONLY));
  if (!fd) return fail_errno("stdin", "cannot read");
  struct stat st {};
  if (::fstat(fd.get(), &st) == 0 && S_ISDIR(st.st_mode))
    return fail_errno(path, "cannot read", EISDIR);

  LineSource lines(std::move(fd), path == "-" ? "stdin" : path);
  const std::string_view first = TRY(find_trace(lines));
  return looks_like_compat_lib(first) ? read_compat_lib(lines, first, sink)
                                      : read_heddle(lines, first, sink, options);
}

}  // namespace heddle::trace
