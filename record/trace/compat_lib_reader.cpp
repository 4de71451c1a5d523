// SPDX-License-Identifier: MIT
// Traces of compspec/compat-lib's fs-record, as Go's log package wrote them:
//
//   2024/11/10 06:47:34 recorder.go:46: 1731221254410445730 Lookup     /etc
//   2024/11/21 18:34:47 logger.go:63: 1732214087012379646 Open      /usr/bin/lmp<TAB>7
//
// The older variant is "%-10s %s"; the newer is "%-10s%-10s", which pads short paths, with the
// daemon's fd after a tab, and has a `Complete` line. Both append to an existing file without a
// mark, and look up proot's bindings first: the first five lookups of a file, repeated in their
// order, begin the next run.
#include <algorithm>
#include <cstdio>
#include <deque>

#include "record/trace/readers.hpp"

namespace heddle::trace {
namespace {

constexpr std::size_t kSignatureLength = 5;
constexpr std::size_t kPadding = 10;

/// Length of a prefix such as `2024/11/21 18:34:47 logger.go:63: `; 0: there is none.
std::size_t log_prefix(std::string_view line) {
  int length = 0;
  const std::string start(line.substr(0, 200));
  (void)std::sscanf(start.c_str(), "%*4u/%*2u/%*2u %*2u:%*2u:%*2u %*[^.: ].go:%*u:%n", &length);
  const auto end = static_cast<std::size_t>(length);
  return length > 0 && line.substr(end).starts_with(' ') ? end + 1 : 0;
}

struct Line {
  std::uint64_t unix_ns = 0;
  Op op = Op::lookup;
  bool is_end = false;  ///< `Complete`
  bool older = false;
  std::string path;
  std::int64_t fd = -1;
};

/// Null, or why the line is wrong.
const char* parse_line(std::string_view text, Line& out) {
  const std::size_t prefix = log_prefix(text);
  if (prefix == 0) return "does not start as compat-lib's lines do";
  text.remove_prefix(prefix);
  const std::size_t digits = std::min(text.find(' '), text.size() - 1);
  if (!parse_number(text.substr(0, digits), out.unix_ns)) return "the time";
  text.remove_prefix(digits + 1);
  const std::string_view name = text.substr(0, text.find(' '));
  static constexpr std::pair<std::string_view, Op> kOps[] = {{"Lookup", Op::lookup},
                                                             {"Open", Op::open},
                                                             {"Close", Op::close},
                                                             {"Create", Op::create},
                                                             {"Readlink", Op::readlink}};
  out.is_end = name == "Complete";
  const auto* const op = std::find_if(std::begin(kOps), std::end(kOps),
                                      [&](const auto& o) { return o.first == name; });
  if (op == std::end(kOps) && !out.is_end) return "an event compat-lib does not write";
  if (!out.is_end) out.op = op->second;
  if (text.size() <= kPadding) return "no path";
  if (text.substr(0, kPadding).find_first_not_of(' ', name.size()) != std::string_view::npos)
    return "the padding after the event";
  text.remove_prefix(kPadding);
  out.older = text[0] == ' ';
  if (out.older) {
    text.remove_prefix(1);
  } else if (out.op == Op::open || out.op == Op::close) {
    const std::size_t tab = text.rfind('\t');
    std::int64_t fd = 0;
    if (tab != std::string_view::npos && parse_number(text.substr(tab + 1), fd)) {
      text = text.substr(0, tab);
      out.fd = fd;
    }
  }
  // Only a path shorter than the padding can end in padding.
  if (!out.older && text.size() == kPadding) text = text.substr(0, text.find_last_not_of(' ') + 1);
  if (text.empty()) return "no path";
  out.path = std::string(text);
  return nullptr;
}

/// Cuts the stream of lines into runs.
class Splitter {
 public:
  explicit Splitter(TraceSink& sink) : out_(sink) {}

  void add(Line line) {
    if (line.is_end) {
      // Lookups may follow, because the mount outlives the program.
      release_all();
      complete_ = out_.open();
      return;
    }
    if (signature_open_) {
      learn(line);
      emit(line);
      return;
    }
    held_.push_back(std::move(line));
    while (!held_.empty() && !held_starts_signature()) release_one();
    if (!signature_.empty() && held_.size() == signature_.size()) {
      if (out_.open()) end_run();
      release_all();
    }
  }
  void finish() {
    release_all();
    if (out_.open()) end_run();
  }

 private:
  void learn(const Line& line) {
    bool usable = line.op == Op::lookup;
    for (const Line& other : signature_) usable = usable && other.path != line.path;
    if (usable) signature_.push_back(line);
    if (!usable) signature_.clear();  // not proot's start: the file is one run
    signature_open_ = usable && signature_.size() < kSignatureLength;
  }
  bool held_starts_signature() const {
    if (held_.size() > signature_.size()) return false;
    for (std::size_t i = 0; i < held_.size(); ++i)
      if (held_[i].op != signature_[i].op || held_[i].path != signature_[i].path) return false;
    return true;
  }
  void release_one() {
    emit(held_.front());
    held_.pop_front();
  }
  void release_all() {
    while (!held_.empty()) release_one();
  }
  void end_run() {
    out_.end_without_footer(complete_ ? Ending::footer
                            : older_  ? Ending::not_in_format
                                      : Ending::no_footer,
                            complete_);
    complete_ = false;
  }
  void emit(const Line& line) {
    if (!out_.open()) {
      RunHeader header;
      header.format = Format::compat_lib;
      header.start_unix_ns = start_ = line.unix_ns;
      older_ = line.older;
      out_.begin(header);
    }
    Event event;
    // Handlers ran in parallel, so a line may be older than the first.
    event.ns = line.unix_ns < start_ ? 0 : line.unix_ns - start_;
    event.op = line.op;
    event.path = line.path;
    event.handle = line.fd;
    out_.event(event);
  }

  CountedSink out_;
  std::deque<Line> held_;
  std::vector<Line> signature_;
  bool signature_open_ = true;
  bool complete_ = false;
  bool older_ = false;
  std::uint64_t start_ = 0;
};

}  // namespace

bool looks_like_compat_lib(std::string_view line) { return log_prefix(line) != 0; }

Result<void> read_compat_lib(LineSource& lines, std::string_view text, TraceSink& sink) {
  Splitter splitter(sink);
  LineSource::State state = LineSource::State::line;
  for (; state == LineSource::State::line; state = lines.next(text)) {
    Line line;
    // compat-lib's last line may lack its newline.
    if (const char* wrong = parse_line(text, line)) return fail(lines.at("not an event", wrong));
    splitter.add(std::move(line));
  }
  if (state == LineSource::State::failed) return fail(Error(lines.error()));
  splitter.finish();
  return {};
}

}  // namespace heddle::trace
