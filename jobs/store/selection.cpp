// SPDX-License-Identifier: MIT
#include "jobs/store/selection.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/result.hpp"
#include "jobs/store/schema.hpp"

namespace heddle::jobs::store {
namespace {

/// Conditions, which all must hold, with their values.
struct Where {
  std::vector<std::string> conditions;
  Row values;

  void add(std::string condition, Row more) {
    conditions.push_back(std::move(condition));
    for (Value& value : more) values.push_back(std::move(value));
  }
  /// Any of `list`, each by `condition`.
  void any(const std::vector<std::string>& list, const std::string& condition) {
    if (list.empty()) return;
    Row stored;
    for (const auto& text : list) stored.emplace_back(to_json_text(text));
    add(fmt::format("({})", fmt::join(std::vector<std::string>(list.size(), condition), " OR ")),
        std::move(stored));
  }
  std::string text() const {
    return conditions.empty() ? "" : fmt::format(" WHERE {}", fmt::join(conditions, " AND "));
  }
};

void add_job_names(Where& where, const std::vector<std::string>& jobs) {
  std::vector<std::string> each;
  Row values;
  for (const std::string& job : jobs) {
    std::string rest = job;
    std::string condition;
    if (const auto slash = rest.find('/'); slash != std::string::npos) {
      condition = "cluster = ? AND ";
      values.emplace_back(to_json_text(rest.substr(0, slash)));
      rest.erase(0, slash + 1);
    }
    std::string start;
    if (const auto at = rest.find('@'); at != std::string::npos) {
      start = rest.substr(at + 1);
      rest.resize(at);
    }
    condition += "jobid = ?";
    values.emplace_back(to_json_text(rest));
    if (!start.empty()) {
      // Microseconds as JSON has them, or the second that the table shows.
      const bool exact =
          start.size() > 12 && start.find_first_not_of("0123456789") == std::string::npos;
      const std::int64_t from =
          exact ? std::strtoll(start.c_str(), nullptr, 10) : parse_time(start);
      condition += " AND start >= ? AND start < ?";
      values.emplace_back(from);
      values.emplace_back(from + (exact ? 1 : 1'000'000));
    }
    each.push_back("(" + condition + ")");
  }
  if (!each.empty()) where.add(fmt::format("({})", fmt::join(each, " OR ")), values);
}

void add_tags(Where& where, const std::vector<std::string>& tags) {
  std::vector<std::string> each;
  Row values;
  for (const std::string& wanted : tags) {
    std::vector<std::string> all;
    for (const auto& [name, value] : parse_tags(wanted)) {
      all.emplace_back(
          "EXISTS (SELECT 1 FROM tags WHERE job_id = jobs.id AND annotation = 0 AND name = ? AND "
          "value = ?)");
      values.emplace_back(to_json_text(name));
      values.emplace_back(to_json_text(value));
    }
    if (all.empty())
      all.emplace_back("NOT EXISTS (SELECT 1 FROM tags WHERE job_id = jobs.id AND annotation = 0)");
    each.push_back(fmt::format("({})", fmt::join(all, " AND ")));
  }
  if (!each.empty()) where.add(fmt::format("({})", fmt::join(each, " OR ")), values);
}

std::string order_of(const std::string& order) {
  if (order.empty()) return "start, id";
  const auto colon = order.find(':');
  const std::string name = order.substr(0, colon);
  const std::string way = colon == std::string::npos ? "" : order.substr(colon + 1);
  std::vector<std::string> known = job_features();
  known.insert(known.end(), {"start", "finish", "submitted", "jobid", "jobname", "username"});
  if (std::ranges::find(known, name) == known.end() || (way != "" && way != "desc" && way != "asc"))
    throw Error("", "unknown column '" + escape_for_terminal(order) + "'", "NAME or NAME:desc",
                fmt::format("one of {}", fmt::join(known, ", ")));
  return name + (way == "desc" ? " DESC NULLS LAST" : " NULLS LAST") + ", id";
}

Where where_of(Database& database, const Selection& s) {
  Where where;
  add_job_names(where, s.jobs);
  add_tags(where, s.tags);
  where.any(s.hosts, "EXISTS (SELECT 1 FROM hosts WHERE job_id = jobs.id AND host = ?)");
  where.any(s.users, "username = ?");
  where.any(s.names, "jobname = ?");
  if (!s.before.empty()) where.add("finish <= ?", {parse_time(s.before)});
  if (!s.after.empty()) where.add("start >= ?", {parse_time(s.after)});
  if (s.incomplete) where.add("complete = 0", {});
  if (s.when.empty()) return where;
  std::int64_t from = 0, to = 0;
  try {
    from = to = parse_time(s.when);
  } catch (const Error&) {  // a job: those that ran at the same time
    const auto rows =
        database.query("SELECT start, finish FROM jobs WHERE id = ?", {find_job(database, s.when)});
    from = to_int(rows.at(0)[0]);
    to = to_int(rows.at(0)[1]);
  }
  where.add("start <= ? AND finish >= ?", {to, from});
  return where;
}

/// A check that `parse` takes an option's value, if it is not empty.
template <class Parse>
CLI::Validator taken_by(Parse parse) {
  const auto look = [parse](const std::string& given) -> std::string {
    try {
      if (!given.empty()) (void)parse(given);
      return {};
    } catch (const Error& error) {
      return error.message() + (error.hint().empty() ? "" : ": " + error.hint());
    }
  };
  return CLI::Validator(look, "");
}

}  // namespace

CLI::Validator time_check() { return taken_by(parse_time); }

CLI::Validator column_check(std::vector<std::string> columns) {
  return taken_by([columns = std::move(columns)](const std::string& given) {
    if (std::ranges::find(columns, given) == columns.end())
      throw Error("", "unknown column '" + escape_for_terminal(given) + "'", {},
                  fmt::format("one of {}", fmt::join(columns, ", ")));
    return 0;
  });
}

void add_selection(CLI::App& app, Selection& s) {
  const auto list = [&](const char* name, std::vector<std::string>& value, const char* type,
                        const char* text) {
    app.add_option(name, value, text)->type_name(type)->allow_extra_args(false);
  };
  app.add_option("JOB", s.jobs, "Jobs, as [CLUSTER/]ID[@START]; none: all that the options select")
      ->type_name("");
  list("--tag", s.tags, "K:V;...", "With all of these tags (repeatable: or); '' is without any");
  list("--host", s.hosts, "HOST", "That ran on this host (repeatable: or)");
  list("--user", s.users, "USER", "Of this user (repeatable: or)");
  list("--name", s.names, "NAME", "Of this job name (repeatable: or)");
  app.add_option("--before", s.before, "That ended before: a date and time, or -DAYS")
      ->type_name("TIME")
      ->check(time_check());
  app.add_option("--after", s.after, "That started after")->type_name("TIME")->check(time_check());
  app.add_option("--when", s.when, "That ran at this time, or beside this job")
      ->type_name("TIME|JOB");
  app.add_flag("--incomplete", s.incomplete, "Whose archives are not all here");
  app.add_option("--order", s.order, "By this column, NAME or NAME:desc (default: start)")
      ->type_name("NAME")
      ->check(taken_by(order_of));
  app.add_option("--limit", s.limit, "At most so many")
      ->type_name("N")
      ->check(number_from<std::int64_t>(1));
  app.add_option("--offset", s.offset, "Without the first N")
      ->type_name("N")
      ->check(number_from<std::int64_t>(0));
}

std::vector<Row> select_jobs(Database& database, const std::string& columns, const Selection& s) {
  Where where = where_of(database, s);
  std::string sql =
      "SELECT " + columns + " FROM jobs" + where.text() + " ORDER BY " + order_of(s.order);
  if (s.limit > 0 || s.offset > 0) {
    sql += " LIMIT ? OFFSET ?";
    where.values.emplace_back(s.limit > 0 ? s.limit : std::int64_t{1} << 60);
    where.values.emplace_back(s.offset);
  }
  return database.query(sql, where.values);
}

std::string name_of_job(const std::set<std::string>& repeated, const std::string& id,
                        std::int64_t start) {
  return repeated.count(id) != 0 ? fmt::format("{}@{}", id, start) : id;
}

std::set<std::string> repeated_ids(Database& database) {
  std::set<std::string> out;
  for (const Row& row :
       database.query("SELECT jobid FROM jobs GROUP BY jobid HAVING COUNT(*) > 1", {}))
    out.insert(to_text(row[0]));
  return out;
}

std::int64_t find_job(Database& database, const std::string& name) {
  Selection selection;
  selection.jobs = {name};
  const auto rows = select_jobs(database, "id, cluster, jobid, start, username", selection);
  if (rows.empty()) throw Error(name, "no such job", {}, "fs-job query lists the jobs");
  if (rows.size() == 1) return to_int(rows[0][0]);
  std::vector<std::string> which;
  for (const Row& row : rows)
    which.push_back(fmt::format("{}{}@{} (of {})",
                                to_text(row[1]).empty() ? "" : to_text(row[1]) + "/",
                                to_text(row[2]), to_int(row[3]), to_text(row[4])));
  throw Error(name, fmt::format("{} jobs have this id", rows.size()), {},
              "give one of " + escape_for_terminal(fmt::format("{}", fmt::join(which, ", "))));
}

std::int64_t parse_time(const std::string& text) {
  constexpr std::int64_t kSecond = 1'000'000;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0' && std::abs(number) < 1e11)
    return number > 0 ? static_cast<std::int64_t>(number * 1e6)
                      : now_us() + static_cast<std::int64_t>(number * 86400e6);
  for (const char* format : {"%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d",
                             "%m/%d/%Y %H:%M", "%m/%d/%Y"}) {
    std::tm parts{};
    parts.tm_isdst = -1;
    const char* rest = ::strptime(text.c_str(), format, &parts);
    if (rest && *rest == '\0') return std::int64_t{std::mktime(&parts)} * kSecond;
  }
  throw Error(text, "not a time", {},
              "2026-11-23, '2026-11-23 20:15', 11/23/2026 or -30 for days ago");
}

std::string time_text(std::int64_t us) {
  const std::time_t seconds = us / 1'000'000;
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts)};
}

std::vector<std::pair<std::string, std::string>> parse_tags(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> out;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(';', at), text.size());
    const std::string one = text.substr(at, end - at);
    at = end + 1;
    const auto first = one.find_first_not_of(' ');
    if (first == std::string::npos) continue;
    const auto colon = one.find(':');
    const auto last = one.find_last_not_of(' ');
    if (colon == std::string::npos)
      out.emplace_back(one.substr(first, last - first + 1), "1");
    else
      out.emplace_back(one.substr(first, colon - first), one.substr(colon + 1, last - colon));
  }
  return out;
}

const std::vector<std::string>& job_features() {
  static const std::vector<std::string> kFeatures = [] {
    std::vector<std::string> out{"duration",  "cpu_time", "num_procs", "num_threads",
                                 "num_hosts", "ranks",    "exitcode"};
    for (const Metric& metric : kMetrics) out.emplace_back(metric.name);
    for (const Metric& metric : kTotals) out.emplace_back(metric.name);
    return out;
  }();
  return kFeatures;
}

}  // namespace heddle::jobs::store
