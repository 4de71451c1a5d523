// SPDX-License-Identifier: MIT
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "record/diff/report.hpp"

namespace heddle::diff {
namespace {

using nlohmann::ordered_json;

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

constexpr std::string_view kKinds[] = {"same", "replaced", "deleted", "inserted"};  // EditKind

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
    std::uint32_t counts[4] = {};
    for (const EditRun& run : l.script) counts[static_cast<std::size_t>(run.kind)] += run.length;
    for (std::size_t kind = 0; kind < 4; ++kind) j[std::string(kKinds[kind])] = counts[kind];
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

void put_part(ordered_json& j, const Part& part, const TokenTable& table) {
  j["script"] = script_json(part, table);
  j["local"] = local_json(part);
  j["time"] = {{"end_later_ns", part.time.end_later},
               {"steps", shifts_json(part, part.time.steps, true, table)},
               {"moves", shifts_json(part, part.time.moves, false, table)},
               {"move_count", part.time.move_count}};
}

}  // namespace

void put_rules(ordered_json& j, const ReportOptions& options) {
  j["ops"] = options.ops;
  j["normalisers"] = ordered_json::array();
  for (const std::string& rule : options.rules) j["normalisers"].push_back(to_json_text(rule));
}

std::string json_report(const Comparison& c, const TokenTable& table,
                        const ReportOptions& options) {
  ordered_json j;
  j["distance"] = c.distance();
  j["normalised_distance"] = c.normalised();
  j["similarity"] = c.similarity();
  j["a"] = run_json(c.a, c.a_events);
  j["b"] = run_json(c.b, c.b_events);
  j["counts"] = {
      {"same", c.same}, {"replaced", c.replaced}, {"deleted", c.deleted}, {"inserted", c.inserted}};
  put_rules(j, options);
  j["by"] = options.by_process ? "process" : "run";
  j["scores"] = {{"match", options.scores.match},
                 {"mismatch", -options.scores.mismatch},
                 {"gap_open", -options.scores.gap_open},
                 {"gap_extend", -options.scores.gap_extend}};
  if (!options.by_process) {
    put_part(j, c.parts.at(0), table);
  } else {
    j["processes"] = ordered_json::array();
    for (const Part& part : c.parts) {
      ordered_json p{{"name", to_json_text(part.name)},
                     {"distance", part.distance()},
                     {"a_events", part.a.size()},
                     {"b_events", part.b.size()}};
      put_part(p, part, table);
      j["processes"].push_back(std::move(p));
    }
  }
  return j.dump(2) + "\n";
}

}  // namespace heddle::diff
