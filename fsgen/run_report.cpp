// SPDX-License-Identifier: MIT
#include "fsgen/run_report.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/escape.hpp"

namespace heddle {
namespace {

std::string with_commas(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  return digits;
}

std::string milliseconds(std::uint64_t ns) {
  return fmt::format("{:.1f} ms", static_cast<double>(ns) / 1e6);
}

std::string text_of_trees(const RunReport& report) {
  std::string out;
  for (const auto& [path, entries] : report.trees)
    out += fmt::format("  tree            {:>12} names served at {}\n", with_commas(entries),
                       escape_for_terminal(path));
  if (report.daemon && report.daemon->bad_frame_reads > 0)
    out += fmt::format(
        "  damaged         {:>12} reads of the bundle found no frame as it was packed: fs-resolve "
        "verify names damaged frames, --fallback another copy\n",
        with_commas(report.daemon->bad_frame_reads));
  if (report.trees.empty() || !report.daemon) return out;
  const auto& daemon = *report.daemon;
  out += fmt::format("  tree files      {:>12} read from their originals\n",
                     with_commas(daemon.tree_files));
  if (daemon.from_origin_files > 0)
    out += fmt::format(
        "  not in bundle   {:>12} of them: fs-resolve pack --add FILE, which fs-gen --json FILE "
        "writes, packs them too\n",
        with_commas(daemon.from_origin_files));
  if (daemon.writes_refused > 0)
    out += fmt::format(
        "  refused         {:>12} writes (EROFS){}\n", with_commas(daemon.writes_refused),
        !daemon.first_refused ? ""
        : daemon.first_refused->empty()
            ? ", all to __pycache__: python3 -m compileall once saves each process compiling"
            : "; first: " + escape_for_terminal(*daemon.first_refused) +
                  ". --tree-exclude DIR keeps a directory writable");
  for (const auto& path : daemon.changed)
    out += "  changed         tree changed during the run: " + escape_for_terminal(path) + "\n";
  if (const auto shown = daemon.changed.size(); daemon.changed_files > shown)
    out +=
        fmt::format("  changed         and {} more\n", with_commas(daemon.changed_files - shown));
  return out;
}

std::string text_of_limits(const RunReport& report) {
  std::string out;
  for (const auto& way : report.passed_over)
    out += fmt::format("  not possible    {}\n", escape_for_terminal(way));
  for (const auto& limit : report.limits) out += fmt::format("  limit           {}\n", limit);
  if (report.left_running)
    out += "  the mount stays until the last process that APP left behind has ended\n";
  return out;
}

/// Without APP itself, which the first line is about.
std::uint64_t processes_not_in_map(const RunReport& report) {
  const auto& counters = report.counters;
  const auto others = counters.other_library_path + (report.guided ? 0 : 1);
  return counters.unguided_processes > others ? counters.unguided_processes - others : 0;
}

}  // namespace

std::optional<std::uint64_t> RunReport::start_ns() const {
  if (counters.ready_ns == 0 || counters.ready_ns < counters.exec_ns) return std::nullopt;
  return counters.ready_ns - counters.exec_ns;
}

std::string to_text(const RunReport& report) {
  if (!report.guided && report.counters.guided_processes == 0) {
    return fmt::format("{}: ran unguided: {}\n", escape_for_terminal(report.app),
                       report.unguided_reason) +
           text_of_trees(report) + text_of_limits(report);
  }
  std::string out;
  const bool audited = report.loader != "environment";
  if (!audited) {
    out += fmt::format("{}: {} libraries, offered by LD_LIBRARY_PATH (--loader env)\n",
                       escape_for_terminal(report.app), with_commas(report.libraries));
    out += fmt::format("  failed probes   {:>12} without heddle to start it, not counted with it\n",
                       with_commas(report.probes_without));
  } else if (report.guided) {
    out += fmt::format("{}: {} libraries, each sent to its file\n", escape_for_terminal(report.app),
                       with_commas(report.libraries));
    // Both numbers are of APP's start alone: the cost of children and dlopen without heddle is
    // unknown.
    if (report.start_ns())
      out += fmt::format("  failed probes   {:>12} without heddle to start it, {} with it\n",
                         with_commas(report.probes_without),
                         with_commas(report.counters.start_probes));
    else
      out += fmt::format("  failed probes   {:>12} without heddle to start it\n",
                         with_commas(report.probes_without));
    if (const auto later = report.counters.probes - report.counters.start_probes; later > 0)
      out += fmt::format(
          "  later           {:>12} paths tried for dlopen{}{}\n", with_commas(later),
          report.counters.guided_processes > 1
              ? fmt::format(", in {} processes", with_commas(report.counters.guided_processes))
              : "",
          report.learned ? "" : ": --learn --out MAP puts them in a map");
  } else {
    out += fmt::format("{}: ran unguided ({}); its mapped children were guided\n",
                       escape_for_terminal(report.app), report.unguided_reason);
    out += fmt::format("  tried paths     {:>12} by ld.so in its guided processes\n",
                       with_commas(report.counters.probes));
  }
  if (const auto start = report.start_ns())
    out += fmt::format("  start-up        {:>12} from exec until all libraries were ready\n",
                       milliseconds(*start));
  if (audited)
    out += fmt::format("  names           {:>12} guided, {} left to ld.so, in {} process{}\n",
                       with_commas(report.counters.names_guided),
                       with_commas(report.counters.names_unknown), report.counters.guided_processes,
                       report.counters.guided_processes == 1 ? "" : "es");
  if (report.counters.other_library_path != 0)
    out += fmt::format("  unguided        {:>12} process{}: LD_LIBRARY_PATH is not as in the map\n",
                       with_commas(report.counters.other_library_path),
                       report.counters.other_library_path == 1 ? "" : "es");
  if (const auto others = processes_not_in_map(report); others != 0)
    out += fmt::format("  unguided        {:>12} process{} of programs that are not in the map{}\n",
                       with_commas(others), others == 1 ? "" : "es",
                       report.learned ? "" : ": --learn --out MAP adds them");
  if (const auto& daemon = report.daemon)
    out += fmt::format("  daemon          {:>12} requests answered, {} bytes read\n",
                       with_commas(daemon->requests), with_commas(daemon->bytes_read));
  out += text_of_trees(report);
  out += fmt::format("  before the run  {:>12} to {}, {} to {} ({})\n",
                     milliseconds(report.resolve_ns),
                     report.cached ? "check the cached map" : "resolve",
                     milliseconds(report.mount_ns), report.via == "direct" ? "start" : "mount",
                     report.via + (report.shared ? ", shared" : "") +
                         (report.fast_files ? ": no slow file system, so no mount" : ""));
  if (!report.not_cached.empty()) out += fmt::format("  not cached      {}\n", report.not_cached);
  constexpr std::uint64_t kFailedProbe = 2200;  // ns on a local disk, measured
  // What it saved in children is not known.
  if (const auto saved = report.probes_without * kFailedProbe;
      report.fast_files && report.guided && report.counters.guided_processes <= 1 &&
      report.resolve_ns + report.mount_ns > saved)
    out += fmt::format(
        "  balance         {:>12} of look-ups saved, which cost more: HEDDLE=off runs it without "
        "heddle\n",
        milliseconds(saved));
  return out + text_of_limits(report);
}

nlohmann::json to_json(const RunReport& report) {
  nlohmann::json out = {
      {"app", to_json_text(report.app)},
      {"exit_status", report.end.status},
      {"guided", report.guided},
      {"via", report.via},
      {"shared", report.shared},
      {"cached", report.cached},
      {"limits", report.limits},
      {"loader", report.loader},
      {"libraries", report.libraries},
      {"probes_without", report.probes_without},
      {"resolve_ns", report.resolve_ns},
      {"mount_ns", report.mount_ns},
      {"left_running", report.left_running},
  };
  if (report.loader != "environment") {  // where no auditor counts
    out["probes_with"] = report.counters.probes;
    if (report.start_ns()) out["probes_with_start"] = report.counters.start_probes;
    out["names_guided"] = report.counters.names_guided;
    out["names_unknown"] = report.counters.names_unknown;
    out["guided_processes"] = report.counters.guided_processes;
    out["unguided_processes"] = report.counters.unguided_processes;
    out["other_library_path"] = report.counters.other_library_path;
    out["left_processes"] = report.counters.left;
    out["failed_probes"] = report.counters.failed();
  }
  auto& passed_over = out["passed_over"] = nlohmann::json::array();
  for (const auto& way : report.passed_over) passed_over.push_back(to_json_text(way));
  if (!report.not_cached.empty()) out["not_cached"] = report.not_cached;
  if (!report.guided) out["unguided_reason"] = report.unguided_reason;
  if (const auto start = report.start_ns()) out["start_ns"] = *start;
  auto& trees = out["trees"] = nlohmann::json::array();
  for (const auto& [path, entries] : report.trees)
    trees.push_back({{"path", to_json_text(path)}, {"entries", entries}});
  auto& notes = out["tree_notes"] = nlohmann::json::array();
  for (const auto& note : report.tree_notes) notes.push_back(to_json_text(note));
  if (const auto& daemon = report.daemon) {
    out["requests"] = daemon->requests;
    out["bytes_read"] = daemon->bytes_read;
    if (daemon->bad_frame_reads > 0) out["bad_frame_reads"] = daemon->bad_frame_reads;
    if (!report.trees.empty()) {
      out["tree_files_read"] = daemon->tree_files;
      out["writes_refused"] = daemon->writes_refused;
      if (daemon->first_refused.value_or("") != "")
        out["first_refused"] = to_json_text(*daemon->first_refused);
      out["changed_files"] = daemon->changed_files;
      auto& changed = out["changed"] = nlohmann::json::array();
      for (const auto& path : daemon->changed) changed.push_back(to_json_text(path));
      out["from_origin_files"] = daemon->from_origin_files;
      auto& missed = out["from_origin"] = nlohmann::json::array();
      for (const auto& path : daemon->from_origin) missed.push_back(path);
    }
  }
  return out;
}

}  // namespace heddle
