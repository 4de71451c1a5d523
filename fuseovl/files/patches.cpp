// SPDX-License-Identifier: MIT
#include "fuseovl/files/patches.hpp"

#include <algorithm>

#include "fuseovl/files/read_at.hpp"

namespace heddle {

void put_patches(const std::vector<BytePatch>& patches, PatchSide side, std::span<char> bytes,
                 std::uint64_t offset) {
  for (const auto& patch : patches) {
    const auto& text = patch.*side;
    const auto from = std::max(patch.offset, offset);
    const auto to = std::min(patch.offset + text.size(), offset + bytes.size());
    if (from < to) text.copy(bytes.data() + (from - offset), to - from, from - patch.offset);
  }
}

bool has_patches(int fd, const std::vector<BytePatch>& patches, PatchSide side) {
  return std::all_of(patches.begin(), patches.end(), [&](const BytePatch& patch) {
    const auto& wanted = patch.*side;
    std::string bytes(wanted.size(), '\0');
    const auto got = read_at(fd, bytes, static_cast<off_t>(patch.offset), MayBlock::yes);
    return got && *got == bytes.size() && bytes == wanted;
  });
}

}  // namespace heddle
