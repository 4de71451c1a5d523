// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace heddle::ship {

/// How the names of this user's directories of jobs begin.
std::string job_directory_prefix();
/// The job's directory on each node, below `to`.
std::string job_directory(const std::string& to, const std::string& job);
std::string bundle_path(const std::string& directory, const std::string& id);

inline constexpr const char* kNodeDirectory = "/tmp";  ///< the default of `to`
/// A file in directories of jobs that Slurm has numbered; others' numbers mean nothing to squeue.
inline constexpr const char* kSlurmMark = "slurm";

}  // namespace heddle::ship
