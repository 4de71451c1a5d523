// SPDX-License-Identifier: MIT
#pragma once

#include <xxhash.h>

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace heddle {

/// SHA-256: the identity of bytes that somebody else may have made (files of others, images, maps).
/// Nobody can make two contents with one hash, so equal hashes may share a copy, a decision or a
/// mount. For damage alone Checksum is ten times as fast.
struct ContentHash {
  std::array<std::uint8_t, 32> bytes{};
  auto operator<=>(const ContentHash&) const = default;
  /// 64 lower-case hex digits.
  std::string hex() const;
};

ContentHash hash_bytes(std::string_view data);
/// Hash of the whole file behind `fd`, read by pread: the file offset stays. `name` is for
/// messages. `moves_on` is called for each piece.
Result<ContentHash> hash_file(int fd, const std::string& name,
                              const std::function<void()>& moves_on = {});

/// XXH3-128 in its canonical bytes: tells damage of what this user wrote itself. For chosen
/// bytes any checksum can be made: what others make is identified by ContentHash.
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
