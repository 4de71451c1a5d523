// SPDX-License-Identifier: MIT
#include "record/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/escape.hpp"

namespace heddle {
namespace {

using trace::Op;
constexpr std::size_t kTop = 10;

double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }

std::string top_lines(const std::map<std::string, std::uint64_t>& counts) {
  std::vector<std::pair<std::string, std::uint64_t>> list(counts.begin(), counts.end());
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (list.size() > kTop) list.resize(kTop);
  std::string out;
  for (const auto& [path, count] : list)
    out += fmt::format("  {:>9}  {}\n", count, escape_for_terminal(path));
  return out;
}

}  // namespace

bool is_library_name(std::string_view path) {
  const auto name = path.substr(path.rfind('/') + 1);
  const auto at = name.rfind(".so");
  if (at == std::string_view::npos || at == 0) return false;
  const auto rest = name.substr(at + 3);
  return rest.empty() ||
         (rest[0] == '.' && rest.find_first_not_of(".0123456789") == std::string_view::npos);
}

void Summary::begin_run(const trace::RunHeader&, int) {}

void Summary::event(const trace::Event& event) {
  auto& process = processes_[event.pid];
  ++process.events;
  // These come late, and name who opened the file: fs-record, before it became the program.
  const bool late = event.op == Op::close || event.op == Op::read || event.op == Op::write;
  if (!event.exe.empty() && !late) process.exe = event.exe;
  const bool opens = event.op == Op::open || event.op == Op::create || event.op == Op::exec;
  if (opens) ++paths_[std::string(event.path)];
  if (event.error != 0 && event.op == Op::lookup) {
    ++process.misses;
    ++missing_folders_[std::string(event.path.substr(0, event.path.rfind('/')))];
  }
  if (!opens || event.error != 0) return;
  ++process.opens;
  if (event.op != Op::open || !is_library_name(event.path)) return;
  ++process.libraries;
  if (process.first_library_ns == 0) process.first_library_ns = event.ns;
  process.last_library_ns = event.ns;
}

void Summary::end_run(const trace::RunFooter& footer, trace::Ending) { footer_ = footer; }

std::string Summary::text() const {
  std::string out =
      fmt::format("{} events in {:.1f} ms, {} failed{}\n", footer_.events, ms(footer_.end_ns),
                  footer_.failed, footer_.complete ? "" : "; the trace is incomplete");
  out += "opened most:\n" + top_lines(paths_);
  if (!missing_folders_.empty()) out += "missed most, by folder:\n" + top_lines(missing_folders_);
  out += "processes:\n";
  out += fmt::format("  {:>8} {:>9} {:>7} {:>8} {:>9} {:>12} {:>12}  {}\n", "pid", "events",
                     "opens", "misses", "libraries", "first lib ms", "last lib ms", "executable");
  for (const auto& [pid, p] : processes_)
    out += fmt::format("  {:>8} {:>9} {:>7} {:>8} {:>9} {:>12} {:>12}  {}\n", pid, p.events,
                       p.opens, p.misses, p.libraries,
                       p.libraries ? fmt::format("{:.1f}", ms(p.first_library_ns)) : "-",
                       p.libraries ? fmt::format("{:.1f}", ms(p.last_library_ns)) : "-",
                       escape_for_terminal(p.exe));
  return out;
}

}  // namespace heddle
