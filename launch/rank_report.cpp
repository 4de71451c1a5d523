// SPDX-License-Identifier: MIT
#include "launch/rank_report.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "base/escape.hpp"
#include "base/launch/rank.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"

namespace heddle::launch {
namespace {

constexpr std::size_t kLargest = std::size_t{64} << 20;
constexpr const char* kLock = "/.lock";  // no node's name
constexpr const char* kLogs = "/.log-";
constexpr time_t kYoung = 60;  // seconds: one that is made now may have no lock yet
constexpr std::size_t kMostNamed = 20;
constexpr std::size_t kMostReasons = 5;  // of a node
constexpr const char* kSilent =
    "static, setuid or 32-bit programs, a launcher that keeps the environment from ranks (srun "
    "--export), or nodes that have no heddle or do not see the directory of the reports";

struct Node {
  std::uint64_t ranks = 0, guided = 0, starts_guided = 0, probes = 0, opens = 0, microseconds = 0,
                cpu = 0;
  std::map<std::string, std::uint64_t> reasons;
};

/// Removes what killed launches from this node have left in `parent`.
void sweep(const std::string& parent, const std::string& prefix) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(parent, error), end; !error && at != end;
       at.increment(error)) {
    const auto path = at->path().string();
    const auto random = at->path().filename().string();
    struct stat st {};
    if (!random.starts_with(prefix) || random.size() != prefix.size() + 7 ||  // mkdtemp(3)
        ::lstat(path.c_str(), &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != ::geteuid() ||
        st.st_mtim.tv_sec > ::time(nullptr) - kYoung)
      continue;
    const auto lock = open_file(path + kLock, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (lock && ::flock(lock->get(), LOCK_EX | LOCK_NB) == 0) (void)remove_tree(path);
  }
}

/// "1, 4-6": of 0 to size-1 those that are not in `present`.
std::string missing_ranks(const std::set<std::uint64_t>& present, std::uint64_t size) {
  std::string out;
  std::size_t named = 0;
  for (std::uint64_t rank = 0; rank < size; ++rank) {
    if (present.contains(rank)) continue;
    if (++named > kMostNamed) return out + ", ...";
    const auto first = rank;
    const auto next = present.upper_bound(rank);
    rank = std::min(next == present.end() ? size : *next, size) - 1;
    out += fmt::format("{}{}", out.empty() ? "" : ", ", first);
    if (rank > first) out += fmt::format("-{}", rank);
  }
  return out;
}

/// "; none of n3, n4": of the job's nodes those from which no rank has reported, if others have.
std::string silent_nodes(const std::vector<RankReport>& reports, const SeenJob& job) {
  const auto short_name = [](const std::string& node) { return node.substr(0, node.find('.')); };
  std::set<std::string> present;
  for (const auto& report : reports) present.insert(short_name(report.node));
  std::vector<std::string> silent;
  for (const auto& node : job.nodes)
    if (!present.contains(short_name(node))) silent.push_back(escape_for_terminal(node));
  // None has reported, or the launcher has other names for the nodes.
  const bool is_elsewhere = !job.others_only || present != std::set{short_name(host_name())};
  if (silent.size() == job.nodes.size() && is_elsewhere) return "";
  if (silent.size() > kMostNamed) {
    silent.resize(kMostNamed);
    silent.emplace_back("...");
  }
  return silent.empty() ? "" : fmt::format("; none of {}", fmt::join(silent, ", "));
}

}  // namespace

Result<ReportDirectory> ReportDirectory::make(const std::string& parent) {
  const auto prefix = "launch-" + host_name();
  sweep(parent, prefix);
  auto directory = TRY(TempDir::create(prefix, parent));
  const auto path = directory.path() + kLock;
  auto lock = TRY(open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  // Without locks (a network file system) the sweep gets none either.
  (void)::flock(lock.get(), LOCK_EX | LOCK_NB);
  return ReportDirectory(std::move(directory), std::move(lock));
}

Result<void> write_report(const std::string& directory, const RankReport& r) {
  const auto path = directory + "/" + r.node;
  const Fd fd = TRY(open_file(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600));
  // One write, so that the lines of a node's ranks do not mix.
  return write_all(fd.get(),
                   fmt::format("{} {} {} {:d} {:d} {:d} {} {} {} {} {}\n", r.process, r.rank,
                               r.size, r.guided, r.starts_guided, r.from_mount, r.libraries,
                               r.probes, r.microseconds, r.cpu, escape_for_terminal(r.why)),
                   path);
}

std::string daemon_log(const std::string& directory, const std::string& node) {
  return directory + kLogs + node;
}

std::string read_daemon_logs(const std::string& directory) {
  std::set<std::string> lines;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const auto name = "/" + at->path().filename().string();
    if (!name.starts_with(kLogs)) continue;
    const auto fd = open_regular(at->path());
    std::istringstream log(fd ? read_all(fd->get(), at->path(), kLargest).value_or("") : "");
    for (std::string line; lines.size() < kMostNamed && std::getline(log, line);)
      lines.insert(escape_for_terminal(name.substr(std::strlen(kLogs)) + ": " + line) + "\n");
  }
  return fmt::format("{}", fmt::join(lines, ""));
}

std::vector<RankReport> read_reports(const std::string& directory) {
  std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, RankReport> last;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const auto fd = open_regular(at->path());
    std::istringstream lines(fd ? read_all(fd->get(), at->path(), kLargest).value_or("") : "");
    for (std::string line; std::getline(lines, line);) {
      RankReport r;
      std::istringstream words(line);
      if (!(words >> r.process >> r.rank >> r.size >> r.guided >> r.starts_guided >> r.from_mount >>
            r.libraries >> r.probes >> r.microseconds >> r.cpu))
        continue;
      std::getline(words >> std::ws, r.why);
      r.node = at->path().filename();
      last[{r.node, r.process, r.rank}] = r;
    }
  }
  std::vector<RankReport> out;
  for (auto& [key, report] : last) out.push_back(std::move(report));
  return out;
}

std::string to_table(const std::vector<RankReport>& reports, double seconds, const SeenJob& job,
                     int status) {
  auto size = job.ranks;
  std::map<std::string, Node> nodes;
  std::set<std::uint64_t> ranks;
  std::uint64_t guided = 0, starts_guided = 0, probes = 0, opens = 0;
  for (const auto& r : reports) {
    ranks.insert(r.rank);
    auto& node = nodes[r.node];
    ++node.ranks;
    node.guided += r.guided;
    node.starts_guided += r.starts_guided;
    node.microseconds += r.microseconds;
    node.cpu += r.cpu;
    if (r.guided) node.probes += r.probes;
    if (r.guided && r.from_mount) node.opens += r.libraries;
    if (!r.why.empty()) ++node.reasons[r.why];
    size = std::max(size, r.size);
  }
  for (const auto& [name, node] : nodes) {
    guided += node.guided;
    starts_guided += node.starts_guided;
    probes += node.probes;
    opens += node.opens;
  }
  if (reports.empty() && size == 0)
    return fmt::format("no rank reported in {:.2f} s, and the launcher ended with {}{}\n", seconds,
                       status,
                       status == 0 ? fmt::format(": no ranks were started, or {}", kSilent) : "");
  auto out = fmt::format(
      "{} of {} ranks guided{} on {} node{} in {:.2f} s; {} failed look-ups and {} opens of "
      "libraries "
      "on their file system saved\n",
      guided, std::max<std::uint64_t>(size, reports.size()),
      starts_guided == 0
          ? ""
          : fmt::format(" (of {} only mapped programs that {}, if any)", starts_guided,
                        starts_guided == 1 ? "it starts" : "they start"),
      nodes.size(), nodes.size() == 1 ? "" : "s", seconds, probes, opens);
  if (size > reports.size())
    out += fmt::format("{} rank{} did not report ({}{}): {}\n", size - reports.size(),
                       size - reports.size() == 1 ? "" : "s", missing_ranks(ranks, size),
                       silent_nodes(reports, job), kSilent);
  if (nodes.empty()) return out;
  out += fmt::format("{:<20} {:>6} {:>7} {:>10} {:>8} {:>8} {:>8}  {}\n", "node", "ranks", "guided",
                     "look-ups", "opens", "ms/rank", "cpu ms", "why not");
  for (const auto& [name, node] : nodes) {
    std::string reasons;
    for (std::size_t named = 0; const auto& [why, count] : node.reasons) {
      if (++named > kMostReasons) {
        reasons += "; ...";
        break;
      }
      reasons += fmt::format("{}{}{}", reasons.empty() ? "" : "; ", why,
                             count == node.ranks ? "" : fmt::format(" ({})", count));
    }
    const auto mean = [&](std::uint64_t sum) {
      return static_cast<double>(sum) / 1e3 / static_cast<double>(node.ranks);
    };
    out += fmt::format("{:<20} {:>6} {:>7} {:>10} {:>8} {:>8.1f} {:>8.2f}  {}\n",
                       escape_for_terminal(name), node.ranks, node.guided, node.probes, node.opens,
                       mean(node.microseconds), mean(node.cpu), reasons);
  }
  return out;
}

}  // namespace heddle::launch
