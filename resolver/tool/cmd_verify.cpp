// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/tool/commands.hpp"
#include "resolver/tool/map_drift.hpp"
#include "resolver/tool/map_json.hpp"

namespace heddle {

int run_verify(const VerifyCommand& command) {
  const auto reader = value_or_throw(MapReader::open(command.map));
  const auto content = value_or_throw(reader.read_all());
  auto drifts = file_drifts(content);
  const auto changed = drifts.size();
  if (!command.files_only) {
    auto searched = search_drifts(content, drifts);
    for (const auto& reason : searched.not_checked) say("note: search not checked: " + reason);
    drifts.insert(drifts.end(), searched.drifts.begin(), searched.drifts.end());
  }
  if (command.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const auto& drift : drifts)
      list.push_back({{"path", to_json_text(drift.path)},
                      {"what", drift.what},
                      {"detail", to_json_text(drift.detail)}});
    const nlohmann::ordered_json out = {{"files", content.objects.size()}, {"drift", list}};
    fmt::print("{}\n", out.dump(2));
  } else {
    for (const auto& drift : drifts)
      fmt::print("{}: {}: {}\n", escape_for_terminal(drift.path), drift.what, drift.detail);
    fmt::print("{}: {} of {} files are what they were", escape_for_terminal(command.map),
               content.objects.size() - changed, content.objects.size());
    if (drifts.size() != changed)
      fmt::print(", but ld.so would load others in {} case{}", drifts.size() - changed,
                 drifts.size() == changed + 1 ? "" : "s");
    fmt::print("\n");
  }
  return drifts.empty() ? exit_done : exit_no;
}

}  // namespace heddle
