// SPDX-License-Identifier: MIT
#include "record/trace/trace_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "base/try.hpp"
#include "record/trace/readers.hpp"

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
  bool operator()(std::string_view text, std::string_view& bytes, std::ptrdiff_t slot) {
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
  std::string scratch_[std::size(kDetails) + 1];
};

const char* parse_detail(std::string_view field, Event& e, Unescaper& unescaper) {
  const std::size_t equals = field.find('=');
  if (equals == std::string_view::npos) return "a detail without `=`";
  const std::string_view key = field.substr(0, equals);
  const std::string_view value = field.substr(equals + 1);
  const auto* const detail = std::find_if(std::begin(kDetails), std::end(kDetails),
                                          [&](const Detail& d) { return d.key == key; });
  if (detail == std::end(kDetails)) return "a detail this version does not know";
  bool good = false;
  if (detail->text) {
    good = unescaper(value, e.*detail->text, detail - kDetails);
  } else if (detail->as == Detail::As::flags) {
    const auto flags = open_flags_from_text(value);
    if ((good = flags.has_value())) e.flags = *flags;
  } else {
    good = parse_number(value, e.*detail->number, detail->as == Detail::As::octal ? 8 : 10);
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
  if (!unescaper(take_field(rest), e.path, std::size(kDetails))) return "the path's escapes";
  while (!rest.empty())
    if (const char* wrong = parse_detail(take_field(rest), e, unescaper)) return wrong;
  return nullptr;
}

std::optional<std::vector<std::string>> parse_argv(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  std::vector<std::string> argv;
  if (!json.is_array()) return std::nullopt;
  for (const auto& word : json) {
    if (!word.is_string()) return std::nullopt;
    argv.push_back(word.get<std::string>());
  }
  return argv;
}

bool parse_header_line(std::string_view line, RunHeader& header) {
  if (!line.starts_with('#')) return false;
  const std::string_view key = take_field(line).substr(1);
  const std::string_view text = take_field(line);
  bool good = false;
  each_field(header, [&](std::string_view name, std::string_view, auto& field) {
    using T = std::decay_t<decltype(field)>;
    if (name != key) return;
    // Behind the start's number stands its date.
    if constexpr (std::is_same_v<T, std::uint64_t>) return void(good = parse_number(text, field));
    if (!line.empty()) return;
    if constexpr (std::is_same_v<T, std::optional<int>>) {
      good = parse_number(text, field.emplace());
    } else if (key == "argv") {
      auto argv = parse_argv(text);
      if ((good = argv.has_value())) header.argv = std::move(*argv);
    } else {
      auto plain = unescape(text);
      if (!(good = plain.has_value())) return;
      if constexpr (std::is_same_v<T, std::string>) field = std::move(*plain);
      if constexpr (std::is_same_v<T, std::vector<std::string>>) field.push_back(std::move(*plain));
    }
  });
  return good;
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

// Our JSON lines: the same runs as the text form, made for other programs; speed is the text's job.
using nlohmann::json;

/// Thrown within this file only: what is wrong with the line.
struct BadLine {
  const char* what;
};

const std::string& text_of(const json& value) {
  if (!value.is_string()) throw BadLine{"text expected"};
  return value.get_ref<const std::string&>();
}

template <class T>
T number_of(const json& value) {
  if (!value.is_number_unsigned()) throw BadLine{"number expected"};
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<T>::max()))
    throw BadLine{"number out of range"};
  return static_cast<T>(number);
}

std::vector<std::string> list_of(const json& value) {
  if (!value.is_array()) throw BadLine{"list expected"};
  std::vector<std::string> out;
  for (const auto& item : value) out.push_back(text_of(item));
  return out;
}

RunHeader header_of(const json& j) {
  RunHeader header;
  for (const auto& [key, value] : j.items()) {
    bool known = key == "heddle_trace" || key == "start";
    each_field(header, [&, &key = key, &value = value](std::string_view, std::string_view name,
                                                       auto& field) {
      using T = std::decay_t<decltype(field)>;
      if (name != key) return;
      known = true;
      if constexpr (std::is_same_v<T, std::string>)
        field = text_of(value);
      else if constexpr (std::is_same_v<T, std::vector<std::string>>)
        field = list_of(value);
      else if constexpr (std::is_same_v<T, std::uint64_t>)
        field = number_of<T>(value);
      else
        field = number_of<int>(value);
    });
    if (!known) throw BadLine{"a header field this version does not know"};
  }
  header.format = Format::heddle_json;
  return header;
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

/// Its texts are those of `j`, and of `scratch` where they were escaped.
Event event_of(const json& j, std::vector<std::string>& scratch) {
  Event event;
  int needed = 4;
  for (const auto& [key, value] : j.items()) {
    const auto* const detail =
        std::find_if(std::begin(kDetails), std::end(kDetails),
                     [&, &key = key](const Detail& d) { return d.key == key; });
    if (key == "ns" || key == "op" || key == "result" || key == "path") --needed;
    if (key == "ns") {
      event.ns = number_of<std::uint64_t>(value);
    } else if (key == "pid") {
      event.pid = number_of<std::int32_t>(value);
    } else if (key == "tid") {
      event.tid = number_of<std::int32_t>(value);
    } else if (key == "path") {
      event.path = text_of(value);
    } else if (key == "op") {
      const auto op = op_from_name(text_of(value));
      if (!op) throw BadLine{"the operation"};
      event.op = *op;
    } else if (key == "result") {
      const auto result = result_from_name(text_of(value));
      if (!result) throw BadLine{"the result"};
      event.error = *result;
    } else if (detail != std::end(kDetails) && detail->text) {
      event.*detail->text = text_of(value);
    } else if (detail != std::end(kDetails) && detail->as == Detail::As::flags) {
      const auto flags = open_flags_from_text(text_of(value));
      if (!flags) throw BadLine{"the flags"};
      event.flags = *flags;
    } else if (detail != std::end(kDetails)) {
      event.*detail->number = number_of<std::int64_t>(value);
    } else if (key != "escaped") {
      throw BadLine{"an event field this version does not know"};
    }
  }
  if (needed != 0) throw BadLine{"a field is missing"};
  const auto it = j.find("escaped");
  if (it == j.end()) return event;
  const auto keys = list_of(*it);
  scratch.clear();
  scratch.reserve(keys.size());
  for (const std::string& key : keys) {
    const auto* const detail =
        std::find_if(std::begin(kDetails), std::end(kDetails),
                     [&](const Detail& d) { return d.text && d.key == key; });
    if (key != "path" && detail == std::end(kDetails)) throw BadLine{"an escaped field"};
    std::string_view& text = key == "path" ? event.path : event.*detail->text;
    auto bytes = unescape(text);
    if (!bytes) throw BadLine{"an escaped field"};
    text = scratch.emplace_back(std::move(*bytes));
  }
  return event;
}

Result<void> read_heddle_json(LineSource& lines, std::string_view line, TraceSink& sink,
                              const ReadOptions& options) {
  CountedSink out(sink);
  std::vector<std::string> scratch;
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
        out.event(event_of(j, scratch));
      }
    } catch (const BadLine& bad) {
      return fail(lines.at("damaged trace", bad.what));
    }
  }
  if (state == LineSource::State::failed) return fail(Error(lines.error()));
  if (out.open()) out.end_without_footer();
  return {};
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
  std::string_view first;
  const auto state = lines.next(first);
  if (state == LineSource::State::failed) return fail(Error(lines.error()));
  if (state == LineSource::State::end)
    return fail(lines.name() + ":1", "not a trace", "the file is empty");
  if (first.starts_with("#heddle-trace\t")) return read_heddle_text(lines, first, sink, options);
  if (first.starts_with("{")) return read_heddle_json(lines, first, sink, options);
  if (looks_like_compat_lib(first)) return read_compat_lib(lines, first, sink);
  const bool binary = first.find('\0') != std::string_view::npos;
  return fail(lines.at("not a trace",
                       binary ? "binary data" : "starts neither as heddle's nor as compat-lib's"));
}

}  // namespace heddle::trace
