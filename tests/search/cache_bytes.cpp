// SPDX-License-Identifier: MIT
#include "tests/search/cache_bytes.hpp"

#include <cstring>

namespace heddle::test {

namespace {

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

std::string new_cache(const std::vector<CacheEntry>& entries,
                      const std::vector<std::string>& hwcaps) {
  std::string strings;
  const auto base = 48 + entries.size() * 24;
  const auto string = [&](const std::string& text) {
    const auto at = static_cast<std::uint32_t>(base + strings.size());
    strings += text + '\0';
    return at;
  };
  std::string table;
  for (const auto& entry : entries) {
    append(table, entry.flags);
    append(table, string(entry.name));
    append(table, string(entry.path));
    append(table, std::uint32_t{0});
    append(table, entry.hwcap);
  }
  std::vector<std::uint32_t> names;
  for (const auto& name : hwcaps) names.push_back(string(name));
  const auto length = static_cast<std::uint32_t>(strings.size());
  while ((base + strings.size()) % 4 != 0) strings += '\0';
  const auto extension = static_cast<std::uint32_t>(base + strings.size());

  std::string out = "glibc-ld.so.cache1.1";
  append(out, static_cast<std::uint32_t>(entries.size()));
  append(out, length);
  append(out, std::uint32_t{2});  // little endian
  append(out, hwcaps.empty() ? 0U : extension);
  out.append(12, '\0');
  out += table + strings;
  if (hwcaps.empty()) return out;
  append(out, 0xEAA42174U);
  append(out, std::uint32_t{1});
  append(out, std::uint32_t{1});  // the hwcaps section
  append(out, std::uint32_t{0});
  append(out, static_cast<std::uint32_t>(out.size() + 8));
  append(out, static_cast<std::uint32_t>(names.size() * 4));
  for (const auto name : names) append(out, name);
  return out;
}

std::string old_cache(const std::vector<CacheEntry>& entries, const std::string& inner) {
  std::string strings;
  const auto string = [&](const std::string& text) {
    const auto at = static_cast<std::uint32_t>(strings.size());
    strings += text + '\0';
    return at;
  };
  std::string out = "ld.so-1.7.0";
  out += '\0';
  append(out, static_cast<std::uint32_t>(entries.size()));
  for (const auto& entry : entries) {
    append(out, entry.flags);
    append(out, string(entry.name));
    append(out, string(entry.path));
  }
  if (inner.empty()) return out + strings;
  while (out.size() % 8 != 0) out += '\0';
  return out + inner;
}

}  // namespace heddle::test
