// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.hpp"

namespace heddle::jobs {

/// The name that a scheduler has for the job; empty: none.
std::string scheduled_name();

/// job.json at a job's start (docs/formats/job-archive.md).
nlohmann::json begin_metadata(const std::string& jobid);
/// SLURM_RESTART_COUNT, 0 without.
std::int64_t restart_count();
/// Adds what is known at its end.
void end_metadata(nlohmann::json& job);

/// `value` without secrets: `***` if `name` names one; the password, or token, of a URL in it.
std::string masked(std::string_view name, std::string value);
/// Program arguments likewise: `--password=...`, `--token ...`, `API_KEY=...`, `-u USER:...`,
/// `-H 'Authorization: ...'`, URLs.
void mask_arguments(std::vector<std::string>& arguments);

/// What the control group of the job tells, of its limit and use in both versions. `groups` is
/// /proc/self/cgroup, `root` /sys/fs/cgroup.
nlohmann::json control_group(const std::string& groups, const std::string& root);

/// The id of the container that this process is in: the 64 digits in the names of podman's,
/// Docker's and Kubernetes's control groups, or, in a namespace of those, of the files that they
/// mount. `groups` and `mounts` are cgroup and mountinfo of /proc/self. Empty: none.
std::string container_id(const std::string& groups, const std::string& mounts);

/// The part of a het job of Slurm that has this node. Slurm gives the tasks of all of them the id
/// of the first, its epilogs their own.
struct HetComponent {
  std::int64_t offset;
  std::string job, id, nodes;  ///< the first one's id, its own, and its host list
};
std::optional<HetComponent> het_component();

/// The names in a Slurm host list: n[1-3,07],login.
std::vector<std::string> expand_hosts(const std::string& list);

std::int64_t now_us();
/// Empty: not set.
std::string variable(const char* name);

}  // namespace heddle::jobs
