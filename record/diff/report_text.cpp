// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <cstdlib>

#include "base/escape.hpp"
#include "record/diff/report.hpp"
#include "record/trace/trace_writer.hpp"

namespace heddle::diff {

namespace {

// Edit scripts as GNU diff writes them (diffutils manual, "Unified Format" and "Context Format"), a
// line being an event.

/// Colours of GNU diff's --color, by what they say.
constexpr std::string_view kRemoved = "\x1b[31m", kAdded = "\x1b[32m", kPlace = "\x1b[36m",
                           kPlain = "\x1b[0m";

class Lines {
 public:
  Lines(std::string& out, const Part& part, const TokenTable& table, bool colour)
      : out_(out), part_(part), table_(table), colour_(colour), labels_(table.size()) {}

  void place(std::string_view text) { line(kPlace, text, {}); }
  void a(std::string_view mark, std::uint32_t i) { event(kRemoved, mark, part_.a, i); }
  void b(std::string_view mark, std::uint32_t j) { event(kAdded, mark, part_.b, j); }
  void same(std::string_view mark, std::uint32_t i) { event({}, mark, part_.a, i); }

 private:
  void event(std::string_view colour, std::string_view mark, const Sequence& s, std::uint32_t i) {
    std::string& label = labels_[s.tokens[i]];
    if (label.empty()) label = token_label(table_.text(s.tokens[i]));
    const bool many = !s.repeats.empty() && s.repeats[i] > 1;
    line(colour, mark, label, many ? fmt::format("  (x{})", s.repeats[i]) : std::string());
  }
  void line(std::string_view colour, std::string_view mark, std::string_view text,
            std::string_view behind = {}) {
    const bool coloured = colour_ && !colour.empty();
    if (coloured) out_ += colour;
    out_ += mark;
    out_ += text;
    out_ += behind;
    if (coloured) out_ += kPlain;
    out_ += '\n';
  }
  std::string& out_;
  const Part& part_;
  const TokenTable& table_;
  bool colour_;
  std::vector<std::string> labels_;  // a label is made once, however often its event comes
};

/// "17,3": where a block stands; an empty one stands behind the line before it.
std::string range(std::uint32_t at, std::uint32_t length) {
  if (length == 1) return fmt::format("{}", at + 1);
  return fmt::format("{},{}", length == 0 ? at : at + 1, length);
}
/// "17,19": first and last.
std::string from_to(std::uint32_t at, std::uint32_t length) {
  return length < 2 ? fmt::format("{}", length == 0 ? at : at + 1)
                    : fmt::format("{},{}", at + 1, at + length);
}

/// A change is all edits up to the next equal events; its removals are shown before its additions.
struct Change {
  std::uint32_t a, a_length, b, b_length;
};
template <class OnSame, class OnChange>
void walk(const Hunk& hunk, OnSame on_same, OnChange on_change) {
  Change change{0, 0, 0, 0};
  bool open = false;
  for (const EditRun& run : hunk.runs) {
    if (run.kind == EditKind::same) {
      if (open) on_change(change);
      open = false;
      on_same(run);
      continue;
    }
    if (!open) change = {run.a, 0, run.b, 0};
    open = true;
    if (run.kind != EditKind::inserted) change.a_length += run.length;
    if (run.kind != EditKind::deleted) change.b_length += run.length;
  }
  if (open) on_change(change);
}

void append_unified(std::string& out, const Part& part, const TokenTable& table,
                    const ReportOptions& options) {
  Lines lines(out, part, table, options.colour);
  for (const Hunk& hunk : make_hunks(part.script, options.context)) {
    lines.place(
        fmt::format("@@ -{} +{} @@", range(hunk.a, hunk.a_length), range(hunk.b, hunk.b_length)));
    walk(
        hunk,
        [&](const EditRun& run) {
          for (std::uint32_t n = 0; n < run.length; ++n) lines.same(" ", run.a + n);
        },
        [&](const Change& c) {
          for (std::uint32_t n = 0; n < c.a_length; ++n) lines.a("-", c.a + n);
          for (std::uint32_t n = 0; n < c.b_length; ++n) lines.b("+", c.b + n);
        });
  }
}

/// One side of a context hunk; left out where nothing changes on it.
template <class OnChange>
void append_side(Lines& lines, const Hunk& hunk, bool changes, OnChange on_change) {
  if (!changes) return;
  walk(
      hunk,
      [&](const EditRun& run) {
        for (std::uint32_t n = 0; n < run.length; ++n) lines.same("  ", run.a + n);
      },
      on_change);
}

void append_context(std::string& out, const Part& part, const TokenTable& table,
                    const ReportOptions& options) {
  Lines lines(out, part, table, options.colour);
  for (const Hunk& hunk : make_hunks(part.script, options.context)) {
    bool removes = false;
    bool adds = false;
    for (const EditRun& run : hunk.runs) {
      removes = removes || run.kind == EditKind::deleted || run.kind == EditKind::replaced;
      adds = adds || run.kind == EditKind::inserted || run.kind == EditKind::replaced;
    }
    lines.place("***************");
    lines.place(fmt::format("*** {} ****", from_to(hunk.a, hunk.a_length)));
    append_side(lines, hunk, removes, [&](const Change& c) {
      for (std::uint32_t n = 0; n < c.a_length; ++n) lines.a(c.b_length > 0 ? "! " : "- ", c.a + n);
    });
    lines.place(fmt::format("--- {} ----", from_to(hunk.b, hunk.b_length)));
    append_side(lines, hunk, adds, [&](const Change& c) {
      for (std::uint32_t n = 0; n < c.b_length; ++n) lines.b(c.a_length > 0 ? "! " : "+ ", c.b + n);
    });
  }
}

std::string at(const Sequence& s, std::size_t i) {
  return fmt::format("{} ({})", s.position(i) + 1,
                     seconds_text(static_cast<std::int64_t>(s.ns[i])));
}

void append_local(std::string& out, const Part& part) {
  if (part.local_skipped) {
    out += fmt::format("local alignment: not made, {:.1e} cells; --local 1 makes it\n",
                       static_cast<double>(part.a.size()) * static_cast<double>(part.b.size()));
    return;
  }
  for (const LocalAlignment& l : part.local) {
    std::uint32_t same = 0;
    for (const EditRun& run : l.script) same += run.kind == EditKind::same ? run.length : 0;
    out +=
        fmt::format("local alignment: score {}: events {} to {} of a, {} to {} of b, {} the same\n",
                    l.score, at(part.a, l.a_begin), at(part.a, l.a_end - 1), at(part.b, l.b_begin),
                    at(part.b, l.b_end - 1), same);
  }
}

void append_times(std::string& out, const Part& part, const TokenTable& table) {
  const auto label = [&](std::size_t i) { return token_label(table.text(part.a.tokens[i])); };
  for (const Shift& s : part.time.steps)
    out += fmt::format("time: {} {} than in a: {} at {} of a, {} of b\n",
                       seconds_text(std::abs(s.step)), s.step > 0 ? "later" : "earlier", label(s.a),
                       at(part.a, s.a), at(part.b, s.b));
  for (const Shift& s : part.time.moves)
    out += fmt::format("moved: {} from {} in a to {} in b\n", label(s.a), at(part.a, s.a),
                       at(part.b, s.b));
  if (part.time.move_count > part.time.moves.size())
    out += fmt::format("moved: {} events more\n", part.time.move_count - part.time.moves.size());
}

}  // namespace

std::string seconds_text(std::int64_t ns, bool sign) {
  const std::uint64_t size =
      ns < 0 ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
  return fmt::format("{}{}.{:06} s",
                     ns < 0 ? "-"
                     : sign ? "+"
                            : "",
                     size / 1'000'000'000, size % 1'000'000'000 / 1000);
}

std::string rules_text(const ReportOptions& options) {
  const auto list = [](const std::vector<std::string>& words, const char* none) {
    return words.empty() ? none : escape_for_terminal(fmt::format("{}", fmt::join(words, ",")));
  };
  return fmt::format("ops {}; rules {}{}", list(options.ops, "all"), list(options.rules, "none"),
                     options.by_process ? "; by process" : "");
}

std::string run_text(const Run& run, std::size_t events) {
  std::string text = fmt::format("{} events, {}", events, trace::format_name(run.header.format));
  if (!run.header.host.empty()) text += ", " + escape_for_terminal(run.header.host);
  if (run.header.rank) text += fmt::format(", rank {}", *run.header.rank);
  if (run.header.start_unix_ns != 0) text += ", " + trace::utc_time_text(run.header.start_unix_ns);
  if (!run.complete()) text += ", incomplete";
  return text;
}

std::string text_report(const Comparison& c, const TokenTable& table,
                        const ReportOptions& options) {
  const bool context = options.style == ScriptStyle::context;
  std::string out;
  out += fmt::format("{} {}\t{}\n", context ? "***" : "---", escape_for_terminal(c.a.name),
                     run_text(c.a, c.a_events));
  out += fmt::format("{} {}\t{}\n", context ? "---" : "+++", escape_for_terminal(c.b.name),
                     run_text(c.b, c.b_events));
  for (const Part& part : c.parts) {
    if (!part.name.empty() && part.distance() > 0)
      out += fmt::format("process {}: distance {} of {} and {} events\n",
                         escape_for_terminal(part.name), part.distance(), part.a.size(),
                         part.b.size());
    if (options.style == ScriptStyle::unified) append_unified(out, part, table, options);
    if (context) append_context(out, part, table, options);
  }
  out += fmt::format(
      "distance {}: {} the same, {} replaced, {} deleted, {} inserted; normalised {:.6f}, "
      "similarity {:.6f}\n",
      c.distance(), c.same, c.replaced, c.deleted, c.inserted, c.normalised(), c.similarity());
  out += fmt::format("compared: {}\n", rules_text(options));
  if (options.by_process) return out;
  for (const Part& part : c.parts) {
    append_local(out, part);
    append_times(out, part, table);
  }
  return out;
}

}  // namespace heddle::diff
