// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/fault/traced_run.hpp"

namespace heddle::test {

/// "writev number 3: EIO".
std::string to_text(const Fault& fault);

/// Every fault to try in a program that makes each call as often as `counts` says: EIO, ENOSPC,
/// ENOMEM, EMFILE and EINTR from each, and reads and writes that are cut short.
std::vector<Fault> all_faults(const TracedRun::Counts& counts);

/// Gives `live` a sample for HEDDLE_TEST_SECONDS (4); with HEDDLE_FAULTS=all every fault, and with
/// HEDDLE_FAULTS='writev number 3' those that to_text() tells with these words.
void try_faults(std::vector<Fault> faults, const std::function<void(const Fault&)>& live);

}  // namespace heddle::test
