// SPDX-License-Identifier: MIT
#include "jobs/store/schema.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

#include "base/paths.hpp"
#include "base/result.hpp"

namespace heddle::jobs::store {
namespace {

// Tables begin with t_ and may change with the version; the views are the stable schema of
// docs/jobs.md. @ID@, @TAGS@ and @VIEW@ differ between the databases. A store is made by one
// version, and none of another version is read.
constexpr const char* kTables = R"(
CREATE TABLE t_job (
  id @ID@, username TEXT NOT NULL, cluster TEXT NOT NULL, jobid TEXT NOT NULL,
  start BIGINT NOT NULL, restart BIGINT NOT NULL, finish BIGINT, submitted BIGINT NOT NULL,
  jobname TEXT, workdir TEXT, exitcode BIGINT, exitsignal BIGINT, ranks BIGINT,
  expected_hosts TEXT NOT NULL, complete BIGINT NOT NULL, num_hosts BIGINT, num_procs BIGINT,
  num_threads BIGINT, cpu_time BIGINT, environment TEXT, info TEXT, @METRICS@, @TOTALS@,
  UNIQUE (username, cluster, jobid, start));
CREATE INDEX job_start ON t_job (start);
CREATE TABLE t_tag (
  job_id BIGINT NOT NULL REFERENCES t_job ON DELETE CASCADE, annotation BIGINT NOT NULL,
  name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (job_id, annotation, name));
CREATE TABLE t_node (
  id @ID@, job_id BIGINT NOT NULL REFERENCES t_job ON DELETE CASCADE, host TEXT NOT NULL,
  hash TEXT NOT NULL, start BIGINT, finish BIGINT, submitted BIGINT NOT NULL, exitcode BIGINT,
  exitsignal BIGINT, ranks BIGINT, num_procs BIGINT, num_threads BIGINT, cpu_time BIGINT,
  info TEXT, @METRICS@, @TOTALS@, UNIQUE (job_id, host, hash));
CREATE TABLE t_process (
  job_id BIGINT NOT NULL REFERENCES t_job ON DELETE CASCADE, node_id BIGINT NOT NULL,
  n BIGINT NOT NULL, parent BIGINT, depth BIGINT NOT NULL, tags TEXT, exename TEXT, path TEXT,
  args TEXT, exitcode BIGINT, exitsignal BIGINT, pid BIGINT NOT NULL, generation BIGINT,
  ppid BIGINT, pgid BIGINT, sid BIGINT, numtids BIGINT, mpirank BIGINT, start BIGINT NOT NULL,
  finish BIGINT, marks TEXT, container TEXT, ended_by TEXT, library_set BIGINT, cpu_time BIGINT,
  inclusive_cpu_time BIGINT, more TEXT, @METRICS@, PRIMARY KEY (job_id, node_id, n));
CREATE TABLE t_thread (
  job_id BIGINT NOT NULL REFERENCES t_job ON DELETE CASCADE, node_id BIGINT NOT NULL,
  n BIGINT NOT NULL, thread BIGINT NOT NULL, tid BIGINT, more TEXT, @METRICS@,
  PRIMARY KEY (job_id, node_id, n, thread));
CREATE TABLE t_library (
  job_id BIGINT NOT NULL REFERENCES t_job ON DELETE CASCADE, node_id BIGINT NOT NULL,
  library_set BIGINT NOT NULL, position BIGINT NOT NULL, name TEXT, path TEXT, failed BIGINT,
  size BIGINT, PRIMARY KEY (job_id, node_id, library_set, position));
CREATE TABLE t_file (
  job_id BIGINT NOT NULL REFERENCES t_job ON DELETE CASCADE, node_id BIGINT NOT NULL,
  n BIGINT NOT NULL, position BIGINT NOT NULL, path TEXT, opens BIGINT, failed BIGINT,
  bytes_read BIGINT, bytes_written BIGINT, PRIMARY KEY (job_id, node_id, n, position));
CREATE TABLE t_model (
  id @ID@, username TEXT NOT NULL, name TEXT NOT NULL, created BIGINT NOT NULL,
  content TEXT NOT NULL, UNIQUE (username, name));
CREATE TABLE t_model_job (
  model_id BIGINT NOT NULL REFERENCES t_model ON DELETE CASCADE,
  job_id BIGINT NOT NULL REFERENCES t_job ON DELETE CASCADE, PRIMARY KEY (model_id, job_id));
CREATE INDEX model_of_job ON t_model_job (job_id);
CREATE TABLE t_version (version BIGINT NOT NULL);
INSERT INTO t_version VALUES (2);
)";

constexpr const char* kViews = R"(
CREATE VIEW jobs @VIEW@ AS SELECT id, username, cluster, jobid, restart, jobname, start, finish,
  finish - start AS duration, submitted, exitcode, exitsignal, ranks, complete, num_hosts,
  num_procs, num_threads, cpu_time, @NAMES@, @TOTALNAMES@,
  (SELECT @TAGS@ FROM t_tag WHERE job_id = t_job.id AND annotation = 0) AS tags,
  (SELECT @TAGS@ FROM t_tag WHERE job_id = t_job.id AND annotation = 1) AS annotations,
  environment, workdir FROM t_job;
CREATE VIEW hosts @VIEW@ AS SELECT job_id, id AS node_id, host, start, finish, submitted, exitcode,
  num_procs, num_threads, cpu_time, @NAMES@, @TOTALNAMES@ FROM t_node;
CREATE VIEW processes @VIEW@ AS SELECT p.job_id, p.node_id, o.host, p.n, p.parent, p.depth, p.tags,
  p.exename, p.path, p.args, p.exitcode, p.exitsignal, p.pid, p.generation, p.ppid, p.pgid, p.sid,
  p.numtids, p.mpirank, p.start, p.finish, p.finish - p.start AS duration, p.marks, p.container,
  p.library_set, p.cpu_time, p.inclusive_cpu_time, @P.NAMES@, p.more
  FROM t_process p JOIN t_node o ON o.id = p.node_id;
CREATE VIEW threads @VIEW@ AS SELECT job_id, node_id, n, thread, tid, @NAMES@, more FROM t_thread;
CREATE VIEW libraries @VIEW@ AS SELECT job_id, node_id, library_set, position, name, path, failed,
  size FROM t_library;
CREATE VIEW files @VIEW@ AS SELECT job_id, node_id, n, position, path, opens, failed, bytes_read,
  bytes_written FROM t_file;
CREATE VIEW tags @VIEW@ AS SELECT job_id, annotation, name, value FROM t_tag;
CREATE VIEW models @VIEW@ AS SELECT id, username, name, created, content FROM t_model;
)";

// The worst that a user of the database can do, with any SQL: to read, change and delete own rows.
// Names of rows are checked (username = current_user), a row below a job belongs to who owns that
// job, and ids cannot be chosen, so that no role can take those of others. Views are of the role
// that asks (security_invoker). Roles belong to the server: they stay when the schema goes.
constexpr const char* kPostgresRights = R"(
DO $$
DECLARE it RECORD; cols TEXT;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'fs_job_user') THEN
    CREATE ROLE fs_job_user NOLOGIN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'fs_job_reader') THEN
    CREATE ROLE fs_job_reader NOLOGIN;
  END IF;
  REVOKE ALL ON SCHEMA fs_job FROM PUBLIC;
  GRANT USAGE ON SCHEMA fs_job TO fs_job_user, fs_job_reader;
  GRANT SELECT ON ALL TABLES IN SCHEMA fs_job TO fs_job_user, fs_job_reader;
  FOR it IN SELECT table_name AS name FROM information_schema.tables
      WHERE table_schema = 'fs_job' AND table_type = 'BASE TABLE' AND table_name <> 't_version' LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', it.name);
    EXECUTE format('DROP POLICY IF EXISTS reading ON %I', it.name);
    EXECUTE format('DROP POLICY IF EXISTS own ON %I', it.name);
    EXECUTE format('CREATE POLICY reading ON %I FOR SELECT TO fs_job_reader USING (true)', it.name);
    EXECUTE format('CREATE POLICY own ON %I USING (%s)', it.name, CASE
      WHEN it.name IN ('t_job', 't_model') THEN 'username = current_user'
      WHEN it.name = 't_model_job' THEN
        'model_id IN (SELECT id FROM t_model WHERE username = current_user)
         AND job_id IN (SELECT id FROM t_job WHERE username = current_user)'
      ELSE 'job_id IN (SELECT id FROM t_job WHERE username = current_user)' END);
    SELECT string_agg(quote_ident(column_name), ',') INTO cols FROM information_schema.columns
      WHERE table_schema = 'fs_job' AND table_name = it.name AND column_name <> 'id';
    EXECUTE format('GRANT INSERT (%s), UPDATE (%s), DELETE ON %I TO fs_job_user',
                   cols, cols, it.name);
  END LOOP;
END $$;
)";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

template <class List>
std::string list_of(const List& list, std::string_view prefix, std::string_view suffix) {
  std::string out;
  for (const Metric& metric : list)
    out += fmt::format("{}{}{}{}", out.empty() ? "" : ", ", prefix, metric.name, suffix);
  return out;
}

bool has_schema(Database& database) {
  const char* sql = database.is_postgres() ? "SELECT 1 FROM information_schema.tables WHERE "
                                             "table_schema = 'fs_job' AND table_name = 't_version'"
                                           : "SELECT 1 FROM sqlite_schema WHERE name = 't_version'";
  return !database.query(sql).empty();
}

int version_of(Database& database) {
  if (!has_schema(database)) return 0;
  const auto rows = database.query("SELECT version FROM t_version");
  return rows.empty() ? 0 : static_cast<int>(to_int(rows[0][0]));
}

void check_version(const Database& database, int version) {
  if (version != 0 && version != kSchemaVersion)
    throw Error(database.name(), fmt::format("the store has schema {}", version),
                fmt::format("this fs-job knows {}", kSchemaVersion),
                version > kSchemaVersion ? "update heddle" : "submit the archives to a new store");
}

std::string default_path() {
  auto path = below_home("XDG_DATA_HOME", "/.local/share", "/heddle/jobs.db");
  if (path.empty()) throw Error("", "no place for the store", "HOME is not set", "use --db");
  return path;
}

}  // namespace

std::unique_ptr<Database> open_any(const std::string& url, bool create) {
  if (!url.empty()) return Database::open(url, create);
  if (const char* set = std::getenv("FS_JOB_DB"); set && *set != '\0')
    return Database::open(set, create);
  return Database::open(default_path(), create, true);
}

std::unique_ptr<Database> open_store(const std::string& url, bool create) {
  auto database = open_any(url, create);
  if (create && !database->is_postgres())
    migrate(*database);
  else if (const int version = version_of(*database); version != kSchemaVersion) {
    check_version(*database, version);
    throw Error(database->name(), "the database has no store of jobs", {},
                database->is_postgres() ? "an administrator runs fs-job migrate"
                                        : "fs-job submit makes one");
  }
  return database;
}

int migrate(Database& database) {
  if (const int version = version_of(database); version != 0) {  // the common case, without a lock
    check_version(database, version);
    return version;
  }
  Transaction transaction(database);
  const bool postgres = database.is_postgres();
  if (postgres) {
    database.run("SELECT pg_advisory_xact_lock(7355608)");
    database.script("CREATE SCHEMA IF NOT EXISTS fs_job");
  }
  const int version = version_of(database);
  if (version == 0) {
    std::string sql = std::string(kTables) + kViews;
    for (const auto& [what, by] : std::vector<std::pair<std::string, std::string>>{
             {"@ID@",
              postgres ? "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY" : "INTEGER PRIMARY KEY"},
             {"@TAGS@", postgres ? "COALESCE(json_object_agg(name, value), '{}')::text"
                                 : "json_group_object(name, value)"},
             {"@VIEW@", postgres ? "WITH (security_invoker = true)" : ""},
             {"@METRICS@", list_of(kMetrics, "", " BIGINT")},
             {"@TOTALS@", list_of(kTotals, "", " BIGINT")},
             {"@P.NAMES@", list_of(kMetrics, "p.", "")},
             {"@NAMES@", list_of(kMetrics, "", "")},
             {"@TOTALNAMES@", list_of(kTotals, "", "")}})
      sql = replaced(std::move(sql), what, by);
    database.script(sql);
    if (postgres) database.script(kPostgresRights);
  }
  transaction.commit();
  return version;
}

}  // namespace heddle::jobs::store
