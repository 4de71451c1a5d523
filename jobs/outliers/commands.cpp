// SPDX-License-Identifier: MIT
// The sub-commands that compare many jobs: outliers, rca, report, model.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bounded_json.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "jobs/outliers/features.hpp"
#include "jobs/store/command_options.hpp"
#include "jobs/store/store_commands.hpp"

namespace heddle::jobs::store {
namespace {

const std::vector<std::string> kUsualFeatures = {"duration", "cpu_time", "num_procs"};  // epmt's

void add_features(CLI::App& app, std::vector<std::string>& features) {
  auto known = job_features();
  known.emplace_back("all");
  app.add_option(
         "--feature", features,
         "Compare by these columns of the view jobs, or all (default: duration,cpu_time,num_procs)")
      ->type_name("NAME,...")
      ->delimiter(',')
      ->check(column_check(std::move(known)))
      ->allow_extra_args(false);
}

std::vector<std::string> chosen(const std::vector<std::string>& features) {
  if (features.empty()) return kUsualFeatures;
  return features == std::vector<std::string>{"all"} ? job_features() : features;
}

struct Model {
  References references;
  std::vector<std::string> jobs;  ///< ids
};

Json number(double value) { return std::isinf(value) ? Json("inf") : Json(value); }
double number(const Json& json) {
  return json.is_number() ? json.get<double>() : std::numeric_limits<double>::infinity();
}

Model load_model(Database& database, const std::string& name) {
  const auto rows =
      database.query("SELECT id, content FROM models WHERE name = ? ORDER BY id", {name});
  if (rows.empty()) throw Error(name, "no such model");
  Model model;
  const Json content = parse_bounded<Json>(to_text(rows[0][1]));
  if (!content.is_object()) throw Error(name, "cannot use the model", "the store's row is damaged");
  for (const auto& [feature, methods] : content.items())
    for (const Json& m : methods)
      model.references[feature].push_back({number(m.at(0)), number(m.at(1)), number(m.at(2))});
  for (const Row& row :
       database.query("SELECT job_id FROM t_model_job WHERE model_id = ?", {rows[0][0]}))
    model.jobs.push_back(std::to_string(to_int(row[0])));
  return model;
}

void make_model(Database& database, const std::string& name, const JobTable& table) {
  require_enough(table);
  Json content = Json::object();
  for (std::size_t f = 0; f < table.features.size(); ++f) {
    if (std::ranges::any_of(table.columns[f], [](double v) { return std::isnan(v); })) continue;
    for (const Method& method : kMethods) {
      const Reference r = method.score(table.columns[f], nullptr).reference;
      content[table.features[f]].push_back(
          Json::array({number(r.worst), number(r.centre), number(r.spread)}));
    }
  }
  Transaction transaction(database);
  std::int64_t id = 0;
  // A model belongs to its maker: in PostgreSQL the role, in SQLite the file's owner.
  database.each(std::string("INSERT INTO t_model (username, name, created, content) VALUES (") +
                    (database.is_postgres() ? "current_user" : "''") + ", ?, ?, ?) RETURNING id",
                {name, now_us(), content.dump()}, [&](Row& row) { id = to_int(row[0]); });
  for (const auto& job : table.jobs)
    database.run("INSERT INTO t_model_job (model_id, job_id) VALUES (?, ?)", {id, job.id});
  transaction.commit();
}

}  // namespace

int outliers_command(int argc, char** argv) {
  Selection selection;
  Format format = Format::table;
  std::vector<std::string> features;
  std::string model;
  bool all = false, pattern = false;
  return store_command(
      argc, argv,
      "Print the jobs that are unlike the others: for each feature the number of methods (1.5 IQR, "
      "modified z-score, z-score) that say so.",
      [&](CLI::App& app) {
        add_selection(app, selection);
        add_features(app, features);
        add_format(app, format);
        app.add_option("--model", model,
                       "Compare with this reference model instead of with each other")
            ->type_name("NAME");
        app.add_flag(
            "--pattern", pattern,
            "Also how far each is from the pattern that the features have in common (robust PCA)");
        app.add_flag("--all", all, "Print the jobs that are like the others, too");
      },
      [&](const std::string& url) {
        const auto database = open_store(url);
        const JobTable table = load_jobs(*database, selection, chosen(features));
        if (model.empty()) require_enough(table);
        std::set<std::string> names;
        for (const auto& one : table.jobs) names.insert(one.name);
        if (names.size() > 1 && selection.names.empty() && model.empty())
          warn(fmt::format("jobs of {} names are compared with each other: --name NAME",
                           names.size()));
        References references;
        if (!model.empty()) references = load_model(*database, model).references;
        const auto marks = judge_jobs(table, model.empty() ? nullptr : &references);
        Values scores;
        std::vector<int> unusual(table.jobs.size(), 0);
        if (pattern) {
          scores = pattern_scores(table);
          const double median = median_of(scores);
          const double limit = median + 3.5 * std::max(robust_deviation(scores, median), 0.1);
          for (std::size_t i = 0; i < scores.size(); ++i) unusual[i] = scores[i] > limit ? 1 : 0;
        }
        std::vector<std::string> columns{"jobid", "start", "username", "outlier"};
        columns.insert(columns.end(), table.features.begin(), table.features.end());
        if (pattern) columns.emplace_back("pattern");
        std::vector<Row> rows;
        const auto repeated =
            format == Format::table ? repeated_ids(*database) : std::set<std::string>();
        for (std::size_t i = 0; i < table.jobs.size(); ++i) {
          Row row{name_of_job(repeated, table.jobs[i].jobid, table.jobs[i].start),
                  table.jobs[i].start, table.jobs[i].user, std::int64_t(0)};
          std::int64_t worst = unusual[i];
          for (const auto& of_feature : marks) {
            row.emplace_back(std::to_string(of_feature[i]));
            worst = std::max<std::int64_t>(worst, of_feature[i]);
          }
          row[3] = worst;
          if (pattern) row.emplace_back(fmt::format("{:.4g}", scores[i]));
          if (all || worst > 0) rows.push_back(std::move(row));
        }
        if (format == Format::table && rows.empty())
          say(fmt::format("none of {} is unlike the others",
                          counted(table.jobs.size(), "job", "jobs")));
        else
          print(render(format, columns, rows));
        return exit_done;
      });
}

int rca_command(int argc, char** argv) {
  std::string job, model;
  Selection others;
  bool json = false;
  return store_command(
      argc, argv,
      "Name why a job is unlike others. By default these are all of the same user and name.",
      [&](CLI::App& app) {
        app.add_option("JOB", job, "The job, as [CLUSTER/]ID[@START]")->required()->type_name("");
        app.add_option("OTHERS", others.jobs, "The jobs to compare with")->type_name("");
        app.add_option("--tag", others.tags, "Compare with jobs with these tags")
            ->type_name("K:V;...")
            ->allow_extra_args(false);
        app.add_option("--model", model, "Compare with the jobs of this reference model")
            ->type_name("NAME");
        app.add_flag("--json", json, "As JSON");
      },
      [&](const std::string& url) {
        const auto database = open_store(url);
        const std::int64_t id = find_job(*database, job);
        if (others.jobs.empty() && others.tags.empty() && model.empty()) {
          const auto row =
              database->query("SELECT username, jobname FROM jobs WHERE id = ?", {id}).at(0);
          others.users = {to_text(row[0])};
          others.names = {to_text(row[1])};
        }
        JobTable table = load_jobs(*database, others, job_features());
        if (!model.empty()) {
          const auto of_model = load_model(*database, model).jobs;
          for (std::size_t i = table.jobs.size(); i-- > 0;)
            if (std::ranges::find(of_model, std::to_string(table.jobs[i].id)) == of_model.end()) {
              table.jobs.erase(table.jobs.begin() + static_cast<std::ptrdiff_t>(i));
              for (auto& column : table.columns)
                column.erase(column.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
        const auto same = [id](const JobTable::Job& one) { return one.id == id; };
        if (std::ranges::none_of(table.jobs, same)) {
          Selection one;
          one.jobs = {job};
          const JobTable own = load_jobs(*database, one, job_features());
          table.jobs.push_back(own.jobs.at(0));
          for (std::size_t f = 0; f < own.columns.size(); ++f)
            table.columns[f].push_back(own.columns[f].at(0));
        }
        require_enough(table);
        const auto place = std::ranges::find_if(table.jobs, same) - table.jobs.begin();
        const Diagnosis found = find_causes(*database, table, static_cast<std::size_t>(place));
        if (json) {
          Json out{{"job", job},
                   {"compared_with", table.jobs.size() - 1},
                   {"causes", Json::array()},
                   {"features", Json::array()}};
          for (const Cause& c : found.causes)
            out["causes"].push_back(
                {{"cause", c.kind}, {"subject", c.subject}, {"text", c.text}, {"hint", c.hint}});
          for (const Ranked& r : found.features)
            out["features"].push_back({{"feature", r.feature},
                                       {"value", r.value},
                                       {"median", r.median},
                                       {"score", r.score}});
          print(out.dump(1) + "\n");
          return exit_done;
        }
        std::string out;
        for (const Cause& cause : found.causes)
          out += fmt::format("{}: {}\n  hint: {}\n", cause.kind, cause.text, cause.hint);
        if (found.causes.empty())
          out += fmt::format("no cause found, compared with {} others\n", table.jobs.size() - 1);
        out += "\n";
        std::vector<Row> rows;
        for (const Ranked& r : found.features)
          if (rows.size() < 8 && std::abs(r.score) > 2)
            rows.push_back(
                {r.feature, human(r.feature, r.value), human(r.feature, r.median),
                 std::abs(r.score) == kNeverVaries ? "-" : fmt::format("{:.1f}", r.score)});
        if (!rows.empty())
          out += render(Format::table, {"feature", "here", "usually", "deviations"}, rows);
        print(out);
        return exit_done;
      });
}

int report_command(int argc, char** argv) {
  Selection selection;
  std::vector<std::string> features;
  std::string file;
  return store_command(
      argc, argv,
      "Write one page for browsers: the jobs, the outliers among them, and why. It loads nothing.",
      [&](CLI::App& app) {
        add_selection(app, selection);
        add_features(app, features);
        app.add_option("-o,--out", file, "The page to write; - is standard output")
            ->required()
            ->type_name("FILE");
      },
      [&](const std::string& url) {
        auto out = value_or_throw(OutputFile::prepare(file));
        const auto database = open_store(url);
        auto wanted = chosen(features);
        const JobTable table = load_jobs(*database, selection, wanted);
        require_enough(table);
        value_or_throw(out.write(page_of(*database, table, judge_jobs(table, nullptr))));
        return exit_done;
      });
}

int model_command(int argc, char** argv) {
  enum class Action { make, list, remove } action = Action::list;
  std::string name;
  Selection selection;
  std::vector<std::string> features;
  Format format = Format::table;
  return store_command(
      argc, argv,
      "Make, list and delete reference models: what is usual for a kind of job. Their jobs are not "
      "retired.",
      [&](CLI::App& app) {
        add_choice<Action>(
            app, "ACTION", action,
            {{"make", Action::make}, {"list", Action::list}, {"delete", Action::remove}},
            "What to do (default: list)");
        app.add_option("NAME", name, "The model's name")->type_name("");
        add_selection(app, selection);
        add_features(app, features);
        add_format(app, format);
      },
      [&](const std::string& url) -> int {
        const auto database = open_store(url);
        if (action == Action::list) {
          print(render(
              format, {"name", "username", "created", "jobs"},
              database->query("SELECT name, username, created, (SELECT COUNT(*) FROM t_model_job "
                              "WHERE model_id = models.id) FROM models ORDER BY name")));
          return exit_done;
        }
        if (name.empty()) return usage_error("fs-job model", "NAME is missing");
        if (action == Action::make)
          make_model(*database, name,
                     load_jobs(*database, selection,
                               features.empty() ? job_features() : chosen(features)));
        else if (database->run("DELETE FROM t_model WHERE name = ?", {name}) == 0)
          throw Error(name, "no such model");
        return exit_done;
      });
}

}  // namespace heddle::jobs::store
