// SPDX-License-Identifier: MIT
// The sub-commands of fs-job that keep jobs and list them; show.cpp has those about one job,
// jobs/outliers those that compare many.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdio.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>

#include "base/bounded_json.hpp"
#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/temp_dir.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "jobs/commands.hpp"
#include "jobs/spool.hpp"
#include "jobs/store/archive.hpp"
#include "jobs/store/command_options.hpp"
#include "jobs/store/store_commands.hpp"
#include "jobs/store/submit.hpp"

namespace heddle::jobs::store {
namespace {

namespace fs = std::filesystem;

struct SubmitOptions {
  std::vector<std::string> archives;
  std::string failed_dir, trace;
  bool strict = false, remove = false, dry_run = false;
};

bool is_path(const std::string& name) {
  std::error_code ignored;
  return fs::exists(name, ignored);
}

/// Moves the archive `path` into `directory`, which is made.
Result<void> move_into(const std::string& directory, const std::string& path) {
  auto from = fs::path(path).lexically_normal();
  if (!from.has_filename()) from = from.parent_path();
  const auto name = from.filename();
  const auto cannot = "cannot move it to " + directory;
  const Fd source = TRY(open_directory_to_write(from.parent_path()));
  const Fd target = TRY(make_directory_to_write(directory, 0777));
  if (::renameat(source.get(), name.c_str(), target.get(), name.c_str()) != 0)
    return fail_errno(path, cannot);
  return {};
}

/// One archive, in one transaction. Result: the exit status.
int submit_one(Database* database, const std::string& path, const SubmitOptions& o) {
  Archive archive = read_archive(path);
  const std::string name =
      escape_for_terminal(fmt::format("{} on {}", archive.metadata.jobid, archive.metadata.host));
  const auto processes = counted(archive.processes.size(), "process", "processes");
  if (o.dry_run) {
    print(fmt::format("{}: {}, not stored\n", name, processes));
    return exit_done;
  }
  const std::string user = escape_for_terminal(archive.metadata.user);
  bool stored = false;
  try {
    stored = submit(*database, std::move(archive));
  } catch (const Error& error) {
    if (error.code() != EPERM || !database->is_postgres()) throw;
    throw Error(path, error.message(), "it is a job of " + user,
                "a role stores the jobs of the user of its name");
  }
  print(stored ? fmt::format("{}: {}\n", name, processes)
               : fmt::format("{}: already in the database\n", name));
  if (o.remove) value_or_throw(remove_tree(path));
  return stored || !o.strict ? exit_done : exit_no;
}

/// Joins a trace with the job that is named instead of an archive.
int join_trace(Database& database, const SubmitOptions& o) {
  const std::string& job = o.archives.at(0);
  const auto joined = submit_trace(database, find_job(database, job), o.trace);
  print(fmt::format("{}: {} of {}\n", escape_for_terminal(job),
                    counted(joined.files, "file", "files"),
                    counted(joined.processes, "process", "processes")));
  if (joined.unknown > 0)
    warn(fmt::format("{}: {} of no process of the job", o.trace,
                     counted(joined.unknown, "event is", "events are")));
  return exit_done;
}

int submit_command(int argc, char** argv) {
  SubmitOptions o;
  return store_command(
      argc, argv, "Store archives of jobs. One that is stored already changes nothing.",
      [&](CLI::App& app) {
        app.add_option("ARCHIVE", o.archives,
                       "Archives of fs-job stage or of epmt (v2), or directories of them")
            ->required()
            ->type_name("");
        app.add_flag("-e,--error", o.strict, "Exit with 1 if one is in the database already");
        app.add_flag("-r,--remove", o.remove, "Remove each archive that is in the database");
        app.add_flag("-n,--dry-run", o.dry_run, "Read and check only");
        app.add_option("-m,--move-failed", o.failed_dir, "Move archives that are refused to DIR")
            ->type_name("DIR");
        app.add_option("--trace", o.trace,
                       "Add the files in this trace of fs-record to the job ARCHIVE")
            ->type_name("FILE")
            ->excludes("-e")
            ->excludes("-r")
            ->excludes("-n")
            ->excludes("-m");
      },
      [&](const std::string& url) {
        const auto database = o.dry_run ? nullptr : open_store(url, true);
        if (!o.trace.empty()) {
          if (o.archives.size() != 1) return usage_error("fs-job submit", "--trace takes one job");
          return join_trace(*database, o);
        }
        int worst = exit_done;
        const auto refuse = [&](const std::string& path, const std::exception& error) {
          const auto* known = dynamic_cast<const Error*>(&error);
          report(known ? *known : Error(path, error.what()));
          worst = exit_failure;
          if (o.failed_dir.empty() || !is_path(path)) return;
          if (auto moved = move_into(o.failed_dir, path); !moved) report(moved.error());
        };
        for (const std::string& given : o.archives) try {
            for (const std::string& path : archives_of(given)) try {
                worst = std::max(worst, submit_one(database.get(), path, o));
              } catch (const std::exception& error) {
                refuse(path, error);
              }
          } catch (const std::exception& error) {
            refuse(given, error);
          }
        return worst;
      });
}

/// Words that are KEY=VALUE, as pairs.
std::vector<std::pair<std::string, std::string>> parse_pairs(
    const std::vector<std::string>& words) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& word : words) {
    const auto equals = word.find('=');
    out.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return out;
}

/// Sets tags (annotation 0) or annotations of a job in an archive, on this node or in the store.
/// Empty `job`: the one that this process belongs to.
int change_tags(const std::string& url, const std::string& job, bool annotation, bool replace,
                const std::vector<std::pair<std::string, std::string>>& pairs) {
  const auto change = [&](auto& metadata) {
    auto& object = metadata[annotation ? "annotations" : "tags"];
    if (replace || !object.is_object()) object = std::decay_t<decltype(object)>::object();
    for (const auto& [name, value] : pairs) object[to_json_text(name)] = to_json_text(value);
  };
  if (!job.empty() && is_path(job)) {
    Json metadata = read_metadata(job).all;
    change(metadata);
    replace_metadata(job, metadata);
    return exit_done;
  }
  if (value_or_throw(change_running(job, change))) return exit_done;
  if (job.empty())
    throw Error("", "no job is collected on this node", "", "name one, or an archive");
  const auto database = open_store(url);
  const std::int64_t id = find_job(*database, job);
  Transaction transaction(*database);
  const std::int64_t kind = annotation;
  if (replace) database->run("DELETE FROM t_tag WHERE job_id = ? AND annotation = ?", {id, kind});
  for (const auto& [name, value] : pairs)
    database->run(
        "INSERT INTO t_tag (job_id, annotation, name, value) VALUES (?,?,?,?) "
        "ON CONFLICT (job_id, annotation, name) DO UPDATE SET value = EXCLUDED.value",
        {id, kind, to_json_text(name), to_json_text(value)});
  transaction.commit();
  return exit_done;
}

int annotate_command(int argc, char** argv) {
  std::string job;
  std::vector<std::string> words;
  bool replace = false;
  return store_command(
      argc, argv, "Add annotations to a job, an archive or a directory.",
      [&](CLI::App& app) {
        app.add_option("JOB", job,
                       "A job here or in the store, or the path of an archive or directory "
                       "(default: the job that runs this)")
            ->type_name("");
        app.add_option("KEY=VALUE", words, "The annotations")->type_name("");
        app.add_flag("--replace", replace, "Drop all others");
      },
      [&](const std::string& url) {
        if (job.find('=') != std::string::npos && !is_path(job))
          words.insert(words.begin(), std::exchange(job, {}));
        if (words.empty()) return usage_error("fs-job annotate", "no KEY=VALUE given");
        for (const auto& word : words)
          if (const auto equals = word.find('='); equals == 0 || equals == word.npos)
            return usage_error("fs-job annotate", "'" + word + "' is not KEY=VALUE");
        return change_tags(url, job, true, replace, parse_pairs(words));
      });
}

int tag_command(int argc, char** argv) {
  std::string job, tags;
  bool replace = false;
  return store_command(
      argc, argv, "Add tags to a job, an archive or a directory.",
      [&](CLI::App& app) {
        app.add_option("JOB", job,
                       "A job here or in the store, or the path of an archive or directory "
                       "(default: the job that runs this)")
            ->type_name("");
        app.add_option("TAGS", tags, "KEY:VALUE;KEY:VALUE")->type_name("");
        app.add_flag("--replace", replace, "Drop all others");
      },
      [&](const std::string& url) {
        if (tags.empty()) tags = std::exchange(job, {});
        if (tags.empty()) return usage_error("fs-job tag", "no KEY:VALUE given");
        return change_tags(url, job, false, replace, parse_tags(tags));
      });
}

const std::vector<std::string>& job_columns() {
  static const std::vector<std::string> kColumns = [] {
    std::vector<std::string> out{"id",       "username", "cluster",     "jobid",       "restart",
                                 "jobname",  "start",    "finish",      "submitted",   "exitsignal",
                                 "complete", "tags",     "annotations", "environment", "workdir"};
    out.insert(out.end(), job_features().begin(), job_features().end());
    return out;
  }();
  return kColumns;
}

int dump_command(int argc, char** argv) {
  std::string job, key;
  return store_command(
      argc, argv, "Print what is known of a job, as JSON.",
      [&](CLI::App& app) {
        app.add_option("JOB", job, "A job, or the path of an archive or directory")
            ->required()
            ->type_name("");
        app.add_option("-k,--key", key, "Only this key, as tags")->type_name("KEY");
      },
      [&](const std::string& url) {
        Json all;
        if (is_path(job)) {
          all = read_metadata(job).all;
          for (const char* object : {"tags", "annotations"})
            if (!all.contains(object)) all[object] = Json::object();
        } else {
          const auto database = open_store(url);
          const std::int64_t id = find_job(*database, job);
          const auto row =
              database->query("SELECT t.info, t.expected_hosts FROM t_job t WHERE t.id = ?", {id})
                  .at(0);
          all = parse_bounded<Json>(to_text(row[0]));  // another role may have written it
          if (!all.is_object()) throw Error(job, "cannot dump", "the store's row is damaged");
          const auto rows = database->query(
              fmt::format("SELECT {} FROM jobs WHERE id = ?", fmt::join(job_columns(), ", ")),
              {id});
          // What is derived, and what was changed in the store, wins.
          all.update(Json::parse(render(Format::json, job_columns(), rows)).at(0));
          all["hosts"] = Json::array();
          for (const Row& host : database->query(
                   "SELECT DISTINCT host FROM hosts WHERE job_id = ? ORDER BY host", {id}))
            all["hosts"].push_back(to_text(host[0]));
        }
        std::string wanted = key.starts_with("job_") ? key.substr(4) : key;  // epmt's names
        if (!wanted.empty() && !all.contains(wanted) && all.contains(key)) wanted = key;
        if (!wanted.empty() && !all.contains(wanted))
          throw Error(job, "has no '" + escape_for_terminal(key) + "'");
        print((wanted.empty() ? all : all[wanted]).dump(1) + "\n");
        return exit_done;
      });
}

int query_command(int argc, char** argv) {
  Selection selection;
  Format format = Format::table;
  std::vector<std::string> columns;
  return store_command(
      argc, argv, "Find jobs.",
      [&](CLI::App& app) {
        add_selection(app, selection);
        add_format(app, format);
        app.add_option("--columns", columns, "These columns of the view jobs")
            ->type_name("NAME,...")
            ->delimiter(',')
            ->check(column_check(job_columns()))
            ->allow_extra_args(false);
      },
      [&](const std::string& url) {
        const bool is_default = columns.empty();
        if (is_default)
          columns = format == Format::table
                        ? std::vector<std::string>{"jobid",    "username",  "jobname",   "start",
                                                   "duration", "num_hosts", "num_procs", "cpu_time",
                                                   "exitcode", "tags"}
                        : job_columns();
        const auto database = open_store(url);
        auto rows =
            select_jobs(*database, fmt::format("{}, start", fmt::join(columns, ", ")), selection);
        const auto repeated = is_default && format == Format::table ? repeated_ids(*database)
                                                                    : std::set<std::string>();
        for (Row& row : rows) {
          if (!repeated.empty())
            row[0] = name_of_job(repeated, to_text(row[0]), to_int(row.back()));
          row.pop_back();
        }
        print(render(format, columns, rows));
        return exit_done;
      });
}

int list_command(int argc, char** argv) {
  std::string what = "jobs";
  return store_command(
      argc, argv, "List names, one a line.",
      [&](CLI::App& app) {
        add_choice<std::string>(app, "WHAT", what,
                                {{"jobs", "jobs"},
                                 {"hosts", "hosts"},
                                 {"users", "users"},
                                 {"names", "names"},
                                 {"tags", "tags"},
                                 {"models", "models"}},
                                "What to list (default: jobs)");
      },
      [&](const std::string& url) {
        const std::vector<std::pair<std::string, std::string>> kQueries = {
            {"jobs", "SELECT jobid FROM jobs ORDER BY start, id"},
            {"hosts", "SELECT DISTINCT host FROM hosts ORDER BY host"},
            {"users", "SELECT DISTINCT username FROM jobs ORDER BY username"},
            {"names", "SELECT DISTINCT jobname FROM jobs ORDER BY jobname"},
            {"tags",
             "SELECT DISTINCT name || ':' || value FROM tags WHERE annotation = 0 ORDER BY 1"},
            {"models", "SELECT name FROM models ORDER BY name"}};
        for (const auto& [name, sql] : kQueries)
          if (name == what)
            open_store(url)->each(sql, {},
                                  [](Row& row) { print(on_terminal(to_text(row[0])) + "\n"); });
        return exit_done;
      });
}

int delete_command(int argc, char** argv) {
  std::vector<std::string> jobs;
  return store_command(
      argc, argv, "Delete jobs and all that belongs to them.",
      [&](CLI::App& app) { app.add_option("JOB", jobs, "The jobs")->required()->type_name(""); },
      [&](const std::string& url) {
        const auto database = open_store(url);
        Transaction transaction(*database);
        for (const std::string& job : jobs)
          if (database->run("DELETE FROM t_job WHERE id = ?", {find_job(*database, job)}) == 0)
            throw Error(job, "cannot be deleted", "it belongs to another user");
        transaction.commit();
        return exit_done;
      });
}

/// Few at a time, so that no query waits for the database for long.
constexpr std::int64_t kChunk = 20;

int retire_command(int argc, char** argv) {
  double days = 14;
  bool dry_run = false, incomplete = false;
  return store_command(
      argc, argv, "Delete old jobs. Those that a reference model was made of stay.",
      [&](CLI::App& app) {
        app.add_option("--days", days, "Jobs that ended so long ago (default: 14)")
            ->type_name("N")
            ->check(number_from(0.0));
        app.add_flag("-n,--dry-run", dry_run, "Only count");
        app.add_flag("-u,--incomplete", incomplete, "Also jobs whose archives are not all here");
      },
      [&](const std::string& url) {
        const auto database = open_store(url);
        const std::string where = std::string(
                                      " FROM t_job WHERE finish < ? AND NOT EXISTS (SELECT 1 FROM "
                                      "t_model_job WHERE job_id = t_job.id)") +
                                  (incomplete ? "" : " AND complete = 1");
        const Row limit{now_us() - static_cast<std::int64_t>(days * 86400e6)};
        std::int64_t count = 0;
        if (dry_run) {
          count = to_int(database->query("SELECT COUNT(*)" + where, limit)[0][0]);
        } else {
          for (std::int64_t deleted = 1; deleted > 0; count += deleted) {
            Transaction transaction(*database);
            deleted = database->run(
                fmt::format("DELETE FROM t_job WHERE id IN (SELECT id{} ORDER BY finish LIMIT {})",
                            where, kChunk),
                limit);
            transaction.commit();
          }
        }
        print(fmt::format("{}{}\n", counted(static_cast<std::uint64_t>(count), "job", "jobs"),
                          dry_run ? " would be deleted" : " deleted"));
        return exit_done;
      });
}

int migrate_command(int argc, char** argv) {
  return store_command(
      argc, argv, "Create the store. In PostgreSQL: as an administrator, once.", [](CLI::App&) {},
      [](const std::string& url) {
        const auto database = open_any(url, true);
        const int before = migrate(*database);
        print(before == kSchemaVersion ? fmt::format("schema {} is there\n", before)
                                       : fmt::format("schema {} made\n", kSchemaVersion));
        return exit_done;
      });
}

int top_command(int argc, char** argv) {
  Selection selection;
  Format format = Format::table;
  std::string by = "cpu_time";
  std::int64_t count = 20;
  const std::vector<std::string> kNumbers = {"processes", "duration", "cpu_time", "rssmax",
                                             "majflt",    "rchar",    "wchar",    "failed_lookups"};
  return store_command(
      argc, argv, "Print which programs cost most, over all selected jobs.",
      [&](CLI::App& app) {
        add_selection(app, selection);
        add_format(app, format);
        app.add_option("--by", by, "The column to order by (default: cpu_time)")
            ->type_name("NAME")
            ->check(column_check(kNumbers));
        app.add_option("-N,--count", count, "So many programs (default: 20)")
            ->type_name("N")
            ->check(number_from<std::int64_t>(1));
      },
      [&](const std::string& url) {
        std::vector<std::string> columns{"exename"};
        columns.insert(columns.end(), kNumbers.begin(), kNumbers.end());
        const auto database = open_store(url);
        std::vector<std::string> ids;
        for (const Row& row : select_jobs(*database, "id", selection))
          ids.push_back(std::to_string(to_int(row[0])));
        if (ids.empty()) ids.emplace_back("-1");
        print(
            render(format, columns,
                   database->query(fmt::format("SELECT exename, COUNT(*) AS processes, SUM(finish "
                                               "- start) AS duration, SUM(cpu_time) AS cpu_time, "
                                               "MAX(rssmax) AS rssmax, SUM(majflt) AS majflt, "
                                               "SUM(rchar) AS rchar, SUM(wchar) AS wchar, "
                                               "SUM(failed_lookups) AS failed_lookups FROM "
                                               "t_process WHERE job_id IN ({}) GROUP BY exename "
                                               "ORDER BY {} DESC NULLS LAST, exename LIMIT ?",
                                               fmt::join(ids, ","), by),
                                   {count})));
        return exit_done;
      });
}

/// A label's value in the text format of Prometheus ("Exposition formats").
std::string label(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : std::string(1, c);
  return out;
}

int export_command(int argc, char** argv) {
  std::string file, after = "-1";
  return store_command(
      argc, argv, "Write totals by user for the textfile directory of Prometheus's node exporter.",
      [&](CLI::App& app) {
        app.add_option(
               "FILE", file,
               "The file to replace, as /var/lib/node_exporter/fs_job.prom; - is standard output")
            ->required()
            ->type_name("");
        app.add_option("--after", after, "Of jobs that started after (default: a day ago)")
            ->type_name("TIME")
            ->check(time_check());
      },
      [&](const std::string& url) {
        auto out = value_or_throw(OutputFile::prepare(file));
        struct Series {
          const char *name, *sql, *help;
          double scale;
        };
        constexpr std::array<Series, 8> kSeries = {
            {{"jobs", "COUNT(*)", "Jobs", 1},
             {"failed_jobs", "SUM(CASE WHEN exitcode <> 0 OR exitsignal <> 0 THEN 1 ELSE 0 END)",
              "Jobs that failed", 1},
             {"processes", "SUM(num_procs)", "Programs that were executed", 1},
             {"cpu_seconds", "SUM(cpu_time)", "CPU time", 1e-6},
             {"wall_seconds", "SUM(finish - start)", "Duration of the jobs", 1e-6},
             {"read_bytes", "SUM(rchar)", "Bytes that were read", 1},
             {"written_bytes", "SUM(wchar)", "Bytes that were written", 1},
             {"failed_lookups", "SUM(failed_lookups)", "Library paths that were tried and missed",
              1}}};
        std::string columns = "username, cluster";
        for (const Series& series : kSeries) columns += std::string(", ") + series.sql;
        const auto rows = open_store(url)->query("SELECT " + columns +
                                                     " FROM t_job WHERE start >= ? GROUP BY "
                                                     "username, cluster ORDER BY username, cluster",
                                                 {parse_time(after)});
        std::string text;
        for (std::size_t i = 0; i < kSeries.size(); ++i) {
          text += fmt::format("# HELP fs_job_{0} {1} of the period.\n# TYPE fs_job_{0} gauge\n",
                              kSeries[i].name, kSeries[i].help);
          for (const Row& row : rows)
            text += fmt::format("fs_job_{}{{user=\"{}\",cluster=\"{}\"}} {}\n", kSeries[i].name,
                                label(to_text(row[0])), label(to_text(row[1])),
                                to_double(row[i + 2]) * kSeries[i].scale);
        }
        value_or_throw(out.write(text));
        return exit_done;
      });
}

constexpr Command kCommands[] = {
    {"submit", "Store archives", submit_command},
    {"query", "Find jobs", query_command},
    {"show", "Print a job: its processes, threads, libraries, files", show_command},
    {"diff", "Compare the processes of two jobs", diff_command},
    {"top", "Print which programs cost most", top_command},
    {"outliers", "Print which jobs are unlike the others", outliers_command},
    {"rca", "Name why a job is unlike others", rca_command},
    {"report", "Write a page for browsers", report_command},
    {"model", "Make, list and delete reference models", model_command},
    {"annotate", "Add annotations to a job", annotate_command},
    {"tag", "Add tags to a job", tag_command},
    {"dump", "Print all that is known of a job", dump_command},
    {"list", "List jobs, hosts, users, tags, models", list_command},
    {"delete", "Delete jobs", delete_command},
    {"retire", "Delete old jobs", retire_command},
    {"migrate", "Create the store", migrate_command},
    {"export", "Write totals for Prometheus", export_command},
};

}  // namespace
}  // namespace heddle::jobs::store

std::span<const heddle::jobs::Command> heddle::jobs::store_commands() { return store::kCommands; }
