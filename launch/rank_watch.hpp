// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace heddle::launch {

/// How many ranks a job has of which none reports, since all are static: a thread looks at this
/// node's processes for one that has `mark` in HEDDLE_LAUNCH, until it finds one or this process
/// ends. It sees none that is setuid, ends at once, or runs on another node. It inherits the signal
/// mask. Result: what it finds, at first 0.
std::shared_ptr<const std::atomic<std::uint64_t>> watch_ranks(std::string mark);

}  // namespace heddle::launch
