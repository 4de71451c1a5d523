// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace heddle {

/// Bytes of `256M` or `1.5G`: a number, and K, M, G or T behind it, powers of 1024; `MB` and `MiB`
/// mean the same. nullopt: it is none, or beyond 1e18.
std::optional<std::uint64_t> parse_byte_size(std::string_view text);

}  // namespace heddle
