// SPDX-License-Identifier: MIT
#include "ship/job_directory.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace heddle::ship {

std::string job_directory_prefix() { return fmt::format("heddle-job-{}-", ::geteuid()); }

std::string job_directory(const std::string& to, const std::string& job) {
  return to + "/" + job_directory_prefix() + job;
}

std::string bundle_path(const std::string& directory, const std::string& id) {
  return directory + "/" + id + ".bundle";
}

}  // namespace heddle::ship
