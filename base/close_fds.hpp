// SPDX-License-Identifier: MIT
#pragma once

#include <span>

namespace heddle {

/// Closes every descriptor from 3 on but those in `keep`: a daemon must not hold its caller's pipes
/// open, nor a process that loses its rights keep what they opened. close_range(2), and before
/// Linux 5.9 one by one: those that /proc names, where there is one.
void close_fds_but(std::span<const int> keep);

}  // namespace heddle
