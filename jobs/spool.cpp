// SPDX-License-Identifier: MIT
#include "jobs/spool.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/child.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/run_directory.hpp"
#include "base/temp_dir.hpp"
#include "base/try.hpp"
#include "jobs/collector/record_format.hpp"
#include "jobs/metadata.hpp"

namespace heddle::jobs {
namespace {

std::string spool_base() {
  const auto given = variable("HEDDLE_JOB_SPOOL");
  return given.empty() ? "/tmp/heddle-jobs-" + std::to_string(::getuid()) : given;
}

/// Of this session: the same in all commands of a script.
std::string session_id() {
  const auto sid = std::to_string(::getsid(0));
  const auto stat = read_file("/proc/" + sid + "/stat", 4096);
  std::string start = "0";
  if (stat) {
    std::size_t at = stat->rfind(')');
    for (int field = 2; field < 22 && at != stat->npos; ++field) at = stat->find(' ', at + 1);
    if (at != stat->npos) start = stat->substr(at + 1, stat->find(' ', at + 1) - at - 1);
  }
  return "session-" + sid + "-" + start;
}

/// Its id; empty: there is none.
std::string scheduled_job() {
  std::string id;
  for (const char* name : {"SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "PBS_JOB_ID"})
    if (id.empty()) id = variable(name);
  return id;
}

Result<std::string> collector_library() {
  const std::string bin = TRY(own_program_dir());
  const auto path = bin.substr(0, bin.rfind('/')) + "/lib/heddle/libheddle-job.so";
  if (::access(path.c_str(), R_OK) != 0) return fail_errno(path, "cannot find the collector");
  return path;
}

}  // namespace

bool is_in_scheduled_job() { return !scheduled_job().empty(); }

Result<std::string> job_id(const std::string& given) {
  std::string id = given;
  if (const auto component = het_component(); component && id.empty()) id = component->id;
  if (id.empty()) id = scheduled_job();
  if (id.empty()) {
    id = session_id();
    warn("no SLURM_JOB_ID or PBS_JOBID: the job is " + id);
  }
  const bool good =
      id.size() <= 128 && id[0] != '.' && std::ranges::all_of(id, [](unsigned char c) {
        return std::isalnum(c) || std::strchr("._-+@[]", c) != nullptr;
      });
  if (!good) return fail(id, "is no job id", "letters, digits and ._-+@[] only");
  return id;
}

Spool Spool::at(const std::string& jobid) {
  const auto base = spool_base();
  return {jobid, base, base + "/" + jobid};
}

std::vector<std::string> Spool::ids() {
  std::vector<std::string> out;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(spool_base(), failed))
    if (auto name = entry.path().filename().string(); !name.starts_with('.'))
      out.push_back(std::move(name));
  std::ranges::sort(out);
  return out;
}

Result<void> Spool::create() const {
  (void)TRY(RunDirectory::open_at(base_));
  (void)TRY(RunDirectory::open_at(directory_));
  const Fd records = TRY(open_file(this->records(), O_WRONLY | O_CREAT | O_NOFOLLOW, 0600));
  return {};
}

Result<nlohmann::json> Spool::read() const {
  if (auto found = RunDirectory::find(directory_); !found) {
    if (found.error().code() == ENOENT) return nlohmann::json();
    return fail(found.error());
  }
  const auto text = read_file(directory_ + "/job.json", 64U << 20);
  if (!text && text.error().code() == ENOENT) return nlohmann::json();
  if (!text) return fail(text.error());
  auto job = nlohmann::json::parse(*text, nullptr, false);
  if (!job.is_object()) return fail(directory_ + "/job.json", "cannot be read", "damaged");
  return job;
}

Result<void> Spool::write(const nlohmann::json& job) const {
  AtomicFile file = TRY(AtomicFile::create(directory_ + "/job.json"));
  TRY(file.write(job.dump(1) + "\n"));
  return file.commit();
}

Result<void> Spool::remove() const {
  // At once: a process that joins makes files in it before it has the lock.
  const auto aside = base_ + "/.removed-" + jobid_ + "-" + std::to_string(::getpid());
  if (::rename(directory_.c_str(), aside.c_str()) != 0)
    return errno == ENOENT ? Result<void>() : fail_errno(directory_, "cannot remove");
  return remove_tree(aside);
}

Result<Fd> Spool::lock() const {
  for (;;) {
    Fd fd = TRY(open_file(directory_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    while (::flock(fd.get(), LOCK_EX) != 0)
      if (errno != EINTR) return fail_errno(directory_, "cannot lock");
    struct stat held {
    }, there{};
    if (::fstat(fd.get(), &held) == 0 && ::lstat(directory_.c_str(), &there) == 0 &&
        held.st_dev == there.st_dev && held.st_ino == there.st_ino)
      return fd;
  }
}

Result<bool> change_running(const std::string& jobid,
                            const std::function<void(nlohmann::json&)>& change) {
  const auto id = job_id(jobid);
  if (!id) return false;
  const Spool spool = Spool::at(*id);
  if (TRY(spool.read()).is_null()) return false;
  const Fd lock = TRY(spool.lock());
  auto job = TRY(spool.read());
  if (job.is_null()) return false;
  change(job);
  TRY(spool.write(job));
  return true;
}

Result<std::vector<std::pair<std::string, std::string>>> collecting_variables(
    const Spool& spool, const Collecting& what) {
  std::string library = TRY(collector_library());
  // ld.so splits LD_PRELOAD at these, and has no way to quote them.
  const auto odd = [](const std::string& path) {
    return path.find_first_of(" :;$\t\n") != path.npos;
  };
  if (odd(library)) {
    const auto link = spool.directory() + "/libheddle-job.so";
    if (odd(link))
      return fail(link, "cannot be preloaded", "its path has odd characters",
                  "set HEDDLE_JOB_SPOOL to another directory");
    if (::symlink(library.c_str(), link.c_str()) != 0 && errno != EEXIST)
      return fail_errno(link, "cannot make a link");
    library = link;
  }
  if (spool.records().size() > kMostSpoolPath)
    return fail(spool.directory(), "cannot be used", "its path is too long",
                "set HEDDLE_JOB_SPOOL to another directory");
  std::string job = kJobPrefix;
  job[0] = what.argv == "full" ? 'f' : what.argv == "exe" ? 'e' : 'n';
  if (what.perf) job[1] = 'p';
  std::vector<std::pair<std::string, std::string>> out{{kJobVariable, job + spool.records()}};
  // Behind the user's, so that those interpose as they do without it.
  const auto append = [&](const char* name) {
    auto list = variable(name);
    if (list.find(library) == list.npos) list += (list.empty() ? "" : ":") + library;
    out.emplace_back(name, list);
  };
  append("LD_PRELOAD");
  // A library of AddressSanitizer's refuses to start behind a preload.
  const auto asan = variable("ASAN_OPTIONS");
  out.emplace_back("ASAN_OPTIONS", "verify_asan_link_order=0" + (asan.empty() ? "" : ":" + asan));
  if (what.lookups) {
    append("LD_AUDIT");
    // glibc leaves no room for a start's libraries' static TLS under an auditor.
    const auto tunables = variable("GLIBC_TUNABLES");
    if (tunables.find("optional_static_tls") == tunables.npos)
      out.emplace_back("GLIBC_TUNABLES", (tunables.empty() ? "" : tunables + ":") +
                                             "glibc.rtld.optional_static_tls=16384");
  }
  return out;
}

}  // namespace heddle::jobs
