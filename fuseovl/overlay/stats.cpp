// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/stats.hpp"

#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "fuseovl/mount/stats_attribute.hpp"

namespace heddle {

using Json = nlohmann::ordered_json;

std::string render_stats(const StatsFacts& facts, const ServingState& state,
                         const ObjectFiles& files) {
  constexpr const char* kStaging[] = {"running", "done", "incomplete"};
  constexpr const char* kPrefetch[] = {"none", "running", "done"};
  const Staging* staging = files.staging();
  Json out = {
      {"version", 2},
      {"map", to_json_text(facts.map_path)},
      {"map_id", facts.map_id},
      {"previous_maps", facts.previous_maps},
      {"mount_point", to_json_text(facts.mount_point)},
      {"start_time", facts.start_time},
      {"supervisor_pid", state.supervisor.load()},
      {"worker_pid", state.worker.load()},
      {"workers_lost", state.workers_lost.load()},
      {"views", facts.views},
      {"names", facts.names},
      {"objects", files.size()},
      {"pinned", files.pinned()},
      {"staging", staging ? kStaging[static_cast<std::size_t>(staging->state())] : "none"},
      {"staged", staging ? staging->objects() : 0},
      {"staged_bytes", staging ? staging->bytes() : 0},
      {"index_bytes", facts.index_bytes},
      {"requests_total", state.counters.total()},
      {"bytes_read", state.counters.bytes_read()},
  };
  for (const auto& kind : RequestCounters::kinds())
    out["requests"][kind.name] = state.counters.of(kind.opcode);
  out["requests"]["other"] = state.counters.other();
  out["prefetch"] = kPrefetch[static_cast<std::size_t>(state.prefetch.load())];
  const auto drifts = files.drifts();
  out["drift_files"] = drifts.size();
  Json& listed = out["drift"] = Json::array();
  std::size_t left = kMostStatsBytes - out.dump(2).size();
  for (const auto& drift : drifts) {
    Json entry = {{"path", to_json_text(drift.path)}, {"what", to_json_text(drift.what)}};
    constexpr std::size_t kIndentation = 48;
    const auto size = entry.dump(2).size() + kIndentation;
    if (size > left) break;
    left -= size;
    listed.push_back(std::move(entry));
  }
  return out.dump(2) + "\n";
}

}  // namespace heddle
