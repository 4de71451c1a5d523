// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle::test {

struct CacheEntry {
  std::string name;
  std::string path;
  std::int32_t flags = 0x303;
  std::uint64_t hwcap = 0;
};

/// hwcap of an entry for glibc-hwcaps name `index` that requires ISA level `level`.
constexpr std::uint64_t named_hwcap(std::uint32_t index, std::uint32_t level) {
  return (UINT64_C(1) << 62) | (std::uint64_t{level} << 32) | index;
}

/// An ld.so.cache in the new format, entries as given (ldconfig sorts them, largest first), with
/// `hwcaps` (sorted) as its extension unless empty.
std::string new_cache(const std::vector<CacheEntry>& entries,
                      const std::vector<std::string>& hwcaps = {});
/// The old format, without hwcap. `inner`, a cache in the new format, is appended aligned.
std::string old_cache(const std::vector<CacheEntry>& entries, const std::string& inner = {});

}  // namespace heddle::test
