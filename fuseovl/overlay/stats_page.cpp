// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/stats_page.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/escape.hpp"

namespace heddle {
namespace {

std::string json_text(std::string_view text) { return nlohmann::json(to_json_text(text)).dump(); }

}  // namespace

StatsPage::StatsPage(StatsFacts facts, ServingState& state, const ObjectFiles& files)
    : facts_(std::move(facts)), state_(state), files_(files) {}

InodeNumber StatsPage::add() {
  constexpr std::size_t kMostLarge = 16;
  StatsText page{render(), {}};
  ::clock_gettime(CLOCK_REALTIME, &page.made);
  const std::lock_guard lock(mutex_);
  const auto number = state_.stats.next_number();
  if (page.text.size() <= StatsSlots::kRoom) {
    state_.stats.put(number, page.text, page.made);
  } else {
    if (large_.size() == kMostLarge) large_.erase(large_.begin());
    large_.emplace(number, std::move(page));
  }
  return number;
}

std::optional<StatsText> StatsPage::find(InodeNumber number) const {
  const std::lock_guard lock(mutex_);
  if (const auto large = large_.find(number); large != large_.end()) return large->second;
  return state_.stats.find(number);
}

void StatsPage::forget(InodeNumber number) {
  const std::lock_guard lock(mutex_);
  large_.erase(number);
  state_.stats.drop(number);
}

std::string StatsPage::render() const {
  std::string out;
  const auto number = [&](std::string_view name, std::uint64_t value,
                          std::string_view end = ",\n") {
    out += fmt::format("\"{}\": {}{}", name, value, end);
  };
  out += "{\n  \"version\": 1,\n";
  out += fmt::format("  \"map\": {},\n", json_text(facts_.map_path));
  out += fmt::format("  \"map_id\": {},\n", json_text(facts_.map_id));
  out += fmt::format("  \"previous_maps\": {},\n", nlohmann::json(facts_.previous_maps).dump());
  out += fmt::format("  \"mount_point\": {},\n", json_text(facts_.mount_point));
  out += fmt::format("  \"start_time\": {},\n  ", json_text(facts_.start_time));
  number("supervisor_pid", static_cast<std::uint64_t>(state_.supervisor.load()), ",\n  ");
  number("worker_pid", static_cast<std::uint64_t>(state_.worker.load()), ",\n  ");
  number("workers_lost", state_.workers_lost, ",\n  ");
  number("views", facts_.views, ",\n  ");
  number("names", facts_.names, ",\n  ");
  number("objects", files_.size(), ",\n  ");
  number("pinned", files_.pinned(), ",\n  ");
  constexpr std::string_view staging[] = {"running", "done", "incomplete"};
  const Staging* staged = files_.staging();
  out +=
      fmt::format("\"staging\": {},\n  ",
                  json_text(staged ? staging[static_cast<std::size_t>(staged->state())] : "none"));
  number("staged", staged ? staged->objects() : 0, ",\n  ");
  number("staged_bytes", staged ? staged->bytes() : 0, ",\n  ");
  number("index_bytes", facts_.index_bytes, ",\n  ");
  number("requests_total", state_.counters.total(), ",\n  ");
  number("bytes_read", state_.counters.bytes_read());
  out += "  \"requests\": {\n    ";
  for (const auto& kind : RequestCounters::kinds())
    number(kind.name, state_.counters.of(kind.opcode), ",\n    ");
  number("other", state_.counters.other(), "\n");
  constexpr std::string_view prefetch[] = {"none", "running", "done"};
  out += fmt::format("  }},\n  \"prefetch\": {},\n  \"drift\": [",
                     json_text(prefetch[static_cast<std::size_t>(state_.prefetch.load())]));
  const char* separator = "\n    ";
  for (const auto& drift : files_.drifts()) {
    out += fmt::format("{}{{\"path\": {}, \"what\": {}}}", separator, json_text(drift.path),
                       json_text(drift.what));
    separator = ",\n    ";
  }
  out += "]\n}\n";
  return out;
}

}  // namespace heddle
