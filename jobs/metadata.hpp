// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.hpp"

namespace heddle::jobs {

/// job.json at a job's start (docs/formats/job-archive.md).
nlohmann::json begin_metadata(const std::string& jobid);
/// Adds what is known at its end.
void end_metadata(nlohmann::json& job);

/// `value` without secrets: `***` if `name` names one; the password of a URL in it.
std::string masked(std::string_view name, std::string value);
/// Program arguments likewise: `--password=...`, `--token ...`, `API_KEY=...`, URLs.
void mask_arguments(std::vector<std::string>& arguments);

/// The names in a Slurm host list: n[1-3,07],login.
std::vector<std::string> expand_hosts(const std::string& list);

std::int64_t now_us();

}  // namespace heddle::jobs
