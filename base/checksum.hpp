// SPDX-License-Identifier: MIT
#pragma once

#include <xxhash.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace heddle {

/// XXH3-128 in its canonical bytes: tells damage of what this user wrote itself. Whoever chooses
/// the bytes can make any checksum: what others make is identified by ContentHash.
struct Checksum {
  std::array<std::uint8_t, 16> bytes{};
  auto operator<=>(const Checksum&) const = default;
};

inline Checksum checksum_of(std::string_view data) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data.data(), data.size()));
  Checksum out;
  static_assert(sizeof(canonical.digest) == sizeof(out.bytes));
  std::memcpy(out.bytes.data(), canonical.digest, sizeof(out.bytes));
  return out;
}

}  // namespace heddle
