// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <cstdlib>

#include "base/escape.hpp"
#include "record/diff/report.hpp"

namespace heddle::diff {
namespace {

// Edit scripts as GNU diff writes them (diffutils manual, "Unified Format" and "Context Format"), a
// line being an event.

/// Colours of GNU diff's --color.
constexpr std::string_view kRemoved = "\x1b[31m", kAdded = "\x1b[32m", kPlace = "\x1b[36m",
                           kPlain = "\x1b[0m";

/// Equal events, or all edits up to the next equal one; removals are shown before additions.
struct Group {
  bool same = true;
  std::uint32_t a = 0, a_length = 0, b = 0, b_length = 0;
};
std::vector<Group> groups_of(const Hunk& hunk) {
  std::vector<Group> groups;
  for (const EditRun& run : hunk.runs) {
    const bool same = run.kind == EditKind::same;
    if (groups.empty() || same || groups.back().same) groups.push_back({same, run.a, 0, run.b, 0});
    if (run.kind != EditKind::inserted) groups.back().a_length += run.length;
    if (run.kind != EditKind::deleted) groups.back().b_length += run.length;
  }
  return groups;
}

/// "17,3": a block's first line and length; for an empty block, the line before it.
std::string range(std::uint32_t at, std::uint32_t length) {
  if (length == 1) return fmt::format("{}", at + 1);
  return fmt::format("{},{}", length == 0 ? at : at + 1, length);
}
/// "17,19": first and last.
std::string from_to(std::uint32_t at, std::uint32_t length) {
  return length < 2 ? fmt::format("{}", length == 0 ? at : at + 1)
                    : fmt::format("{},{}", at + 1, at + length);
}

class Script {
 public:
  Script(std::string& out, const Part& part, const TokenTable& table, bool colour)
      : out_(out), part_(part), table_(table), colour_(colour), labels_(table.size()) {}

  void unified(const Hunk& hunk) {
    place(fmt::format("@@ -{} +{} @@", range(hunk.a, hunk.a_length), range(hunk.b, hunk.b_length)));
    for (const Group& g : groups_of(hunk)) {
      if (g.same) {
        events({}, " ", part_.a, g.a, g.a_length);
      } else {
        events(kRemoved, "-", part_.a, g.a, g.a_length);
        events(kAdded, "+", part_.b, g.b, g.b_length);
      }
    }
  }
  void context(const Hunk& hunk) {
    const auto groups = groups_of(hunk);
    // A side without changes is left out.
    const auto side = [&](const Sequence& s, auto at, auto length, auto other_length,
                          std::string_view colour, const char* mark) {
      if (std::none_of(groups.begin(), groups.end(),
                       [&](const Group& g) { return !g.same && g.*length > 0; }))
        return;
      for (const Group& g : groups)
        events(g.same ? "" : colour,
               g.same                ? "  "
               : g.*other_length > 0 ? "! "
                                     : mark,
               s, g.*at, g.*length);
    };
    place("***************");
    place(fmt::format("*** {} ****", from_to(hunk.a, hunk.a_length)));
    side(part_.a, &Group::a, &Group::a_length, &Group::b_length, kRemoved, "- ");
    place(fmt::format("--- {} ----", from_to(hunk.b, hunk.b_length)));
    side(part_.b, &Group::b, &Group::b_length, &Group::a_length, kAdded, "+ ");
  }

 private:
  void place(std::string_view text) { line(kPlace, "", text, ""); }
  void events(std::string_view colour, std::string_view mark, const Sequence& s,
              std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t i = first; i < first + count; ++i) {
      std::string& label = labels_[s.tokens[i]];
      if (label.empty()) label = token_label(table_.text(s.tokens[i]));
      const bool many = !s.repeats.empty() && s.repeats[i] > 1;
      line(colour, mark, label, many ? fmt::format("  (x{})", s.repeats[i]) : std::string());
    }
  }
  void line(std::string_view colour, std::string_view mark, std::string_view text,
            std::string_view behind) {
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
  std::vector<std::string> labels_;  // by token; empty: not made yet
};

/// "1.234567 s".
std::string seconds(std::uint64_t ns) {
  return fmt::format("{}.{:06} s", ns / 1'000'000'000, ns % 1'000'000'000 / 1000);
}

/// What was compared.
std::string rules_line(const ReportOptions& options) {
  const auto list = [](const std::vector<std::string>& words, const char* none) {
    return words.empty() ? none : escape_for_terminal(fmt::format("{}", fmt::join(words, ",")));
  };
  return fmt::format("compared: ops {}; rules {}{}\n", list(options.ops, "all"),
                     list(options.rules, "none"), options.compare.by_process ? "; by process" : "");
}

std::string run_line(const Run& run, std::size_t events) {
  std::string text = fmt::format("{}\t{} events, {}", escape_for_terminal(run.name), events,
                                 trace::format_name(run.header.format));
  if (!run.header.host.empty()) text += ", " + escape_for_terminal(run.header.host);
  if (run.header.rank) text += fmt::format(", rank {}", *run.header.rank);
  if (run.header.start_unix_ns != 0) text += ", " + trace::utc_time_text(run.header.start_unix_ns);
  if (!run.complete()) text += ", incomplete";
  return text + "\n";
}

std::string at(const Sequence& s, std::size_t i) {
  return fmt::format("{} ({})", s.position(i) + 1, seconds(s.ns[i]));
}

void append_local(std::string& out, const Part& part) {
  if (part.local_skipped)
    out += fmt::format("local alignment: not made, {:.1e} cells; --local 1 makes it\n",
                       static_cast<double>(part.a.size()) * static_cast<double>(part.b.size()));
  for (const LocalAlignment& l : part.local) {
    Counts counts;
    counts.add(l.script);
    out +=
        fmt::format("local alignment: score {}: events {} to {} of a, {} to {} of b, {} the same\n",
                    l.score, at(part.a, l.a_begin), at(part.a, l.a_end - 1), at(part.b, l.b_begin),
                    at(part.b, l.b_end - 1), counts.same);
  }
}

void append_times(std::string& out, const Part& part, const TokenTable& table) {
  const auto label = [&](std::size_t i) { return token_label(table.text(part.a.tokens[i])); };
  for (const Shift& s : part.time.steps)
    out +=
        fmt::format("time: {} {} than in a: {} at {} of a, {} of b\n",
                    seconds(static_cast<std::uint64_t>(std::abs(s.step))),
                    s.step > 0 ? "later" : "earlier", label(s.a), at(part.a, s.a), at(part.b, s.b));
  for (const Shift& s : part.time.moves)
    out += fmt::format("moved: {} from {} in a to {} in b\n", label(s.a), at(part.a, s.a),
                       at(part.b, s.b));
  if (part.time.move_count > part.time.moves.size())
    out += fmt::format("moved: {} events more\n", part.time.move_count - part.time.moves.size());
}

/// Draws the tree as a tree of directories; a joint shows its height.
void draw(std::string& out, const Matrix& m, std::size_t node, const std::string& lead,
          std::string_view branch, std::string_view below) {
  out += lead;
  out += branch;
  if (node < m.size()) {
    out += fmt::format("{} {}\n", node + 1, escape_for_terminal(m.runs[node].name));
    return;
  }
  const Joint& joint = m.tree[node - m.size()];
  out += fmt::format("{:.4g}\n", joint.height);
  const std::string next = lead + std::string(below);
  draw(out, m, joint.left, next, "├─ ", "│  ");
  draw(out, m, joint.right, next, "└─ ", "   ");
}

}  // namespace

std::string text_report(const Comparison& c, const TokenTable& table,
                        const ReportOptions& options) {
  const bool context = options.style == ScriptStyle::context;
  std::string out = (context ? "*** " : "--- ") + run_line(c.a, c.a_events);
  out += (context ? "--- " : "+++ ") + run_line(c.b, c.b_events);
  for (const Part& part : c.parts) {
    if (!part.name.empty() && part.distance() > 0)
      out += fmt::format("process {}: distance {} of {} and {} events\n",
                         escape_for_terminal(part.name), part.distance(), part.a.size(),
                         part.b.size());
    if (options.style == ScriptStyle::none) continue;
    Script script(out, part, table, options.colour);
    for (const Hunk& hunk : make_hunks(part.script, options.context))
      context ? script.context(hunk) : script.unified(hunk);
  }
  out += fmt::format(
      "distance {}: {} the same, {} replaced, {} deleted, {} inserted; normalised {:.6f}, "
      "similarity {:.6f}\n",
      c.distance(), c.same, c.replaced, c.deleted, c.inserted, c.normalised(), c.similarity());
  out += rules_line(options);
  if (options.compare.by_process) return out;
  for (const Part& part : c.parts) {
    append_local(out, part);
    append_times(out, part, table);
  }
  return out;
}

std::string text_report(const Matrix& m, const TokenTable&, const ReportOptions& options) {
  const std::size_t label = fmt::formatted_size("{}", m.size());
  const std::size_t width = std::max(fmt::formatted_size("{}", m.greatest()), label) + 1;
  std::string out = fmt::format("{:>{}}", "", label);
  for (std::size_t j = 0; j < m.size(); ++j) out += fmt::format("{:>{}}", j + 1, width);
  out += '\n';
  for (std::size_t i = 0; i < m.size(); ++i) {
    out += fmt::format("{:>{}}", i + 1, label);
    for (std::size_t j = 0; j < m.size(); ++j) out += fmt::format("{:>{}}", m.at(i, j), width);
    out += "  " + run_line(m.runs[i], m.runs[i].sequence.size());
  }
  out += "tree (mean distance where branches join):\n";
  draw(out, m, m.size() + m.tree.size() - 1, "", "", "");
  for (const std::size_t i : m.outliers)
    out += fmt::format("outlier: {}, {} edits from its nearest\n",
                       escape_for_terminal(m.runs[i].name), m.lonely[i]);
  if (m.outliers.empty()) out += "outliers: none\n";
  return out + rules_line(options);
}

std::string text_report(const BaselineVerdict& v, const TokenTable& table,
                        const ReportOptions& options) {
  std::string out;
  for (std::size_t i = 0; i < v.known.size(); ++i)
    out +=
        fmt::format("{:>8}  {}", v.distance[i], run_line(v.known[i], v.known[i].sequence.size()));
  constexpr std::size_t kShown = 20;
  const auto list = [&](const std::vector<Token>& tokens, const char* what) {
    for (std::size_t i = 0; i < std::min(tokens.size(), kShown); ++i)
      out += fmt::format("{}: {}\n", what, token_label(table.text(tokens[i])));
    if (tokens.size() > kShown) out += fmt::format("{}: {} more\n", what, tokens.size() - kShown);
  };
  list(v.never_seen, "in no known run");
  list(v.always_missing, "in every known run, not here");
  out += fmt::format("{}: {}: {} from {}, the nearest; known runs are within {} of one another{}\n",
                     escape_for_terminal(v.fresh.name), v.outside() ? "outside" : "inside",
                     v.distance[v.nearest], escape_for_terminal(v.known[v.nearest].name), v.usual,
                     v.limit != v.usual ? fmt::format("; {} are allowed", v.limit) : "");
  if (v.known.size() == 1) out += "with one known run, any difference is outside\n";
  return out + rules_line(options);
}

}  // namespace heddle::diff
