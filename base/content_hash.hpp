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

/// SHA-256: the identity of bytes from untrusted sources (images, maps, others' files). No
/// collisions can be constructed, so equal hashes may share a copy, a decision or a mount. Checksum
/// is ten times as fast.
struct ContentHash {
  std::array<std::uint8_t, 32> bytes{};
  auto operator<=>(const ContentHash&) const = default;
  /// 64 lower-case hex digits.
  std::string hex() const;
};

ContentHash hash_bytes(std::string_view data);
/// The hash of the whole file `fd`, whose offset stays unchanged. `name` is for messages;
/// `moves_on` is called for each piece.
Result<ContentHash> hash_file(int fd, const std::string& name,
                              const std::function<void()>& moves_on = {});

/// XXH3-128 in its canonical form: detects damage in files of this user. Collisions can be
/// constructed, so it identifies no untrusted bytes.
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
