// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "jobs/collate.hpp"

namespace heddle::jobs {

enum class Layout : unsigned char { ours, epmt };

/// Writes the archive of a job into `directory` (docs/formats/job-archive.md), beside one of the
/// same name that is there. Result: its path.
Result<std::string> write_archive(const std::string& directory, const nlohmann::json& job,
                                  const Collated& collated, Layout layout);

/// Whether `path` is an archive of what the fs-launch with this mark (job.json's `launch`) started.
bool is_of_launch(const std::string& path, const std::string& launch);

}  // namespace heddle::jobs
