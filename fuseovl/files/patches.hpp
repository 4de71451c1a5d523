// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "resolver/map/map_content.hpp"

namespace heddle {

/// One of the two sides of a patch.
using PatchSide = std::string BytePatch::*;

/// Writes each patch's `side` over `bytes`, which stand at `offset` of the file.
void put_patches(const std::vector<BytePatch>& patches, PatchSide side, std::span<char> bytes,
                 std::uint64_t offset);

/// Whether the file has each patch's `side` at its place. False as well when it cannot be read.
bool has_patches(int fd, const std::vector<BytePatch>& patches, PatchSide side);

}  // namespace heddle
