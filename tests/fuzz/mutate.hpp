// SPDX-License-Identifier: MIT
#pragma once

#include <random>
#include <string>
#include <vector>

namespace heddle::fuzz {

/// `bytes` after a few small changes: bits, bytes, numbers that bounds are missed by, pieces
/// removed, doubled, and put in from `others` (not empty).
std::string mutated(std::string bytes, const std::vector<std::string>& others,
                    std::mt19937_64& random);

}  // namespace heddle::fuzz
