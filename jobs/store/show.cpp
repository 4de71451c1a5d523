// SPDX-License-Identifier: MIT
// The sub-commands show and diff.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "jobs/store/archive.hpp"
#include "jobs/store/command_options.hpp"
#include "jobs/store/store_commands.hpp"
#include "record/diff/alignment.hpp"

namespace heddle::jobs::store {
namespace {

enum class View { summary, tree, threads, libraries, files };

/// The name and arguments as a person would type them, on one line.
std::string command_line(const std::string& exename, const std::string& args) {
  std::string out = exename;
  for (const std::string& word : split_list(args)) out += " " + escape_for_terminal(word);
  return out.size() > 120 ? out.substr(0, 117) + "..." : out;
}

std::string ended(const Value& exitcode, const Value& exitsignal) {
  if (to_int(exitsignal) > 0) return fmt::format("signal {}", to_int(exitsignal));
  return is_null(exitcode) ? "-" : std::to_string(to_int(exitcode));
}

struct Printed {
  std::vector<std::string> columns;
  std::vector<Row> rows;
};

Printed summary_of(Database& database, std::int64_t job, std::int64_t limit) {
  Printed out{{"host", "start", "duration", "num_procs", "cpu_time", "rssmax", "rchar", "wchar",
               "failed_lookups"},
              {}};
  out.rows = database.query(
      "SELECT host, MIN(start), MAX(finish) - MIN(start), SUM(num_procs), SUM(cpu_time), "
      "MAX(rssmax), SUM(rchar), "
      "SUM(wchar), SUM(failed_lookups) FROM hosts WHERE job_id = ? GROUP BY host ORDER BY host "
      "LIMIT ?",
      {job, limit});
  return out;
}

/// A process, and its children by their start, below it. Parents come before their children in the
/// table, so that a walk needs no recursion.
Printed tree_of(Database& database, std::int64_t job, std::int64_t limit) {
  Printed out{{"host", "process", "pid", "generation", "exit", "duration", "cpu_time",
               "inclusive_cpu_time", "rssmax", "marks"},
              {}};
  struct Node {
    Row row;
    std::vector<std::size_t> children;
  };
  std::vector<Node> nodes;
  std::vector<std::size_t> roots;
  std::int64_t node_id = -1;
  std::size_t first = 0;
  database.each(
      "SELECT node_id, n, parent, depth, host, exename, args, pid, generation, exitcode, "
      "exitsignal, duration, "
      "cpu_time, inclusive_cpu_time, rssmax, marks FROM processes WHERE job_id = ? ORDER BY "
      "node_id, n",
      {job}, [&](Row& row) {
        if (to_int(row[0]) != node_id) {
          node_id = to_int(row[0]);
          first = nodes.size();
        }
        const std::size_t at = nodes.size();
        const auto parent = first + static_cast<std::size_t>(to_int(row[2]));
        if (is_null(row[2]) || parent >= at)
          roots.push_back(at);
        else
          nodes[parent].children.push_back(at);
        nodes.push_back({row, {}});
      });
  std::vector<std::size_t> todo(roots.rbegin(), roots.rend());
  while (!todo.empty() && static_cast<std::int64_t>(out.rows.size()) < limit) {
    const Node& node = nodes[todo.back()];
    todo.pop_back();
    todo.insert(todo.end(), node.children.rbegin(), node.children.rend());
    const Row& r = node.row;
    const auto indent =
        std::string(2 * static_cast<std::size_t>(std::min<std::int64_t>(to_int(r[3]), 40)), ' ');
    out.rows.push_back({r[4], indent + command_line(to_text(r[5]), to_text(r[6])), r[7], r[8],
                        ended(r[9], r[10]), r[11], r[12], r[13], r[14], r[15]});
  }
  return out;
}

Printed threads_of(Database& database, std::int64_t job, std::int64_t limit) {
  Printed out{{"host", "pid", "exename", "tid", "usertime", "systemtime", "minflt", "majflt",
               "rchar", "wchar", "time_waiting"},
              {}};
  // A process with one thread has its numbers.
  out.rows = database.query(
      "SELECT p.host, p.pid, p.exename, COALESCE(t.tid, CASE WHEN t.thread IS NULL THEN p.pid "
      "END), "
      "CASE WHEN t.thread IS NULL THEN p.usertime ELSE t.usertime END, "
      "CASE WHEN t.thread IS NULL THEN p.systemtime ELSE t.systemtime END, "
      "CASE WHEN t.thread IS NULL THEN p.minflt ELSE t.minflt END, "
      "CASE WHEN t.thread IS NULL THEN p.majflt ELSE t.majflt END, "
      "CASE WHEN t.thread IS NULL THEN p.rchar ELSE t.rchar END, "
      "CASE WHEN t.thread IS NULL THEN p.wchar ELSE t.wchar END, "
      "CASE WHEN t.thread IS NULL THEN p.time_waiting ELSE t.time_waiting END "
      "FROM processes p LEFT JOIN threads t ON t.job_id = p.job_id AND t.node_id = p.node_id AND "
      "t.n = p.n "
      "WHERE p.job_id = ? ORDER BY p.node_id, p.n, t.thread LIMIT ?",
      {job, limit});
  return out;
}

Printed libraries_of(Database& database, std::int64_t job, std::int64_t limit) {
  Printed out{{"host", "pid", "exename", "failed_lookups", "name", "path", "failed", "size"}, {}};
  out.rows = database.query(
      "SELECT p.host, p.pid, p.exename, p.failed_lookups, l.name, l.path, l.failed, l.size FROM "
      "processes p LEFT JOIN libraries l ON l.job_id = p.job_id AND l.node_id = p.node_id AND "
      "l.library_set = p.library_set WHERE p.job_id = ? ORDER BY p.node_id, p.n, l.position LIMIT "
      "?",
      {job, limit});
  return out;
}

/// What each process asked of the file system, and of which files where a trace was submitted.
Printed files_of(Database& database, std::int64_t job, std::int64_t limit) {
  Printed out{
      {"host", "pid", "exename", "rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes",
       "cancelled_write_bytes", "path", "opens", "failed", "bytes_read", "bytes_written"},
      {}};
  out.rows = database.query(
      "SELECT p.host, p.pid, p.exename, p.rchar, p.wchar, p.syscr, p.syscw, p.read_bytes, "
      "p.write_bytes, p.cancelled_write_bytes, f.path, f.opens, f.failed, f.bytes_read, "
      "f.bytes_written FROM processes p LEFT JOIN files f ON f.job_id = p.job_id AND f.node_id = "
      "p.node_id AND f.n = p.n WHERE p.job_id = ? ORDER BY COALESCE(p.rchar, 0) + "
      "COALESCE(p.wchar, 0) DESC, p.node_id, p.n, COALESCE(f.bytes_read, 0) + "
      "COALESCE(f.bytes_written, 0) DESC, f.position LIMIT ?",
      {job, limit});
  return out;
}

/// One job's processes on all hosts, for the aligner.
struct Line {
  std::string text, ended;
  std::int64_t cpu_time = 0, duration = 0;
};

std::vector<Line> lines_of(Database& database, std::int64_t job, bool arguments) {
  std::vector<Line> out;
  database.each(
      "SELECT depth, exename, args, cpu_time, duration, exitcode, exitsignal FROM processes WHERE "
      "job_id = ? ORDER BY host, node_id, start, n",
      {job}, [&](Row& row) {
        const auto indent = std::string(
            2 * static_cast<std::size_t>(std::min<std::int64_t>(to_int(row[0]), 40)), ' ');
        out.push_back({indent + command_line(to_text(row[1]), arguments ? to_text(row[2]) : ""),
                       ended(row[5], row[6]), to_int(row[3]), to_int(row[4])});
      });
  return out;
}

}  // namespace

int show_command(int argc, char** argv) {
  std::string job;
  View view = View::summary;
  Format format = Format::table;
  std::int64_t limit = 0;
  return store_command(
      argc, argv, "Print a job: its hosts, or its processes.",
      [&](CLI::App& app) {
        app.add_option("JOB", job, "The job, as [CLUSTER/]ID[@START]")->required()->type_name("");
        const auto flag = [&](const char* name, View which, const char* text) {
          app.add_flag_function(
              name, [&view, which](std::int64_t) { view = which; }, text);
        };
        flag("--tree", View::tree, "The processes as a tree");
        flag("--threads", View::threads, "The threads");
        flag("--libs", View::libraries,
             "Which libraries each process had, from where, how large, and how many paths were "
             "tried and missed");
        flag("--files", View::files,
             "What each process read and wrote, most first, and which files where a trace was "
             "submitted");
        app.add_option("--limit", limit, "At most so many rows")
            ->type_name("N")
            ->check(number_from<std::int64_t>(1));
        add_format(app, format);
      },
      [&](const std::string& url) {
        const auto database = open_store(url);
        const std::int64_t id = find_job(*database, job);
        if (view == View::summary && format == Format::table) {
          const std::vector<std::string> columns{
              "cluster",     "jobid",      "username",  "jobname",  "start",      "duration",
              "num_hosts",   "complete",   "num_procs", "cpu_time", "exitcode",   "exitsignal",
              "memory_peak", "memory_max", "oom_kills", "tags",     "annotations"};
          const auto rows = database->query(
              fmt::format("SELECT {} FROM jobs WHERE id = ?", fmt::join(columns, ", ")), {id});
          std::string head;
          for (std::size_t i = 0; i < columns.size(); ++i)
            if (!is_null(rows.at(0)[i])) {
              const auto lines = render(Format::table, {columns[i]}, {{rows[0][i]}});
              head += fmt::format("{:<12} {}", columns[i], lines.substr(lines.find('\n') + 1));
            }
          print(head + "\n");
        }
        const auto of = view == View::tree        ? tree_of
                        : view == View::threads   ? threads_of
                        : view == View::libraries ? libraries_of
                        : view == View::files     ? files_of
                                                  : summary_of;
        const Printed out = of(*database, id, limit > 0 ? limit : std::int64_t{1} << 60);
        print(render(format, out.columns, out.rows));
        return exit_done;
      });
}

int diff_command(int argc, char** argv) {
  std::string first, second;
  bool arguments = false, all = false;
  return store_command(
      argc, argv, "Compare the processes of two jobs, aligned as fs-diff aligns traces.",
      [&](CLI::App& app) {
        app.add_option("A", first, "A job")->required()->type_name("");
        app.add_option("B", second, "Another")->required()->type_name("");
        app.add_flag("--args", arguments, "Processes with other arguments differ");
        app.add_flag("--all", all, "Print the processes that both have, too");
      },
      [&](const std::string& url) {
        const auto database = open_store(url);
        const auto a = lines_of(*database, find_job(*database, first), arguments);
        const auto b = lines_of(*database, find_job(*database, second), arguments);
        std::unordered_map<std::string, diff::Token> numbers;
        const auto tokens_of = [&](const std::vector<Line>& lines) {
          std::vector<diff::Token> out;
          for (const Line& line : lines)
            out.push_back(numbers.try_emplace(line.text, static_cast<diff::Token>(numbers.size()))
                              .first->second);
          return out;
        };
        const auto ta = tokens_of(a);
        const auto tb = tokens_of(b);
        std::string out;
        std::size_t changed = 0;
        const auto seconds = [](std::int64_t us) { return static_cast<double>(us) / 1e6; };
        const auto line = [&](char mark, const Line& one) {
          ++changed;
          out += fmt::format("{} {}  cpu {:.2f} s, {:.2f} s\n", mark, one.text,
                             seconds(one.cpu_time), seconds(one.duration));
        };
        for (const auto& run : diff::edit_script(ta, tb).runs)
          for (std::size_t i = 0; i < run.length; ++i) {
            if (run.kind == diff::EditKind::same) {
              const Line &x = a[run.a + i], &y = b[run.b + i];
              // "-" is unknown.
              const bool differ = x.ended != y.ended && x.ended != "-" && y.ended != "-";
              if (differ) ++changed;
              if (differ || all)
                out += fmt::format("{} {}  cpu {:.2f} -> {:.2f} s, {:.2f} -> {:.2f} s{}\n",
                                   differ ? '!' : ' ', x.text, seconds(x.cpu_time),
                                   seconds(y.cpu_time), seconds(x.duration), seconds(y.duration),
                                   differ ? fmt::format(", exit {} -> {}", x.ended, y.ended) : "");
              continue;
            }
            if (run.kind != diff::EditKind::inserted) line('-', a[run.a + i]);
            if (run.kind != diff::EditKind::deleted) line('+', b[run.b + i]);
          }
        out += fmt::format("{} and {} processes, {} differ\n", a.size(), b.size(), changed);
        print(out);
        return changed == 0 ? exit_done : exit_no;
      });
}

}  // namespace heddle::jobs::store
