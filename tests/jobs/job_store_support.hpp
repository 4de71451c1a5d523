// SPDX-License-Identifier: MIT
#pragma once

// Archives of jobs as tests need them, and a PostgreSQL server of their own.

#include <fmt/format.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "tests/support/prelude.hpp"

namespace heddle::test {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kStart = 1'600'000'000'000'000;

struct FakeProcess {
  int pid = 100, ppid = 1, generation = 0;
  std::int64_t start = 0, finish = 1'000'000;  ///< after the job's
  std::string exename = "app", args, marks;
  std::int64_t usertime = 500'000, rssmax = 10'000, minflt = 20'000, majflt = 0, rchar = 5'000'000,
               waiting = 1'000'000;
  std::int64_t failed = 50;
  int threads = 1;
  std::string exitcode = "0", exitsignal = "0";
};

struct FakeJob {
  std::string id = "1", host = "n1", user = "root", name = "job", cluster = "c";
  std::int64_t start = kStart, duration = 2'000'000;
  std::vector<std::string> hosts{"n1"};
  Json tags = Json::object(), cgroup = Json::object();
  std::vector<FakeProcess> processes{{}};
  std::vector<std::pair<std::string, std::string>> libraries{{"libc.so.6", "/lib/libc.so.6"},
                                                             {"libz.so.1", "/usr/lib/libz.so.1"}};
  Json more = Json::object();  ///< of job.json
};

constexpr const char* kHeader =
    "{tid,mpirank,usertime,systemtime,rssmax,minflt,majflt,rchar,time_waiting}"
    "\ttags\thostname\texename\tpath\texitcode\texitsignal\tpid\t"
    "generation\tppid\tpgid\tsid\tnumtids\tstart\tfinish\targs\tmarks\tlibraries\tfailed_"
    "lookups\tcontainer\tended_by\n";

inline std::string rows_of(const FakeJob& job) {
  std::string out;
  for (const FakeProcess& p : job.processes) {
    std::string values;
    for (int t = 0; t < p.threads; ++t)
      values += fmt::format("{}{},{},{},0,{},{},{},{},{}", t ? "," : "", p.pid + t,
                            t ? "NULL" : "0", p.usertime, t ? "NULL" : std::to_string(p.rssmax),
                            p.minflt, p.majflt, p.rchar, p.waiting);
    out += fmt::format(
        "{{{}}}\t\t{}\t{}\t/usr/bin/"
        "{}\t{}\t{}\t{}\t{}\t{}\t1\t1\t{}\t{}\t{}\t{}\t{}\t1\t{}\t\tself\n",
        values, job.host, p.exename, p.exename, p.exitcode, p.exitsignal, p.pid, p.generation,
        p.ppid, p.threads, job.start + p.start, job.start + p.finish, p.args, p.marks, p.failed);
  }
  return out;
}

/// Writes the archive's files to `directory`.
inline void write_files(const FakeJob& job, const std::string& directory) {
  Json meta{{"heddle_job", 2},
            {"jobid", job.id},
            {"cluster", job.cluster},
            {"host", job.host},
            {"job_start", job.start},
            {"restart", 0},
            {"start", job.start},
            {"stop", job.start + job.duration},
            {"user", job.user},
            {"jobname", job.name},
            {"exitcode", 0},
            {"hosts", job.hosts},
            {"tags", job.tags},
            {"annotations", Json::object()},
            {"environment", {{"OMP_NUM_THREADS", "2"}}},
            {"cgroup", job.cgroup}};
  meta.update(job.more);
  write_text_file(directory + "/job.json", meta.dump());
  write_text_file(directory + "/processes.tsv", kHeader + rows_of(job));
  std::string libraries = "set\tname\tpath\tfailed\tsize\n";
  for (const auto& [name, path] : job.libraries) libraries += "1\t" + name + "\t" + path + "\t\t\n";
  write_text_file(directory + "/libraries.tsv", libraries);
}

inline std::string pack(const std::string& directory, const std::string& archive) {
  run_checked(
      {"tar", "-C", directory, "-czf", archive, "job.json", "processes.tsv", "libraries.tsv"});
  return archive;
}

inline std::string write_archive(const FakeJob& job, const std::string& archive) {
  write_files(job, archive + ".dir");
  pack(archive + ".dir", archive);
  fs::remove_all(archive + ".dir");
  return archive;
}

/// A server of this test, as an unprivileged user, on a unix socket.
class PostgresServer {
 public:
  /// Nullptr, and why in `reason`, where there is none.
  static std::unique_ptr<PostgresServer> start(std::string& reason) {
    std::string bin;
    std::error_code failed;
    for (const auto& entry : fs::directory_iterator("/usr/lib/postgresql", failed))
      if (std::stoi(entry.path().filename().string()) >= 15) bin = entry.path().string() + "/bin";
    if (bin.empty()) return reason = "no PostgreSQL 15 is installed", nullptr;
    auto server = std::unique_ptr<PostgresServer>(new PostgresServer);
    server->bin_ = bin;
    char name[] = "/tmp/heddle-pg-XXXXXX";
    server->directory_ = ::mkdtemp(name);
    if (::geteuid() == 0) (void)::chown(name, 65534, 65534);
    const auto made = server->as_user(
        {bin + "/initdb", "-D", server->data(), "-U", "admin", "-A", "trust", "--no-sync"});
    if (made.status != 0) return reason = "initdb: " + made.err, nullptr;
    const auto up = server->as_user(
        {bin + "/pg_ctl", "-D", server->data(), "-w", "-l", server->directory_ + "/log", "-o",
         "-c listen_addresses= -c fsync=off -c unix_socket_directories=" + server->directory_,
         "start"});
    if (up.status != 0) return reason = "pg_ctl: " + up.err + up.out, nullptr;
    return server;
  }
  ~PostgresServer() {
    if (directory_.empty()) return;
    as_user({bin_ + "/pg_ctl", "-D", data(), "-m", "immediate", "-w", "stop"});
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
  std::string url(const std::string& user, const std::string& database = "postgres") const {
    return "postgresql:///" + database + "?host=" + directory_ + "&user=" + user;
  }
  RunResult sql(const std::string& user, const std::string& text,
                const std::string& database = "postgres") const {
    return test::run({bin_ + "/psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d",
                      url(user, database), "-c", text});
  }

 private:
  PostgresServer() = default;
  std::string data() const { return directory_ + "/data"; }
  RunResult as_user(Strings command) const {
    if (::geteuid() == 0)
      command = Strings{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"} + command;
    return test::run(command, {.env = {"LC_ALL=C"}, .cwd = directory_, .deadline = 120s});
  }
  std::string bin_, directory_;
};

}  // namespace heddle::test
