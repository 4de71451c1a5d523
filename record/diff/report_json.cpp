// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/escape.hpp"
#include "record/diff/page/scripts.hpp"
#include "record/diff/report.hpp"

namespace heddle::diff {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kKinds[] = {"same", "replaced", "deleted", "inserted"};  // EditKind

ordered_json event_json(const Sequence& s, std::size_t i, const TokenTable& table) {
  const TokenText text = table.text(s.tokens[i]);
  std::array<char, 16> scratch;
  ordered_json j{{"position", s.position(i) + 1},
                 {"ns", s.ns[i]},
                 {"op", trace::op_name(text.op)},
                 {"result", trace::result_name(text.error, scratch)},
                 {"path", to_json_text(text.path)}};
  if (!s.repeats.empty()) j["repeats"] = s.repeats[i];
  return j;
}

ordered_json counts_json(const Counts& c) {
  return {
      {"same", c.same}, {"replaced", c.replaced}, {"deleted", c.deleted}, {"inserted", c.inserted}};
}

ordered_json run_json(const Run& run, std::size_t events) {
  ordered_json j{{"name", to_json_text(run.name)},
                 {"format", trace::format_name(run.header.format)},
                 {"run", run.number},
                 {"runs_in_file", run.runs_in_file},
                 {"complete", run.complete()},
                 {"events", events},
                 {"events_in_run", run.footer.events}};
  if (!run.header.run_id.empty()) j["run_id"] = to_json_text(run.header.run_id);
  if (!run.header.host.empty()) j["host"] = to_json_text(run.header.host);
  if (run.header.rank) j["rank"] = *run.header.rank;
  if (run.header.start_unix_ns != 0) j["start_unix_ns"] = run.header.start_unix_ns;
  return j;
}

ordered_json script_json(const Part& part, const TokenTable& table) {
  ordered_json list = ordered_json::array();
  for (const EditRun& run : part.script) {
    if (run.kind == EditKind::same) continue;
    for (std::size_t n = 0; n < run.length; ++n) {
      ordered_json edit{{"kind", kKinds[static_cast<std::size_t>(run.kind)]}};
      if (run.kind != EditKind::inserted) edit["a"] = event_json(part.a, run.a + n, table);
      if (run.kind != EditKind::deleted) edit["b"] = event_json(part.b, run.b + n, table);
      list.push_back(std::move(edit));
    }
  }
  return list;
}

ordered_json stretch_json(const Sequence& s, std::size_t begin, std::size_t end) {
  return {{"first", s.position(begin) + 1},
          {"last", s.position(end - 1) + 1},
          {"first_ns", s.ns[begin]},
          {"last_ns", s.ns[end - 1]}};
}

ordered_json local_json(const Part& part) {
  if (part.local_skipped) return nullptr;
  ordered_json list = ordered_json::array();
  for (const LocalAlignment& l : part.local) {
    ordered_json j{{"score", l.score},
                   {"a", stretch_json(part.a, l.a_begin, l.a_end)},
                   {"b", stretch_json(part.b, l.b_begin, l.b_end)}};
    Counts counts;
    counts.add(l.script);
    j.update(counts_json(counts));
    list.push_back(std::move(j));
  }
  return list;
}

ordered_json shifts_json(const Part& part, const std::vector<Shift>& shifts, bool steps,
                         const TokenTable& table) {
  ordered_json list = ordered_json::array();
  for (const Shift& s : shifts) {
    ordered_json j{{"a", event_json(part.a, s.a, table)},
                   {"b", event_json(part.b, s.b, table)},
                   {"later_ns", s.later}};
    if (steps) j["step_ns"] = s.step;
    list.push_back(std::move(j));
  }
  return list;
}

/// Local alignments and times of a part.
void put_part(ordered_json& j, const Part& part, const TokenTable& table) {
  j["local"] = local_json(part);
  j["time"] = {{"end_later_ns", part.time.end_later},
               {"steps", shifts_json(part, part.time.steps, true, table)},
               {"moves", shifts_json(part, part.time.moves, false, table)},
               {"move_count", part.time.move_count}};
}

/// What was compared.
void put_rules(ordered_json& j, const ReportOptions& options) {
  j["ops"] = options.ops;
  j["normalisers"] = ordered_json::array();
  for (const std::string& rule : options.rules) j["normalisers"].push_back(to_json_text(rule));
  constexpr const char* kNames[] = {"run", "process", "thread"};  // By
  j["by"] = kNames[static_cast<std::size_t>(options.compare.by)];
}

ordered_json files_json(const FileView& files) {
  const auto list = [](const std::vector<FileChange>& changes, bool missed) {
    ordered_json out = ordered_json::array();
    for (const FileChange& change : changes) {
      ordered_json one{{"path", to_json_text(change.path)}};
      if (!change.process.empty()) one["process"] = to_json_text(change.process);
      if (missed) one["found_by_other"] = change.found;
      out.push_back(std::move(one));
    }
    return out;
  };
  return {{"only_a", list(files.only_a, false)},
          {"only_b", list(files.only_b, false)},
          {"missed_a", list(files.missed_a, true)},
          {"missed_b", list(files.missed_b, true)}};
}

ordered_json totals_json(const Comparison& c, const ReportOptions& options) {
  ordered_json j{{"distance", c.distance()},
                 {"exact", c.exact()},
                 {"normalised_distance", c.normalised()},
                 {"similarity", c.similarity()},
                 {"a", run_json(c.a, c.a_events)},
                 {"b", run_json(c.b, c.b_events)},
                 {"counts", counts_json(c)},
                 {"events", {{"only_a", c.only_a}, {"only_b", c.only_b}, {"in_both", c.in_both}}},
                 {"other_order", c.differs_in_order()},
                 {"files", files_json(c.files)}};
  put_rules(j, options);
  j["scores"] = {{"match", options.compare.scores.match},
                 {"mismatch", -options.compare.scores.mismatch},
                 {"gap_open", -options.compare.scores.gap_open},
                 {"gap_extend", -options.compare.scores.gap_extend}};
  return j;
}

/// The tree in Newick's form, as other programs read it. `above`: the height of the joint above.
std::string newick(const Matrix& m, std::size_t node, double above) {
  std::string name;
  double height = 0;
  if (node < m.size()) {
    name = "'";
    for (const char c : to_json_text(m.runs[node].name))
      name += c == '\'' ? "''" : std::string(1, c);
    name += "'";
  } else {
    const Joint& joint = m.tree[node - m.size()];
    height = joint.height;
    name = "(" + newick(m, joint.left, height) + "," + newick(m, joint.right, height) + ")";
  }
  // Half the distance on either side: the path between two leaves is as long as the joint says.
  return above < 0 ? name + ";" : fmt::format("{}:{:g}", name, (above - height) / 2);
}

ordered_json matrix_json(const Matrix& m, const ReportOptions& options) {
  const auto none = ordered_json::array();
  ordered_json j{{"runs", none}, {"distances", none}, {"normalised", none}};
  for (std::size_t i = 0; i < m.size(); ++i) {
    ordered_json run = run_json(m.runs[i], m.runs[i].sequence.size());
    run["nearest"] = m.nearest[i];
    j["runs"].push_back(std::move(run));
    ordered_json row, normal;
    for (std::size_t k = 0; k < m.size(); ++k) {
      row.push_back(m.at(i, k));
      normal.push_back(m.normalised(i, k));
    }
    j["distances"].push_back(std::move(row));
    j["normalised"].push_back(std::move(normal));
  }
  j["max_distance"] = m.greatest();
  j["groups"] = m.groups;
  j["tree"] = none;
  for (const Joint& joint : m.tree)
    j["tree"].push_back({{"left", joint.left}, {"right", joint.right}, {"height", joint.height}});
  j["newick"] = newick(m, m.size() + m.tree.size() - 1, -1);
  j["order"] = m.order();
  j["outliers"] = none;
  for (const std::size_t i : m.outliers) j["outliers"].push_back(to_json_text(m.runs[i].name));
  put_rules(j, options);
  return j;
}

// The pages. A browser draws this much without a pause; the page notes what it leaves out.
constexpr std::size_t kColumns = 20'000;  // of the alignment, and as many edits
constexpr std::size_t kRows = 4'000;      // of the script
constexpr std::size_t kParts = 50;        // processes

/// An HTML page with the data as JSON, the style, `script`, and a policy that forbids loading
/// anything. Data never becomes markup: the scripts set text only, and the JSON has no `<`. When
/// drawn, `data-state` of <html> is "ready"; after an error, "failed".
std::string make_page(std::string_view title, const ordered_json& data, std::string_view script) {
  // `</script` and `<!--` would end or change the element (HTML standard, "script data state").
  std::string json, shown;
  for (const char c : data.dump(-1, ' ', true)) json += c == '<' ? "\\u003c" : std::string(1, c);
  // Control bytes are errors in HTML.
  for (const char c : escape_for_terminal(title))
    shown += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" data-state=\"drawing\">\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n"
      "<title>{}</title>\n<style>{}</style>\n"
      "<body>\n<main id=\"main\"><noscript>This page draws itself with "
      "JavaScript.</noscript></main>\n<div id=\"tip\" hidden></div>\n"
      "<script type=\"application/json\" id=\"data\">{}</script>\n"
      "<script>\n{}\n{}</script>\n</body>\n</html>\n",
      shown, kPageStyle, json, kCommonScript, script);
}

/// The labels of tokens, each once, by number.
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

/// One event of a script: [kind, a, b], each side [index, microseconds, label, repeats, position]
/// or null.
ordered_json column_json(const Part& part, const EditRun& run, std::size_t n, Labels& labels) {
  const auto side = [&](const Sequence& s, std::size_t i) -> ordered_json {
    return {i, s.ns[i] / 1000, labels(s.tokens[i]), s.repeats.empty() ? 1 : s.repeats[i],
            s.position(i)};
  };
  ordered_json column{static_cast<int>(run.kind), nullptr, nullptr};
  if (run.kind != EditKind::inserted) column[1] = side(part.a, run.a + n);
  if (run.kind != EditKind::deleted) column[2] = side(part.b, run.b + n);
  return column;
}

/// Every k-th of the events that are the same when there are too many, and of the edits.
ordered_json sample_json(const Part& part, Labels& labels) {
  ordered_json list = ordered_json::array();
  const std::size_t thin[] = {part.same / kColumns + 1, part.distance() / kColumns + 1};
  std::size_t met[] = {0, 0};
  for (const EditRun& run : part.script) {
    const std::size_t edits = run.kind != EditKind::same;
    for (std::size_t n = 0; n < run.length; ++n)
      if (met[edits]++ % thin[edits] == 0) list.push_back(column_json(part, run, n, labels));
  }
  return list;
}

/// Rows of the aligned script; equal events between blocks are one row: their number.
ordered_json rows_json(const Part& part, std::uint32_t context, Labels& labels, bool& cut) {
  ordered_json rows = ordered_json::array();
  std::size_t next = 0;  // first event of a without a row
  for (const Hunk& hunk : make_hunks(part.script, context)) {
    if (hunk.a > next) rows.push_back(hunk.a - next);
    for (const EditRun& run : hunk.runs)
      for (std::uint32_t n = 0; n < run.length; ++n)
        rows.push_back(column_json(part, run, n, labels));
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

}  // namespace

std::string json_report(const Comparison& c, const TokenTable& table,
                        const ReportOptions& options) {
  ordered_json j = totals_json(c, options);
  if (options.compare.by != By::run) j["processes"] = ordered_json::array();
  for (const Part& part : c.parts) {
    ordered_json p;
    if (options.compare.by != By::run)
      p = {{"name", to_json_text(part.name)},
           {"distance", part.distance()},
           {"a_events", part.a.size()},
           {"b_events", part.b.size()}};
    p["script"] = script_json(part, table);
    put_part(p, part, table);
    if (options.compare.by != By::run)
      j["processes"].push_back(std::move(p));
    else
      j.update(p);
  }
  return j.dump(2) + "\n";
}

std::string json_report(const Matrix& m, const TokenTable&, const ReportOptions& options) {
  return matrix_json(m, options).dump(2) + "\n";
}

std::string json_report(const BaselineVerdict& v, const TokenTable& table,
                        const ReportOptions& options) {
  const auto none = ordered_json::array();
  ordered_json j{{"outside", v.outside()},
                 {"distance", v.distance[v.nearest]},
                 {"limit", v.limit},
                 {"usual", v.usual},
                 {"nearest", to_json_text(v.known[v.nearest].name)},
                 {"new", to_json_text(v.fresh.name)},
                 {"known", none},
                 {"never_seen", none},
                 {"always_missing", none}};
  for (std::size_t i = 0; i < v.known.size(); ++i)
    j["known"].push_back({{"name", to_json_text(v.known[i].name)},
                          {"events", v.known[i].sequence.size()},
                          {"distance", v.distance[i]}});
  for (const Token t : v.never_seen) j["never_seen"].push_back(token_label(table.text(t)));
  for (const Token t : v.always_missing) j["always_missing"].push_back(token_label(table.text(t)));
  put_rules(j, options);
  return j.dump(2) + "\n";
}

std::string html_report(const Comparison& c, const TokenTable& table,
                        const ReportOptions& options) {
  Labels labels(table);
  ordered_json data = totals_json(c, options);
  ordered_json& notes = data["notes"] = ordered_json::array();
  ordered_json parts = ordered_json::array();
  for (const Part& part : c.parts) {
    if (options.compare.by != By::run && part.distance() == 0) continue;
    if (parts.size() == kParts) {
      notes.push_back("Only the first 50 processes that differ are drawn.");
      break;
    }
    bool cut = false;
    ordered_json p{{"name", to_json_text(part.name)},
                   {"size", {part.a.size(), part.b.size()}},
                   {"sample", sample_json(part, labels)},
                   {"ops", ops_json(part, table)},
                   {"rows", rows_json(part, options.context, labels, cut)}};
    put_part(p, part, table);
    parts.push_back(std::move(p));
    if (cut) notes.push_back("The script is cut: fs-diff's text output has all of it.");
    if (std::max(part.same, part.distance()) > kColumns)
      notes.push_back("The drawings show a sample of the events.");
    if (part.local_skipped)
      notes.push_back("Local alignment was not made: fs-diff --local 1 makes it.");
  }
  if (parts.empty()) notes.push_back("All processes are the same.");
  data["labels"] = labels.take();
  data["parts"] = std::move(parts);
  return make_page("fs-diff: " + c.a.name + " and " + c.b.name, data, kCompareScript);
}

std::string html_report(const Matrix& m, const ReportOptions& options) {
  return make_page(fmt::format("fs-diff: {} runs", m.size()), matrix_json(m, options),
                   kMatrixScript);
}

}  // namespace heddle::diff
