// SPDX-License-Identifier: MIT
// A run's header and footer: rare lines, so made for clarity; trace_text.cpp has the frequent ones.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "record/trace/trace_text.hpp"

namespace heddle::trace {
namespace {

using nlohmann::ordered_json;

ordered_json json_list(const std::vector<std::string>& list) {
  ordered_json out = ordered_json::array();
  for (const auto& text : list) out.push_back(to_json_text(text));
  return out;
}

void add_line(std::string& out, std::string_view key, std::string_view value) {
  if (!value.empty()) out += fmt::format("#{}\t{}\n", key, escape_for_terminal(value));
}

}  // namespace

std::string header_text(const RunHeader& h) {
  std::string out = fmt::format("#heddle-trace\t{}\n", kTraceVersion);
  add_line(out, "run", h.run_id);
  // JSON has no raw control bytes, so the line needs no escaping of ours on top.
  if (!h.argv.empty()) out += fmt::format("#argv\t{}\n", json_list(h.argv).dump());
  add_line(out, "cwd", h.cwd);
  add_line(out, "host", h.host);
  if (h.start_unix_ns != 0)
    out += fmt::format("#start\t{}\t{}\n", h.start_unix_ns, utc_time_text(h.start_unix_ns));
  if (h.rank) out += fmt::format("#rank\t{}\n", *h.rank);
  add_line(out, "map", h.map_id);
  add_line(out, "method", h.method);
  for (const auto& scope : h.scopes) add_line(out, "scope", scope);
  for (const auto& note : h.notes) add_line(out, "note", note);
  return out + "#events\tns\tpid\ttid\top\tresult\tpath\tdetails\n";
}

std::string header_json(const RunHeader& h) {
  ordered_json j;
  j["heddle_trace"] = kTraceVersion;
  if (!h.run_id.empty()) j["run"] = to_json_text(h.run_id);
  if (!h.argv.empty()) j["argv"] = json_list(h.argv);
  if (!h.cwd.empty()) j["cwd"] = to_json_text(h.cwd);
  if (!h.host.empty()) j["host"] = to_json_text(h.host);
  if (h.start_unix_ns != 0) {
    j["start_unix_ns"] = h.start_unix_ns;
    j["start"] = utc_time_text(h.start_unix_ns);
  }
  if (h.rank) j["rank"] = *h.rank;
  if (!h.map_id.empty()) j["map"] = to_json_text(h.map_id);
  if (!h.method.empty()) j["method"] = to_json_text(h.method);
  if (!h.scopes.empty()) j["scopes"] = json_list(h.scopes);
  if (!h.notes.empty()) j["notes"] = json_list(h.notes);
  return j.dump() + "\n";
}

std::string footer_text(const RunFooter& f) {
  std::string out = f.complete ? "#end\tcomplete" : "#end\tincomplete";
  if (f.exit_status) out += fmt::format("\texit={}", *f.exit_status);
  out += fmt::format("\tns={}\tevents={}\tfailed={}", f.end_ns, f.events, f.failed);
  for (std::size_t i = 0; i < kOpCount; ++i)
    if (f.by_op[i] != 0) out += fmt::format("\t{}={}", op_name(static_cast<Op>(i)), f.by_op[i]);
  return out + "\n";
}

std::string footer_json(const RunFooter& f) {
  ordered_json j;
  j["end"] = f.complete ? "complete" : "incomplete";
  if (f.exit_status) j["exit"] = *f.exit_status;
  j["ns"] = f.end_ns;
  j["events"] = f.events;
  j["failed"] = f.failed;
  j["by_op"] = ordered_json::object();
  for (std::size_t i = 0; i < kOpCount; ++i)
    if (f.by_op[i] != 0) j["by_op"][std::string(op_name(static_cast<Op>(i)))] = f.by_op[i];
  return j.dump() + "\n";
}

}  // namespace heddle::trace
