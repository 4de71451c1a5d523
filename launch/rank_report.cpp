// SPDX-License-Identifier: MIT
#include "launch/rank_report.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "base/escape.hpp"
#include "base/fd.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"

namespace heddle::launch {
namespace {

constexpr std::size_t kLargest = std::size_t{64} << 20;

struct Node {
  std::uint64_t ranks = 0, guided = 0, probes = 0, opens = 0, microseconds = 0;
  std::map<std::string, std::uint64_t> reasons;
};

}  // namespace

Result<void> write_report(const std::string& directory, const RankReport& r) {
  const auto path = directory + "/" + r.node;
  const Fd fd = TRY(open_file(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600));
  // One write, so that the lines of a node's ranks do not mix.
  return write_all(
      fd.get(),
      fmt::format("{} {} {:d} {:d} {} {} {} {}\n", r.rank, r.size, r.guided, r.from_mount,
                  r.libraries, r.probes, r.microseconds, escape_for_terminal(r.why)),
      path);
}

std::vector<RankReport> read_reports(const std::string& directory) {
  std::map<std::pair<std::string, std::uint64_t>, RankReport> last;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const auto fd = open_regular(at->path());
    std::istringstream lines(fd ? read_all(fd->get(), at->path(), kLargest).value_or("") : "");
    for (std::string line; std::getline(lines, line);) {
      RankReport r;
      std::istringstream words(line);
      if (!(words >> r.rank >> r.size >> r.guided >> r.from_mount >> r.libraries >> r.probes >>
            r.microseconds))
        continue;
      std::getline(words >> std::ws, r.why);
      r.node = at->path().filename();
      last[{r.node, r.rank}] = r;
    }
  }
  std::vector<RankReport> out;
  for (auto& [key, report] : last) out.push_back(std::move(report));
  return out;
}

std::string to_table(const std::vector<RankReport>& reports, double seconds) {
  std::map<std::string, Node> nodes;
  std::uint64_t size = 0, guided = 0, probes = 0, opens = 0;
  for (const auto& r : reports) {
    auto& node = nodes[r.node];
    ++node.ranks;
    node.guided += r.guided;
    node.microseconds += r.microseconds;
    if (r.guided) node.probes += r.probes;
    if (r.guided && r.from_mount) node.opens += r.libraries;
    if (!r.why.empty()) ++node.reasons[r.why];
    size = std::max(size, r.size);
  }
  for (const auto& [name, node] : nodes) {
    guided += node.guided;
    probes += node.probes;
    opens += node.opens;
  }
  auto out = fmt::format(
      "{} of {} ranks guided on {} node{} in {:.2f} s; {} failed look-ups and {} opens of "
      "libraries "
      "on their file system saved\n",
      guided, std::max<std::uint64_t>(size, reports.size()), nodes.size(),
      nodes.size() == 1 ? "" : "s", seconds, probes, opens);
  if (size > reports.size())
    out += fmt::format(
        "{} ranks did not report: static or setuid programs, or nodes that have no heddle or do "
        "not "
        "see the directory of the reports\n",
        size - reports.size());
  if (nodes.empty()) return out;
  out += fmt::format("{:<20} {:>6} {:>7} {:>10} {:>8} {:>8}  {}\n", "node", "ranks", "guided",
                     "look-ups", "opens", "ms/rank", "why not");
  for (const auto& [name, node] : nodes) {
    std::string reasons;
    for (const auto& [why, count] : node.reasons)
      reasons += fmt::format("{}{}{}", reasons.empty() ? "" : "; ", why,
                             count == node.ranks ? "" : fmt::format(" ({})", count));
    out += fmt::format(
        "{:<20} {:>6} {:>7} {:>10} {:>8} {:>8.1f}  {}\n", escape_for_terminal(name), node.ranks,
        node.guided, node.probes, node.opens,
        static_cast<double>(node.microseconds) / 1e3 / static_cast<double>(node.ranks), reasons);
  }
  return out;
}

}  // namespace heddle::launch
