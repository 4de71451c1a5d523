// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "ship/bundle/bundle_format.hpp"

namespace heddle {

/// Fills `piece`, whose size is the frame's length, from a frame's stored bytes. False: they are
/// not those that were packed. They are decoded only after their hash has been compared.
bool decode_frame(const BundleFrame& frame, std::string_view stored, std::span<char> piece);

/// Reads and decodes one frame of the open bundle. EBADMSG: it is damaged; else errors of pread(2).
Result<std::string> read_frame(int file, const std::string& path, const BundleIndex& index,
                               std::size_t number);

/// The numbers of the frames that cannot be read or decoded; many are read at a time.
std::vector<std::size_t> damaged_frames(int file, const BundleIndex& index);

/// Reads and decodes all frames. EBADMSG: some are damaged.
Result<void> check_frames(int file, const std::string& path, const BundleIndex& index);

}  // namespace heddle
