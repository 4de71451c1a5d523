// SPDX-License-Identifier: MIT
#include "tests/search/cache_bytes.hpp"

#include "base/coder.hpp"

namespace heddle::test {
namespace {

/// A string table.
struct Strings {
  std::uint32_t base = 0;  ///< of its offsets
  std::string bytes{};
  std::uint32_t add(const std::string& text) {
    bytes += text + '\0';
    return base + static_cast<std::uint32_t>(bytes.size() - text.size() - 1);
  }
};

}  // namespace

std::string new_cache(const std::vector<CacheEntry>& entries,
                      const std::vector<std::string>& hwcaps) {
  Strings strings{static_cast<std::uint32_t>(48 + entries.size() * 24)};
  Encoder table;
  for (const auto& entry : entries) {
    const auto name = strings.add(entry.name);
    table(entry.flags, name, strings.add(entry.path), std::uint32_t{0}, entry.hwcap);
  }
  std::vector<std::uint32_t> names;
  for (const auto& name : hwcaps) names.push_back(strings.add(name));
  const auto length = static_cast<std::uint32_t>(strings.bytes.size());
  while ((strings.base + strings.bytes.size()) % 4 != 0) strings.bytes += '\0';
  const auto extension = static_cast<std::uint32_t>(strings.base + strings.bytes.size());
  Encoder numbers;  // 2: little endian
  numbers(static_cast<std::uint32_t>(entries.size()), length, std::uint32_t{2},
          hwcaps.empty() ? 0U : extension);
  const std::string out = "glibc-ld.so.cache1.1" + numbers.take() + std::string(12, '\0') +
                          table.take() + strings.bytes;
  if (hwcaps.empty()) return out;
  Encoder section;  // one, of hwcaps
  section(0xEAA42174U, 1U, 1U, 0U, extension + 24, static_cast<std::uint32_t>(names.size() * 4));
  for (const auto name : names) section(name);
  return out + section.take();
}

std::string old_cache(const std::vector<CacheEntry>& entries, const std::string& inner) {
  Strings strings;
  Encoder table;
  table(static_cast<std::uint32_t>(entries.size()));
  for (const auto& entry : entries) {
    const auto name = strings.add(entry.name);
    table(entry.flags, name, strings.add(entry.path));
  }
  std::string out = std::string("ld.so-1.7.0", 12) + table.take();
  if (inner.empty()) return out + strings.bytes;
  while (out.size() % 8 != 0) out += '\0';
  return out + inner;
}

}  // namespace heddle::test
