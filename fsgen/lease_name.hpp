// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "fsgen/mount_lease.hpp"

namespace heddle {

/// The name by which fs-gens find each other's mount: equal only for those whom one daemon can
/// serve. Failure: the map cannot be read.
Result<std::string> lease_name(const LeaseRequest& request);

/// What /proc/self/cgroup says, without the part that is a task's own.
std::string without_task(const std::string& cgroup);

}  // namespace heddle
