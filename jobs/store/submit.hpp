// SPDX-License-Identifier: MIT
#pragma once

#include "jobs/store/archive.hpp"
#include "jobs/store/database.hpp"

namespace heddle::jobs::store {

/// Stores `archive` in one transaction: its rows, and the row of its job, derived from all of the
/// job's archives. False: it is in the database already, which is unchanged.
bool submit(Database& database, Archive archive);

}  // namespace heddle::jobs::store
