// SPDX-License-Identifier: MIT
#include "jobs/store/submit.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/bounded_json.hpp"
#include "base/result.hpp"
#include "jobs/store/schema.hpp"
#include "jobs/store/selection.hpp"

namespace heddle::jobs::store {
namespace {

using Strings = std::vector<std::string>;

Value value_of(const Count& count) { return count ? Value(*count) : Value(); }
Value value_of(std::string_view text) { return std::string(text); }

constexpr std::int64_t kMost = std::int64_t{1} << 53;  ///< sums stop there

void combine(Count& all, const Count& one, Total how) {
  if (!one) return;
  if (!all)
    all = one;
  else if (how == Total::sum)
    all = std::min(kMost, *all + *one);
  else
    all = how == Total::max ? std::max(*all, *one) : std::min(*all, *one);
}

/// Where each of kMetrics is in the archive's keys; the end: nowhere.
class Columns {
 public:
  explicit Columns(const Archive& archive) : archive_(archive) {
    for (const Metric& metric : kMetrics) at_.push_back(find(metric.name));
    for (std::size_t key = 0; key < archive.keys.size(); ++key)
      if (std::ranges::find(at_, key) == at_.end() && archive.keys[key] != "tid" &&
          archive.keys[key] != "mpirank")
        more_.push_back(key);
    tid_ = find("tid");
    rank_ = find("mpirank");
  }
  Count thread_metric(const Process& p, std::size_t thread, std::size_t metric) const {
    return get(p, thread, at_[metric]);
  }
  Count tid(const Process& p, std::size_t thread) const { return get(p, thread, tid_); }
  Count rank(const Process& p) const { return get(p, 0, rank_); }
  Count process_metric(const Process& p, std::size_t metric) const {
    if (kMetrics[metric].name == "failed_lookups") return p.failed_lookups;
    Count all;
    for (std::size_t thread = 0; thread < p.threads; ++thread)
      combine(all, get(p, thread, at_[metric]), kMetrics[metric].total);
    return all;
  }
  /// The other keys as JSON. Events are counters; of the rest, the first thread has the process's.
  std::string more(const Process& p, std::size_t from, std::size_t to) const {
    std::string out;
    for (const std::size_t key : more_) {
      const bool is_event =
          archive_.keys[key].starts_with("PERF_") || archive_.keys[key].starts_with("PAPI_");
      Count all;
      for (std::size_t thread = from; thread < (is_event ? to : std::min(to, from + 1)); ++thread)
        combine(all, get(p, thread, key), Total::sum);
      if (all) out += fmt::format("{}\"{}\":{}", out.empty() ? "{" : ",", archive_.keys[key], *all);
    }
    return out.empty() ? out : out + "}";
  }

 private:
  std::size_t find(std::string_view name) const {
    return static_cast<std::size_t>(std::ranges::find(archive_.keys, name) - archive_.keys.begin());
  }
  Count get(const Process& p, std::size_t thread, std::size_t key) const {
    return key < archive_.keys.size() && thread < p.threads ? archive_.value(p, thread, key)
                                                            : Count();
  }
  const Archive& archive_;
  std::vector<std::size_t> at_, more_;
  std::size_t tid_ = 0, rank_ = 0;
};

Count number_of(const Json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return {};
  const auto value = found->get<std::int64_t>();
  return value < 0 || value > kMost ? Count() : Count(value);  // "no limit" is about 2^63
}

/// The cgroup's numbers in the order of kTotals. A node's memory is a limit, too.
std::vector<Count> cgroup_totals(const Json& cgroup, const Json& all) {
  const auto number = [&](const char* key) { return number_of(cgroup, key); };
  Count limit = number("memory.max");
  if (const auto machine = all.find("machine"); machine != all.end())
    combine(limit, number_of(*machine, "memory"), Total::min);
  // `some avg10=0.00 avg60=0.00 avg300=0.00 total=4711` (Documentation/accounting/psi.rst)
  const auto stall = [&](const char* key) -> Count {
    const auto found = cgroup.find(key);
    if (found == cgroup.end() || !found->is_string()) return {};
    const auto& text = found->get_ref<const std::string&>();
    const auto at = text.find("total=");
    if (!text.starts_with("some ") || at == std::string::npos) return {};
    return std::clamp<std::int64_t>(std::strtoll(text.c_str() + at + 6, nullptr, 10), 0, kMost);
  };
  return {number("memory.peak"),     limit,
          number("memory.oom_kill"), stall("cpu.pressure"),
          stall("memory.pressure"),  stall("io.pressure")};
}

Strings names_of(const auto& metrics) {
  Strings out;
  for (const Metric& metric : metrics) out.emplace_back(metric.name);
  return out;
}

Strings operator+(Strings a, const Strings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Submission {
 public:
  Submission(Database& database, Archive archive)
      : db_(database), archive_(std::move(archive)), m_(archive_.metadata), columns_(archive_) {}

  bool run() {
    if (m_.user.empty()) m_.user = own_name();
    Transaction transaction(db_);
    find_job();
    if (!add_node()) return false;
    refuse_known_processes();
    add_processes();
    add_threads();
    add_libraries();
    add_tags(m_.tags, 0);
    add_tags(m_.annotations, 1);
    derive_job();
    transaction.commit();
    return true;
  }

 private:
  static std::string own_name() {
    const passwd* entry = ::getpwuid(::geteuid());
    return entry ? entry->pw_name : std::to_string(::geteuid());
  }

  /// The job's id; its row is locked until the transaction's end.
  void find_job() {
    // Of two nodes at once, neither sees the row of the other. SQLite has one writer.
    if (!m_.job_start && db_.is_postgres())
      db_.query("SELECT pg_advisory_xact_lock(hashtextextended(?, 22))",
                {fmt::format("{}\n{}\n{}", m_.user, m_.cluster, m_.jobid)});
    std::int64_t start = m_.job_start.value_or(m_.start);
    if (!m_.job_start)
      for (const Row& row :
           db_.query("SELECT start FROM t_job WHERE username = ? AND cluster = ? AND jobid = ? AND "
                     "restart = ? AND start <= ? AND finish >= ? ORDER BY start LIMIT 1",
                     {m_.user, m_.cluster, m_.jobid, m_.restart, m_.stop, m_.start}))
        start = to_int(row[0]);
    Json info = m_.all;
    info.erase("environment");
    info.erase("hosts");
    info_ = info.is_null() ? "{}" : info.dump();
    db_.each(
        "INSERT INTO t_job (username, cluster, jobid, start, restart, submitted, jobname, workdir, "
        "expected_hosts, complete, environment, info) VALUES (?,?,?,?,?,?,?,?,?,0,?,?) "
        "ON CONFLICT (username, cluster, jobid, start) DO UPDATE SET restart = t_job.restart "
        "RETURNING id",
        {m_.user, m_.cluster, m_.jobid, start, m_.restart, now_us(), m_.jobname, m_.workdir,
         Json(m_.hosts).dump(), m_.environment.dump(), info_},
        [&](Row& row) { job_ = to_int(row[0]); });
  }

  bool add_node() {
    Row values{job_,
               m_.host,
               archive_.hash,
               m_.start,
               m_.stop,
               now_us(),
               value_of(m_.exitcode),
               value_of(m_.exitsignal),
               value_of(m_.ranks),
               std::int64_t(archive_.processes.size()),
               std::int64_t(0),
               std::int64_t(0),
               info_};
    std::int64_t threads = 0, cpu_time = 0;
    std::vector<Count> sums(kMetrics.size());
    for (const Process& p : archive_.processes) {
      threads = std::min(kMost, threads + std::max<std::int64_t>(p.numtids, 0));
      cpu_time = std::min(kMost, cpu_time + p.cpu_time);
      for (std::size_t i = 0; i < sums.size(); ++i)
        combine(sums[i], columns_.process_metric(p, i), kMetrics[i].total);
    }
    values[10] = threads;
    values[11] = cpu_time;
    for (const Count& sum : sums) values.push_back(value_of(sum));
    for (const Count& total : cgroup_totals(m_.cgroup, m_.all)) values.push_back(value_of(total));
    const Strings names = Strings{"job_id",      "host",     "hash",       "start", "finish",
                                  "submitted",   "exitcode", "exitsignal", "ranks", "num_procs",
                                  "num_threads", "cpu_time", "info"} +
                          names_of(kMetrics) + names_of(kTotals);
    db_.each(fmt::format("INSERT INTO t_node ({}) VALUES ({}) ON CONFLICT (job_id, host, hash) DO "
                         "NOTHING RETURNING id",
                         fmt::join(names, ","), fmt::join(Strings(names.size(), "?"), ",")),
             values, [&](Row& row) { node_ = to_int(row[0]); });
    return node_ != 0;
  }

  /// A node's archives have processes of their own; one that was made again with more of them would
  /// count them twice.
  void refuse_known_processes() {
    std::set<std::pair<std::int64_t, std::int64_t>> known;
    db_.each(
        "SELECT p.pid, p.start FROM t_process p JOIN t_node o ON o.id = p.node_id WHERE "
        "p.job_id = ? AND o.job_id = ? AND o.host = ?",
        {job_, job_, m_.host}, [&](Row& row) { known.emplace(to_int(row[0]), to_int(row[1])); });
    for (const Process& p : archive_.processes)
      if (known.contains({p.pid, p.start}))
        throw Error(
            m_.jobid,
            fmt::format("process {} of {} is in the database, by another archive", p.pid, m_.host),
            {}, "fs-job delete removes the job; then submit all its archives again");
  }

  void add_processes() {
    const Strings names = Strings{"job_id",     "node_id",
                                  "n",          "parent",
                                  "depth",      "tags",
                                  "exename",    "path",
                                  "args",       "exitcode",
                                  "exitsignal", "pid",
                                  "generation", "ppid",
                                  "pgid",       "sid",
                                  "numtids",    "mpirank",
                                  "start",      "finish",
                                  "marks",      "container",
                                  "ended_by",   "library_set",
                                  "cpu_time",   "inclusive_cpu_time",
                                  "more"} +
                          names_of(kMetrics);
    db_.insert("t_process", names, archive_.processes.size(), [&](std::size_t i, Row& row) {
      const Process& p = archive_.processes[i];
      std::string more = columns_.more(p, 0, p.threads);
      row = {job_,
             node_,
             std::int64_t(i),
             p.parent < 0 ? Value() : Value(p.parent),
             p.depth,
             value_of(p.tags),
             value_of(p.exename),
             value_of(p.path),
             value_of(p.args),
             value_of(p.exitcode),
             value_of(p.exitsignal),
             p.pid,
             p.generation,
             p.ppid,
             p.pgid,
             p.sid,
             p.numtids,
             value_of(columns_.rank(p)),
             p.start,
             value_of(p.finish),
             value_of(p.marks),
             value_of(p.container),
             value_of(p.ended_by),
             value_of(p.libraries),
             p.cpu_time,
             p.inclusive_cpu_time,
             more.empty() ? Value() : Value(std::move(more))};
      for (std::size_t metric = 0; metric < kMetrics.size(); ++metric)
        row.push_back(value_of(columns_.process_metric(p, metric)));
    });
  }

  /// Of processes with several: the only thread of the others has the numbers of the process.
  void add_threads() {
    std::vector<std::pair<std::size_t, std::size_t>> threads;
    for (std::size_t i = 0; i < archive_.processes.size(); ++i)
      for (std::size_t t = 0;
           archive_.processes[i].threads > 1 && t < archive_.processes[i].threads; ++t)
        threads.emplace_back(i, t);
    const Strings names =
        Strings{"job_id", "node_id", "n", "thread", "tid", "more"} + names_of(kMetrics);
    db_.insert("t_thread", names, threads.size(), [&](std::size_t i, Row& row) {
      const auto [n, thread] = threads[i];
      const Process& p = archive_.processes[n];
      std::string more = columns_.more(p, thread, thread + 1);
      row = {job_,
             node_,
             std::int64_t(n),
             std::int64_t(thread),
             value_of(columns_.tid(p, thread)),
             more.empty() ? Value() : Value(std::move(more))};
      for (std::size_t metric = 0; metric < kMetrics.size(); ++metric)
        row.push_back(value_of(columns_.thread_metric(p, thread, metric)));
    });
  }

  void add_libraries() {
    db_.insert("t_library",
               {"job_id", "node_id", "library_set", "position", "name", "path", "failed", "size"},
               archive_.libraries.size(), [&](std::size_t i, Row& row) {
                 const Library& l = archive_.libraries[i];
                 row = {job_,
                        node_,
                        l.set,
                        std::int64_t(i),
                        value_of(l.name),
                        value_of(l.path),
                        value_of(l.failed),
                        value_of(l.size)};
               });
  }

  /// What is in the database stays: a user may have changed it there.
  void add_tags(const Json& tags, std::int64_t annotation) {
    for (const auto& [name, value] : tags.items())
      db_.run(
          "INSERT INTO t_tag (job_id, annotation, name, value) VALUES (?,?,?,?) "
          "ON CONFLICT (job_id, annotation, name) DO NOTHING",
          {job_, annotation, name, value.get<std::string>()});
  }

  /// Of one of the job's nodes.
  bool has_lost_records() {
    bool out = false;
    // The pattern spares parsing what a thousand nodes tell of themselves.
    db_.each("SELECT info FROM t_node WHERE job_id = ? AND info LIKE '%\"lost\":true%'", {job_},
             [&](Row& row) {
               const Json info = parse_bounded<Json>(to_text(row[0]));
               if (!info.is_object() || !info.contains("collector")) return;
               const Json& collector = info["collector"];
               out = out || (collector.is_object() && collector.contains("lost") &&
                             collector["lost"] == true);
             });
    return out;
  }

  void derive_job() {
    Strings names{"finish",    "exitcode",  "exitsignal",  "ranks",
                  "num_hosts", "num_procs", "num_threads", "cpu_time"};
    Strings sums{"MAX(finish)",          "MAX(exitcode)",  "MAX(exitsignal)",  "MAX(ranks)",
                 "COUNT(DISTINCT host)", "SUM(num_procs)", "SUM(num_threads)", "SUM(cpu_time)"};
    const auto add = [&](const Metric& metric) {
      names.emplace_back(metric.name);
      const char* how = metric.total == Total::sum   ? "SUM"
                        : metric.total == Total::max ? "MAX"
                                                     : "MIN";
      sums.push_back(fmt::format("{}({})", how, metric.name));
    };
    for (const Metric& metric : kMetrics) add(metric);
    for (const Metric& metric : kTotals) add(metric);
    db_.run(
        fmt::format("UPDATE t_job SET ({}) = (SELECT {} FROM t_node WHERE job_id = ?) WHERE id = ?",
                    fmt::join(names, ","), fmt::join(sums, ",")),
        {job_, job_});
    // Up to the first dot: the scheduler's names may have other domains.
    const auto short_name = [](const std::string& host) { return host.substr(0, host.find('.')); };
    std::set<std::string> missing;
    for (const Row& row : db_.query("SELECT expected_hosts FROM t_job WHERE id = ?", {job_}))
      for (const auto& host : parse_bounded<Json>(to_text(row[0])))
        if (host.is_string()) missing.insert(short_name(host));
    for (const Row& row : db_.query("SELECT host FROM t_node WHERE job_id = ?", {job_}))
      missing.erase(short_name(to_text(row[0])));
    const bool complete = missing.empty() && !has_lost_records();
    db_.run("UPDATE t_job SET complete = ? WHERE id = ?", {std::int64_t(complete), job_});
  }

  Database& db_;
  Archive archive_;
  Metadata& m_;
  Columns columns_;
  std::string info_;
  std::int64_t job_ = 0, node_ = 0;
};

}  // namespace

bool submit(Database& database, Archive archive) {
  return Submission(database, std::move(archive)).run();
}

}  // namespace heddle::jobs::store
