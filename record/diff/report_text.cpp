// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>
#include <map>

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

class ScriptWriter {
 public:
  ScriptWriter(std::string& out, const Part& part, const TokenTable& table, bool colour)
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
  constexpr const char* kBy[] = {"", "; by process", "; by thread"};  // By
  return fmt::format("compared: ops {}; rules {}{}\n", list(options.ops, "all"),
                     list(options.rules, "none"),
                     kBy[static_cast<std::size_t>(options.compare.by)]);
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

/// Files of one kind, a line for each directory and process.
void append_files(std::string& out, std::string_view title, const std::vector<FileChange>& files,
                  std::string_view found) {
  constexpr std::size_t kLines = 12, kNames = 6;
  if (files.empty()) return;
  struct Place {
    std::string_view directory, process;
    std::size_t begin, end, found;
  };
  std::vector<Place> places;  // `files` is sorted so
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto directory = files[i].path.substr(0, files[i].path.rfind('/') + 1);
    if (places.empty() || places.back().directory != directory ||
        places.back().process != files[i].process)
      places.push_back({directory, files[i].process, i, i, 0});
    ++places.back().end;
    places.back().found += files[i].found;
  }
  std::stable_sort(places.begin(), places.end(), [](const Place& x, const Place& y) {
    return x.end - x.begin > y.end - y.begin;
  });
  out += fmt::format("{}: {}\n", title, files.size());
  for (std::size_t g = 0; g < std::min(places.size(), kLines); ++g) {
    const Place& place = places[g];
    out += fmt::format("  {}", escape_for_terminal(place.directory));
    if (!place.process.empty()) out += fmt::format(" ({})", escape_for_terminal(place.process));
    out += ':';
    for (std::size_t i = place.begin; i < std::min(place.end, place.begin + kNames); ++i)
      out += " " + escape_for_terminal(files[i].path.substr(place.directory.size()));
    if (place.end - place.begin > kNames)
      out += fmt::format(" and {} more", place.end - place.begin - kNames);
    if (place.found > 0) out += fmt::format("; {} {}", place.found, found);
    out += '\n';
  }
  if (places.size() > kLines)
    out += fmt::format("  and {} directories more\n", places.size() - kLines);
}

/// "a.txt", or "a.txt and 2 alike".
std::string group_name(const Matrix& m, const std::vector<std::size_t>& group) {
  const std::string name = escape_for_terminal(m.runs[group[0]].name);
  return group.size() == 1 ? name : fmt::format("{} and {} alike", name, group.size() - 1);
}

/// Draws the tree as a tree of directories. A joint shows its height, and is at one of ten
/// steps of the greatest height: joints of one step are one, so the tree is ten levels deep at
/// most.
class TreeDrawing {
 public:
  TreeDrawing(std::string& out, const Matrix& m) : out_(out), m_(m) {
    for (std::size_t g = 0; g < m.groups.size(); ++g) group_of_[m.groups[g][0]] = g;
  }
  void draw(std::size_t node, const std::string& lead, std::string_view branch,
            std::string_view below) {
    const double height = height_of(node);
    out_ += fmt::format("{}{}", lead, branch);
    if (height == 0) {  // equal runs
      const std::size_t group = group_of_.at(first_of(node));
      out_ += fmt::format("{} {}\n", group + 1, group_name(m_, m_.groups[group]));
      return;
    }
    out_ += fmt::format("{:.4g}\n", height);
    std::vector<std::size_t> children;
    add_children(node, children);
    const std::string next = lead + std::string(below);
    for (const std::size_t child : children)
      child == children.back() ? draw(child, next, "└─ ", "   ") : draw(child, next, "├─ ", "│  ");
  }

 private:
  double height_of(std::size_t node) const {
    return node < m_.size() ? 0 : m_.tree[node - m_.size()].height;
  }
  int step_of(std::size_t node) const {
    return static_cast<int>(std::ceil(10 * height_of(node) / m_.tree.back().height));
  }
  std::size_t first_of(std::size_t node) const {
    if (node < m_.size()) return node;
    const Joint& joint = m_.tree[node - m_.size()];
    return std::min(first_of(joint.left), first_of(joint.right));
  }
  void add_children(std::size_t node, std::vector<std::size_t>& children) const {
    const Joint& joint = m_.tree[node - m_.size()];
    for (const std::size_t child : {joint.left, joint.right})
      if (step_of(child) == step_of(node))
        add_children(child, children);
      else
        children.push_back(child);
  }
  std::string& out_;
  const Matrix& m_;
  std::map<std::size_t, std::size_t> group_of_;  // by its first run
};

}  // namespace

std::string text_report(const Comparison& c, const TokenTable& table,
                        const ReportOptions& options) {
  const bool context = options.style == ScriptStyle::context;
  std::string out = (context ? "*** " : "--- ") + run_line(c.a, c.a_events);
  out += (context ? "--- " : "+++ ") + run_line(c.b, c.b_events);
  out += fmt::format(
      "distance {}{}: {} the same, {} replaced, {} deleted, {} inserted; normalised {:.6f}, "
      "similarity {:.6f}\n",
      c.exact() ? "" : "at most ", c.distance(), c.same, c.replaced, c.deleted, c.inserted,
      c.normalised(), c.similarity());
  out += rules_line(options);
  if (c.differs_in_order())
    out += "events: the same in another order\n";
  else if (c.distance() > 0)
    out +=
        fmt::format("events: {} only in a, {} only in b, {} in both, of these {} moved\n", c.only_a,
                    c.only_b, c.in_both, c.in_both - std::min<std::size_t>(c.in_both, c.same));
  append_files(out, "files only in a", c.files.only_a, "");
  append_files(out, "files only in b", c.files.only_b, "");
  append_files(out, "newly missed in b", c.files.missed_b, "found in a");
  append_files(out, "missed in a only", c.files.missed_a, "found in b");
  for (const Part& part : c.parts) {
    if (!part.name.empty() && part.distance() > 0)
      out += fmt::format("{} {}: distance {} of {} and {} events\n",
                         options.compare.by == By::thread ? "thread" : "process",
                         escape_for_terminal(part.name), part.distance(), part.a.size(),
                         part.b.size());
    if (options.style == ScriptStyle::none) continue;
    ScriptWriter script(out, part, table, options.colour);
    for (const Hunk& hunk : make_hunks(part.script, options.context))
      context ? script.context(hunk) : script.unified(hunk);
  }
  if (options.compare.by != By::run) return out;
  for (const Part& part : c.parts) {
    append_local(out, part);
    append_times(out, part, table);
  }
  return out;
}

std::string text_report(const Matrix& m, const TokenTable&, const ReportOptions& options) {
  constexpr std::size_t kWidest = 100;  // columns of the terminal, of the matrix alone
  const std::size_t n = m.groups.size();
  const std::size_t label = fmt::formatted_size("{}", n);
  const std::size_t width = std::max(fmt::formatted_size("{}", m.greatest()), label) + 1;
  const bool fits = label + n * width <= kWidest;
  const auto run_of = [&](std::size_t group) { return m.groups[group][0]; };
  std::string out = fmt::format("{:>{}}", "", label);
  for (std::size_t j = 0; fits && j < n; ++j) out += fmt::format("{:>{}}", j + 1, width);
  if (!fits) out += " distance to the nearest; the whole matrix: --json or --html";
  out += '\n';
  for (std::size_t i = 0; i < n; ++i) {
    out += fmt::format("{:>{}}", i + 1, label);
    for (std::size_t j = 0; fits && j < n; ++j)
      out += fmt::format("{:>{}}", m.at(run_of(i), run_of(j)), width);
    std::uint32_t nearest = ~0U;
    for (std::size_t j = 0; j < n; ++j)
      if (j != i) nearest = std::min(nearest, m.at(run_of(i), run_of(j)));
    if (!fits) out += fmt::format("{:>{}}", nearest, width);
    out += fmt::format("  {}\n", group_name(m, m.groups[i]));
  }
  out += "tree (mean distance where branches join):\n";
  TreeDrawing(out, m).draw(m.size() + m.tree.size() - 1, "", "", "");
  for (const std::size_t i : m.outliers)
    out += fmt::format("outlier: {}, {} edits from its nearest, {}\n",
                       escape_for_terminal(m.runs[i].name), m.at(i, m.nearest[i]),
                       escape_for_terminal(m.runs[m.nearest[i]].name));
  if (m.outliers.empty()) out += "outliers: none\n";
  out += rules_line(options);
  for (std::size_t i = 0; i < n; ++i) {
    out +=
        fmt::format("{}: ", i + 1) + run_line(m.runs[run_of(i)], m.runs[run_of(i)].sequence.size());
    for (std::size_t k = 1; k < m.groups[i].size(); ++k)
      out +=
          fmt::format("{:>{}}  {}\n", "=", label, escape_for_terminal(m.runs[m.groups[i][k]].name));
  }
  return out;
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
