// SPDX-License-Identifier: MIT
//
// Names a cause that a user can act on. Each kind of cause has a test with a threshold; of those
// that hold, the one that explains the others comes first: another library before all, a smaller
// limit of memory before the page faults that it makes, and those before a node that only seems
// slow.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/escape.hpp"
#include "base/paths.hpp"
#include "jobs/outliers/features.hpp"
#include "jobs/store/render.hpp"

namespace heddle::jobs::store {
namespace {

constexpr double kUnusual = 3.5;          ///< deviations, as of modified z
constexpr double kLeastDeviation = 0.05;  ///< of the median: smaller differences count for nothing

struct Compared {
  double value = 0, median = 0, score = 0;
  bool known = false;
  double ratio() const { return median > 0 ? value / median : value > 0 ? 1e9 : 1; }
  bool above(double times, double by = 0) const {
    return known && score > kUnusual && value > times * median && value - median > by;
  }
};

class Search {
 public:
  Search(Database& database, const JobTable& table, std::size_t job)
      : db_(database), table_(table), job_(job), id_(std::to_string(table.jobs[job].id)) {
    std::vector<std::int64_t> others;
    for (std::size_t i = 0; i < table.jobs.size(); ++i)
      if (i != job) others.push_back(table.jobs[i].id);
    others_ = fmt::format("{}", fmt::join(others, ","));
    count_ = others.size();
  }

  Diagnosis run() {
    for (std::size_t f = 0; f < table_.features.size(); ++f) {
      const Compared c = compare(table_.features[f]);
      if (c.known) out_.features.push_back({table_.features[f], c.value, c.median, c.score});
    }
    std::ranges::stable_sort(out_.features, [](const Ranked& a, const Ranked& b) {
      return std::abs(a.score) > std::abs(b.score);
    });
    libraries();
    memory();
    processes();  // more of them make more of all that follows
    lookups();
    const bool faulty = faults();
    more_io();
    if (!faulty && out_.causes.empty()) node();
    failure();
    return std::move(out_);
  }

 private:
  Compared compare(std::string_view feature) const {
    Compared out;
    const auto at = std::ranges::find(table_.features, feature);
    if (at == table_.features.end()) return out;
    const Values& column = table_.columns[static_cast<std::size_t>(at - table_.features.begin())];
    Values others;
    for (std::size_t i = 0; i < column.size(); ++i)
      if (i != job_ && !std::isnan(column[i])) others.push_back(column[i]);
    out.value = column[job_];
    out.known = !std::isnan(out.value) && others.size() + 1 >= kFewestJobs;
    if (!out.known) return out;
    out.median = median_of(others);
    const double deviation =
        std::max(robust_deviation(others, out.median), kLeastDeviation * std::abs(out.median));
    const double away = out.value - out.median;
    if (away != 0) out.score = deviation > 0 ? away / deviation : std::copysign(kNeverVaries, away);
    return out;
  }
  void add(std::string kind, std::string subject, std::string text, std::string hint) {
    out_.causes.push_back({std::move(kind), escape_for_terminal(subject), escape_for_terminal(text),
                           std::move(hint)});
  }
  std::string values(std::string_view feature, const Compared& c) const {
    return fmt::format("{}, where the others have {}", human(feature, c.value),
                       human(feature, c.median));
  }

  /// A library that nearly all others load from one other place, or that no other job loads.
  void libraries() {
    std::map<std::string, std::map<std::string, std::size_t>> usual;  // name: path: jobs
    db_.each(
        "SELECT name, path, COUNT(DISTINCT job_id) FROM libraries WHERE path <> '' AND job_id IN "
        "(" +
            others_ + ") GROUP BY name, path",
        {}, [&](Row& row) {
          usual[base_name(to_text(row[0]))][to_text(row[1])] +=
              static_cast<std::size_t>(to_int(row[2]));
        });
    if (usual.empty()) return;
    std::map<std::string, std::set<std::string>> own;
    db_.each("SELECT DISTINCT name, path FROM libraries WHERE path <> '' AND job_id = " + id_, {},
             [&](Row& row) { own[base_name(to_text(row[0]))].insert(to_text(row[1])); });
    std::vector<Cause> fresh;
    for (const auto& [name, paths] : own) {
      const auto found = usual.find(name);
      for (const std::string& path : paths) {
        if (found == usual.end()) continue;
        const auto best =
            std::ranges::max_element(found->second, {}, [](const auto& one) { return one.second; });
        const auto here = found->second.find(path);
        const std::size_t same = here == found->second.end() ? 0 : here->second;
        if (best->first != path && 2 * best->second >= count_ && 10 * same <= count_)
          add("library", name,
              fmt::format("{} was loaded from {}, by {} of {} others from {}", name, path,
                          best->second, count_, best->first),
              "compare LD_LIBRARY_PATH and modules; fs-job show --libs");
      }
      if (found == usual.end() && 2 * usual.size() > own.size())
        fresh.push_back({"library", name,
                         name + " was loaded from " + *paths.begin() + ", by none of the others",
                         "compare LD_PRELOAD, LD_LIBRARY_PATH and modules"});
    }
    for (Cause& cause : fresh) add(cause.kind, cause.subject, cause.text, cause.hint);
  }

  void failure() {
    const Compared status = compare("exitcode");
    if (status.known && status.value != 0 && status.median == 0)
      add("failure", "exitcode",
          fmt::format("it ended with status {:.0f}, most others with 0", status.value),
          "fs-job show --tree names the process");
  }

  void memory() {
    const Compared killed = compare("oom_kills");
    if (killed.known && killed.value > killed.median)
      add("memory", "oom_kills",
          fmt::format("{:.0f} processes were killed for want of memory", killed.value),
          "ask for more memory (--mem)");
    const Compared limit = compare("memory_max");
    if (limit.known && limit.score < -kUnusual && limit.value < 0.8 * limit.median)
      add("memory", "memory_max", "its limit of memory is " + values("memory_max", limit),
          fmt::format("ask for {} (--mem)", human("memory_max", limit.median)));
    const Compared stall = compare("memory_stall");
    if (stall.above(3, 1e6))
      add("memory", "memory_stall",
          "its tasks waited for memory for " + values("memory_stall", stall),
          "ask for more memory (--mem), or use fewer ranks a node");
  }

  void lookups() {
    const Compared failed = compare("failed_lookups");
    if (failed.above(2, 100))
      add("lookups", "failed_lookups",
          fmt::format("ld.so missed {:.0f} paths, {:.1f} times as many as usual", failed.value,
                      failed.ratio()),
          "LD_LIBRARY_PATH or an RPATH has more directories; run it by fs-gen");
  }

  bool faults() {
    const Compared major = compare("majflt"), minor = compare("minflt");
    const bool many_major = major.above(2, 100), many_minor = minor.above(1.5, 10'000);
    if (many_major)
      add("faults", "majflt",
          fmt::format("{:.0f} page faults read from disk, usually {:.0f}", major.value,
                      major.median),
          "the node's memory was short, or its page cache cold");
    else if (many_minor)
      add("faults", "minflt",
          fmt::format("{:.0f} page faults, usually {:.0f}", minor.value, minor.median),
          "memory is touched more often anew: another allocator, MALLOC_ settings, or huge pages "
          "off");
    return many_major || many_minor;
  }

  void processes() {
    const Compared count = compare("num_procs");
    if (count.above(1.25, 1) ||
        (count.known && count.score < -kUnusual && count.value < 0.75 * count.median))
      add("processes", "num_procs",
          fmt::format("it executed {:.0f} programs, the others {:.0f}", count.value, count.median),
          "fs-job diff shows which");
  }

  void more_io() {
    for (const char* feature : {"rchar", "wchar", "read_bytes", "write_bytes"})
      if (const Compared io = compare(feature); io.above(2, 10 << 20))
        add("io", feature, fmt::format("{} is {}", feature, values(feature, io)),
            "another input or output; fs-job show --files shows which process");
  }

  /// Hosts are compared with those of the other jobs, and with the job's own.
  void node() {
    struct Host {
      std::string name;
      double time = 0, cpu = 0;  ///< of a process, in the mean
      double processes = 0;
    };
    const auto hosts_of = [&](const std::string& jobs) {
      std::vector<Host> hosts;
      db_.each(
          "SELECT o.host, AVG(p.finish - p.start), AVG(p.cpu_time), COUNT(*) "
          "FROM t_process p JOIN t_node o ON "
          "o.id = p.node_id WHERE p.job_id IN (" +
              jobs + ") GROUP BY p.job_id, o.host ORDER BY o.host",
          {}, [&](Row& row) {
            hosts.push_back(
                {to_text(row[0]), to_double(row[1]), to_double(row[2]), to_double(row[3])});
          });
      return hosts;
    };
    const auto own = hosts_of(id_);
    const auto others = hosts_of(others_);
    const auto is_elsewhere = [&](const Host& other) {
      return own.empty() || other.name != own[0].name;
    };
    // Where all ran on one host nothing tells it from the job.
    if (own.size() < 2 && std::ranges::none_of(others, is_elsewhere)) return;
    const Compared duration = compare("duration");
    double worst = 0;
    std::string name, what;
    for (const Host& host : own) {
      const auto judge = [&](double Host::*member, const char* words) {
        Values usual;
        for (const Host& other : others) usual.push_back(other.*member);
        if (usual.size() + 1 < kFewestJobs) return;
        const double median = median_of(usual);
        const double deviation =
            std::max({robust_deviation(usual, median), kLeastDeviation * median, 1.0});
        const double score = (host.*member - median) / deviation;
        // With hosts beside it that are slow too, the job is, and not the host.
        Values beside;
        for (const Host& other : own)
          if (&other != &host) beside.push_back(other.*member);
        const double least = beside.empty() ? median : std::max(median, median_of(beside));
        // What all processes lost there; less makes no job slow.
        const double lost = (host.*member - least) * host.processes;
        if (score > kUnusual && host.*member > 1.25 * least &&
            lost > kLeastDeviation * duration.value && score > worst) {
          worst = score;
          name = host.name;
          what = fmt::format("{} {:.2f} times as long as usual", words,
                             host.*member / std::max(median, 1.0));
        }
      };
      judge(&Host::time, "its processes took");
      judge(&Host::cpu, "its processes computed");
    }
    if (!name.empty() &&
        (own.size() > 1 || duration.above(1.15) || compare("cpu_time").above(1.15)))
      add("node", name, fmt::format("{} was slow: {}, with the same work", name, what),
          fmt::format(
              "leave it out (--exclude={}) and have it checked: clock, temperature, other jobs",
              escape_for_terminal(name)));
  }

  Database& db_;
  const JobTable& table_;
  std::size_t job_;
  std::string id_, others_;
  std::size_t count_ = 0;
  Diagnosis out_;
};

}  // namespace

Diagnosis find_causes(Database& database, const JobTable& table, std::size_t job) {
  return Search(database, table, job).run();
}

}  // namespace heddle::jobs::store
