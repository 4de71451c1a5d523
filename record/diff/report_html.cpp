// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/escape.hpp"
#include "record/diff/matrix.hpp"
#include "record/diff/page/scripts.hpp"

namespace heddle::diff {

namespace {

/// Control bytes are errors in HTML: they are shown escaped.
std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : escape_for_terminal(text))
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

/// A whole HTML page that needs no other file: the data as JSON in it, the style, `script`, and a
/// policy that forbids it to load anything. Data never becomes markup: the scripts set text only,
/// and `<` cannot occur in the JSON. When drawn, `data-state` of <html> is "ready", after an error
/// "failed".
std::string make_page(std::string_view title, const nlohmann::ordered_json& data,
                      std::string_view script) {
  // `</script` and `<!--` would end or change the element (HTML standard, "script data state").
  std::string json;
  for (const char c : data.dump(-1, ' ', true)) json += c == '<' ? "\\u003c" : std::string(1, c);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\" data-state=\"drawing\">\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n";
  out += fmt::format("<title>{}</title>\n<style>{}</style>\n", html_text(title), kPageStyle);
  out +=
      "<body>\n<main id=\"main\"><noscript>This page draws itself with "
      "JavaScript.</noscript></main>\n<div id=\"tip\" hidden></div>\n"
      "<script type=\"application/json\" id=\"data\">" +
      json + "</script>\n";
  out += fmt::format("<script>\n{}\n{}</script>\n</body>\n</html>\n", kCommonScript, script);
  return out;
}

using nlohmann::ordered_json;

// A browser draws this much without a pause; the page says what it left out.
constexpr std::size_t kMarks = 20'000;  // events in a timeline
constexpr std::size_t kJoins = 4'000;   // events joined across
constexpr std::size_t kRows = 4'000;    // of the script
constexpr std::size_t kRuns = 5'000;    // of the path
constexpr std::size_t kParts = 50;      // processes

/// Labels are stored once and named by number.
class Labels {
 public:
  explicit Labels(const TokenTable& table) : table_(table) {}
  std::size_t operator()(Token token) {
    const auto [it, fresh] = numbers_.emplace(token, list_.size());
    if (fresh) list_.push_back(token_label(table_.text(token)));
    return it->second;
  }
  ordered_json take() { return std::move(list_); }

 private:
  const TokenTable& table_;
  std::unordered_map<Token, std::size_t> numbers_;
  ordered_json list_ = ordered_json::array();
};

std::uint64_t micro(const Sequence& s, std::size_t i) { return s.ns[i] / 1000; }

/// One side's events with what became of them; every k-th of those that are the same when there are
/// too many, and of the edits then too.
ordered_json side_json(const Sequence& s, const std::vector<EditRun>& script, bool is_a,
                       Labels& labels) {
  std::size_t edits = 0;
  for (const EditRun& run : script) edits += run.kind == EditKind::same ? 0 : run.length;
  const std::size_t thin_same = s.size() / kMarks + 1;
  const std::size_t thin_edits = edits / kMarks + 1;
  ordered_json t, label, kind, n;
  t = label = kind = n = ordered_json::array();
  std::size_t met = 0;
  for (const EditRun& run : script) {
    if (run.kind == (is_a ? EditKind::inserted : EditKind::deleted)) continue;
    const std::size_t thin = run.kind == EditKind::same ? thin_same : thin_edits;
    for (std::size_t k = 0; k < run.length; ++k, ++met) {
      if (met % thin != 0) continue;
      const std::size_t i = (is_a ? run.a : run.b) + k;
      t.push_back(micro(s, i));
      label.push_back(labels(s.tokens[i]));
      kind.push_back(static_cast<int>(run.kind));
      n.push_back(i);
    }
  }
  return {{"t", t}, {"label", label}, {"kind", kind}, {"n", n}};
}

ordered_json joined_json(const Part& part) {
  ordered_json list = ordered_json::array();
  const std::size_t thin = part.same / kJoins + 1;
  std::size_t met = 0;
  for (const EditRun& run : part.script)
    for (std::size_t k = 0; run.kind == EditKind::same && k < run.length; ++k, ++met)
      if (met % thin == 0) list.push_back({micro(part.a, run.a + k), micro(part.b, run.b + k)});
  return list;
}

ordered_json event_json(const Sequence& s, std::size_t i, Labels& labels) {
  return {s.position(i), micro(s, i), labels(s.tokens[i]), s.repeats.empty() ? 1 : s.repeats[i]};
}

/// Rows of the aligned script; equal events between blocks are one row with their number.
ordered_json rows_json(const Part& part, std::uint32_t context, Labels& labels, bool& cut) {
  ordered_json rows = ordered_json::array();
  std::size_t next = 0;  // first event of a that no row has yet
  for (const Hunk& hunk : make_hunks(part.script, context)) {
    if (hunk.a > next) rows.push_back(hunk.a - next);
    for (const EditRun& run : hunk.runs)
      for (std::uint32_t k = 0; k < run.length; ++k) {
        ordered_json row{static_cast<int>(run.kind), nullptr, nullptr};
        if (run.kind != EditKind::inserted) row[1] = event_json(part.a, run.a + k, labels);
        if (run.kind != EditKind::deleted) row[2] = event_json(part.b, run.b + k, labels);
        rows.push_back(std::move(row));
      }
    next = hunk.a + hunk.a_length;
    if ((cut = rows.size() >= kRows)) return rows;
  }
  if (part.a.size() > next) rows.push_back(part.a.size() - next);
  return rows;
}

ordered_json ops_json(const Part& part, const TokenTable& table) {
  std::map<trace::Op, std::pair<std::size_t, std::size_t>> counts;
  for (const Token t : part.a.tokens) ++counts[table.text(t).op].first;
  for (const Token t : part.b.tokens) ++counts[table.text(t).op].second;
  ordered_json list = ordered_json::array();
  for (const auto& [op, count] : counts)
    list.push_back({trace::op_name(op), count.first, count.second});
  return list;
}

ordered_json shifts_json(const Part& part, const std::vector<Shift>& shifts, Labels& labels) {
  ordered_json list = ordered_json::array();
  for (const Shift& s : shifts)
    list.push_back({{"label", labels(part.a.tokens[s.a])},
                    {"step", s.step / 1000},
                    {"at", micro(part.a, s.a)},
                    {"bt", micro(part.b, s.b)}});
  return list;
}

ordered_json local_json(const Part& part) {
  ordered_json list = ordered_json::array();
  for (const LocalAlignment& l : part.local)
    list.push_back({{"score", l.score},
                    {"a", {l.a_begin, l.a_end}},
                    {"b", {l.b_begin, l.b_end}},
                    {"at", {micro(part.a, l.a_begin), micro(part.a, l.a_end - 1)}},
                    {"bt", {micro(part.b, l.b_begin), micro(part.b, l.b_end - 1)}}});
  return list;
}

/// The script as lines from cell to cell; a long one as a coarser line along it.
ordered_json path_json(const Part& part) {
  ordered_json path = ordered_json::array();
  const std::size_t thin = part.script.size() / kRuns + 1;
  for (std::size_t i = 0; i < part.script.size(); i += thin) {
    const EditRun& run = part.script[i];
    const std::size_t next = i + thin;
    const bool last = next >= part.script.size();
    path.push_back({static_cast<int>(thin > 1 ? EditKind::same : run.kind), run.a, run.b,
                    last ? part.a.size() : part.script[next].a,
                    last ? part.b.size() : part.script[next].b});
  }
  return path;
}

ordered_json part_json(const Part& part, const TokenTable& table, const ReportOptions& options,
                       Labels& labels, ordered_json& notes) {
  bool cut = false;
  ordered_json j{{"name", to_json_text(part.name)},
                 {"size", {part.a.size(), part.b.size()}},
                 {"a", side_json(part.a, part.script, true, labels)},
                 {"b", side_json(part.b, part.script, false, labels)},
                 {"joined", joined_json(part)},
                 {"path", path_json(part)},
                 {"local", local_json(part)},
                 {"steps", shifts_json(part, part.time.steps, labels)},
                 {"moves", shifts_json(part, part.time.moves, labels)},
                 {"ops", ops_json(part, table)},
                 {"rows", rows_json(part, options.context, labels, cut)}};
  if (cut) notes.push_back("The script is cut: fs-diff's text output has all of it.");
  if (std::max(part.a.size(), part.b.size()) > kMarks)
    notes.push_back("The drawings show a sample of the events.");
  if (part.local_skipped)
    notes.push_back("Local alignment was not made: fs-diff --local 1 makes it.");
  return j;
}

}  // namespace

std::string html_report(const Comparison& c, const TokenTable& table,
                        const ReportOptions& options) {
  Labels labels(table);
  ordered_json notes = ordered_json::array();
  ordered_json parts = ordered_json::array();
  for (const Part& part : c.parts) {
    if (options.by_process && part.distance() == 0) continue;
    if (parts.size() == kParts) {
      notes.push_back("Only the first 50 processes that differ are drawn.");
      break;
    }
    parts.push_back(part_json(part, table, options, labels, notes));
  }
  if (parts.empty()) notes.push_back("All processes are the same.");
  const ordered_json data{
      {"a", {{"name", to_json_text(c.a.name)}, {"text", run_text(c.a, c.a_events)}}},
      {"b", {{"name", to_json_text(c.b.name)}, {"text", run_text(c.b, c.b_events)}}},
      {"distance", c.distance()},
      {"similarity", c.similarity()},
      {"normalised", c.normalised()},
      {"counts", {c.same, c.replaced, c.deleted, c.inserted}},
      {"rules", rules_text(options)},
      {"notes", std::move(notes)},
      {"labels", labels.take()},
      {"parts", std::move(parts)}};
  return make_page("fs-diff: " + c.a.name + " and " + c.b.name, data, kCompareScript);
}

std::string matrix_html(const Matrix& m, const ReportOptions& options) {
  ordered_json runs = ordered_json::array(), distances = ordered_json::array(),
               tree = ordered_json::array();
  for (std::size_t i = 0; i < m.size(); ++i) {
    runs.push_back({{"name", to_json_text(m.runs[i].name)},
                    {"text", run_text(m.runs[i], m.runs[i].sequence.size())},
                    {"lonely", m.lonely[i]}});
    ordered_json row = ordered_json::array();
    for (std::size_t k = 0; k < m.size(); ++k) row.push_back(m.at(i, k));
    distances.push_back(std::move(row));
  }
  for (const Joint& joint : m.tree)
    tree.push_back({{"left", joint.left}, {"right", joint.right}, {"height", joint.height}});
  const ordered_json data{{"runs", std::move(runs)},     {"distances", std::move(distances)},
                          {"tree", std::move(tree)},     {"order", m.order()},
                          {"outliers", m.outliers},      {"max", m.greatest()},
                          {"rules", rules_text(options)}};
  return make_page("fs-diff: " + std::to_string(m.size()) + " runs", data, kMatrixScript);
}

}  // namespace heddle::diff
