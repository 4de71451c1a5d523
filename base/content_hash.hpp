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

/// XXH3-128 in its canonical (big-endian) bytes: equal on every machine.
struct ContentHash {
  std::array<std::uint8_t, 16> bytes{};
  auto operator<=>(const ContentHash&) const = default;
  /// 32 lower-case hex digits.
  std::string hex() const;
};

ContentHash hash_bytes(std::string_view data);
/// Hash of the whole file behind `fd`, read by pread: the file offset stays. `name` is for
/// messages. `edit` may change the bytes at an offset before they count.
using EditBytes = std::function<void(std::span<char> bytes, std::uint64_t offset)>;
Result<ContentHash> hash_file(int fd, const std::string& name, const EditBytes& edit = {});

}  // namespace heddle
