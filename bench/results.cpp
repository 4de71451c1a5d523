// SPDX-License-Identifier: MIT
#include "bench/results.hpp"

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "base/log.hpp"
#include "base/output_file.hpp"

namespace heddle::bench {
namespace {

bool is_met(const Figure& figure) {
  return (!figure.at_most || figure.value <= *figure.at_most) &&
         (!figure.at_least || figure.value >= *figure.at_least);
}

std::string aim_text(const Figure& figure) {
  if (figure.at_most) return fmt::format("<= {:g}", *figure.at_most);
  if (figure.at_least) return fmt::format(">= {:g}", *figure.at_least);
  return "";
}

}  // namespace

void Results::attempt(const std::string& name, const std::function<void()>& measure,
                      std::chrono::seconds limit) {
  const auto left =
      std::chrono::duration_cast<std::chrono::seconds>(end_ - std::chrono::steady_clock::now());
  if (left.count() <= 0) return note_absent(name + ": the bench's time was over");
  limit = std::min(limit, left);
  begin_case(limit);
  const double ms = time_ms([&] {
    try {
      measure();
    } catch (const std::exception& error) {
      failed_.push_back(name + ": " + error.what());
      say(failed_.back());
    }
  });
  if (case_is_over())
    note_absent(fmt::format("{}: stopped at its limit of {} s", name, limit.count()));
  seconds_[name] = ms / 1000;
  write_json();
}

void Results::add(const std::string& group, const std::vector<Variant>& variants) {
  fmt::print("{}:", group);
  for (const auto& variant : variants) {
    fmt::print("  {} {:.2f} ms", variant.name, median(variant.samples));
    sampled_.push_back({group, variant.name, variant.samples});
  }
  fmt::print("\n");
  std::fflush(stdout);
}

void Results::add(Figure figure) { figures_.push_back(std::move(figure)); }

double Results::median_of(const std::string& group, const std::string& variant) const {
  for (const auto& sampled : sampled_)
    if (sampled.group == group && sampled.variant == variant) return median(sampled.samples);
  throw Error(group, "was not measured", variant);
}

void Results::print() const {
  for (const auto& note : absent_) fmt::print("absent: {}\n", note);
  for (const auto& note : failed_) fmt::print("failed: {}\n", note);
  fmt::print("\n{:<44}{:>10}    {:<9}\n", "figure", "value", "aim");
  for (const auto& figure : figures_)
    fmt::print("{:<44}{:>10.2f} {:<3}{:<9}{}\n", figure.name, figure.value, figure.unit,
               aim_text(figure),
               aim_text(figure).empty() ? ""
               : is_met(figure)         ? "met"
                                        : "missed");
}

nlohmann::json environment_facts() {
  struct utsname system {};
  ::uname(&system);
  std::string processor;
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; processor.empty() && std::getline(cpuinfo, line);)
    if (line.starts_with("model name")) processor = line.substr(line.find(": ") + 2);
  std::string load;
  std::getline(std::ifstream("/proc/loadavg"), load);
  return {{"version", 1},
          {"heddle", HEDDLE_VERSION},
          {"kernel", system.release},
          {"machine", system.machine},
          {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"processor", processor},
          {"glibc", ::gnu_get_libc_version()},
          {"load", load}};
}

void Results::write_json() const {
  if (json_.empty()) return;
  auto json = environment_facts();
  json["samples_ms"] = nlohmann::json::object();
  json["figures"] = nlohmann::json::array();
  json["absent"] = absent_;
  json["failed"] = failed_;
  json["seconds"] = seconds_;
  for (const auto& sampled : sampled_)
    json["samples_ms"][sampled.group][sampled.variant] = sampled.samples;
  for (const auto& figure : figures_) {
    nlohmann::json entry = {{"name", figure.name}, {"value", figure.value}, {"unit", figure.unit}};
    if (figure.at_most) entry["at_most"] = *figure.at_most;
    if (figure.at_least) entry["at_least"] = *figure.at_least;
    if (!aim_text(figure).empty()) entry["met"] = is_met(figure);
    json["figures"].push_back(std::move(entry));
  }
  value_or_throw(write_output(json_, json.dump(2) + "\n"));
}

}  // namespace heddle::bench
