// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "fsgen/mount_lease.hpp"

namespace heddle {

/// The name by which fs-gens find each other's mount: equal only for those whom one daemon can
/// serve; `map_id` is the id of its map. Failure: no name can be made here.
Result<std::string> lease_name(const LeaseRequest& request, const std::string& map_id);
/// Failure: the map cannot be read.
Result<std::string> id_of_map(const std::string& path);

/// What /proc/self/cgroup says, without the part that is a task's own.
std::string without_task(const std::string& cgroup);

}  // namespace heddle
