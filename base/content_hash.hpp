// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace heddle {

/// SHA-256: the identity of bytes that somebody else may have made (files of others, images, maps).
/// Nobody can make two contents with one hash, so equal hashes may share a copy, a decision or a
/// mount. For damage alone base/checksum.hpp is ten times as fast.
struct ContentHash {
  std::array<std::uint8_t, 32> bytes{};
  auto operator<=>(const ContentHash&) const = default;
  /// 64 lower-case hex digits.
  std::string hex() const;
};

ContentHash hash_bytes(std::string_view data);
/// Hash of the whole file behind `fd`, read by pread: the file offset stays. `name` is for
/// messages. `edit` may change the bytes at an offset before they count.
using EditBytes = std::function<void(std::span<char> bytes, std::uint64_t offset)>;
Result<ContentHash> hash_file(int fd, const std::string& name, const EditBytes& edit = {});

}  // namespace heddle
