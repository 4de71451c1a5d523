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

}  // namespace heddle::jobs
