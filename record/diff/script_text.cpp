// SPDX-License-Identifier: MIT
// Edit scripts as GNU diff writes them (diffutils manual, "Unified Format" and "Context Format"), a
// line being an event.
#include <fmt/format.h>

#include "record/diff/hunks.hpp"
#include "record/diff/report.hpp"

namespace heddle::diff {
namespace {

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

}  // namespace

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

void append_context(std::string& out, const Part& part, const TokenTable& table,
                    const ReportOptions& options) {
  Lines lines(out, part, table, options.colour);
  for (const Hunk& hunk : make_hunks(part.script, options.context)) {
    bool removes = false;
    bool adds = false;
    walk(
        hunk, [](const EditRun&) {},
        [&](const Change& c) {
          removes = removes || c.a_length > 0;
          adds = adds || c.b_length > 0;
        });
    lines.place("***************");
    lines.place(fmt::format("*** {} ****", from_to(hunk.a, hunk.a_length)));
    // A side on which nothing changes is not written out.
    if (removes)
      walk(
          hunk,
          [&](const EditRun& run) {
            for (std::uint32_t n = 0; n < run.length; ++n) lines.same("  ", run.a + n);
          },
          [&](const Change& c) {
            for (std::uint32_t n = 0; n < c.a_length; ++n)
              lines.a(c.b_length > 0 ? "! " : "- ", c.a + n);
          });
    lines.place(fmt::format("--- {} ----", from_to(hunk.b, hunk.b_length)));
    if (adds)
      walk(
          hunk,
          [&](const EditRun& run) {
            for (std::uint32_t n = 0; n < run.length; ++n) lines.same("  ", run.a + n);
          },
          [&](const Change& c) {
            for (std::uint32_t n = 0; n < c.b_length; ++n)
              lines.b(c.a_length > 0 ? "! " : "+ ", c.b + n);
          });
  }
}

}  // namespace heddle::diff
