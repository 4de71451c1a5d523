// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/fd.hpp"

namespace heddle::jobs {

/// The id in `given`, or of the scheduler's variables; else one of this session, with a warning.
/// Failure: it is no file name.
Result<std::string> job_id(const std::string& given);

/// What is collected.
struct Collecting {
  std::string argv = "full";  ///< full, exe, none
  bool lookups = false;
  bool perf = false;
};

/// The files of one job on this node: `records`, to which its processes append, and `job.json`, in
/// a directory of the user's alone below $HEDDLE_JOB_SPOOL, or /tmp/heddle-jobs-UID.
class Spool {
 public:
  /// Nothing is created.
  static Spool at(const std::string& jobid);
  /// The ids of all that are there.
  static std::vector<std::string> ids();
  Result<void> create() const;

  /// null: the job was not started.
  Result<nlohmann::json> read() const;
  Result<void> write(const nlohmann::json& job) const;
  /// With the lock held. A process that joins meanwhile makes a new one.
  Result<void> remove() const;
  /// Held while the job's state changes, by remove() too. ENOENT: there is none, or no longer.
  Result<Fd> lock() const;

  const std::string& jobid() const { return jobid_; }
  std::string records() const { return directory_ + "/records"; }
  const std::string& directory() const { return directory_; }

 private:
  Spool(std::string jobid, std::string base, std::string directory)
      : jobid_(std::move(jobid)), base_(std::move(base)), directory_(std::move(directory)) {}
  std::string jobid_;
  std::string base_;
  std::string directory_;
};

/// Whether a scheduler has set a job's id in the environment.
bool is_in_scheduled_job();

/// Changes what is kept of a job that is not staged yet; of job_id(""), if `jobid` is empty. false:
/// there is no such job on this node.
Result<bool> change_running(const std::string& jobid,
                            const std::function<void(nlohmann::json&)>& change);

/// The variables that have processes collected, with what the user has of them kept.
Result<std::vector<std::pair<std::string, std::string>>> collecting_variables(
    const Spool& spool, const Collecting& what);

}  // namespace heddle::jobs
