// SPDX-License-Identifier: MIT
#include "resolver/search/ld_so_cache_writer.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>

namespace heddle {
namespace {

// The layout: sysdeps/generic/dl-cache.h; elf/cache.c (save_cache) writes it.
constexpr std::size_t kHeader = 48;
constexpr std::size_t kEntry = 24;

void put32(std::string& out, std::size_t value) {
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(value >> shift);
}

/// Strings behind the entries, each once.
class Strings {
 public:
  explicit Strings(std::size_t start) : start_(start) {}
  std::size_t add(std::string_view text) {
    const auto [at, is_new] = known_.emplace(text, start_ + bytes_.size());
    if (is_new) bytes_.append(text).push_back('\0');
    return at->second;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::size_t start_;
  std::string bytes_;
  std::unordered_map<std::string, std::size_t> known_;
};

}  // namespace

std::string write_ld_so_cache(const LdSoCache& old, const std::vector<CacheLine>& first,
                              const LoaderProfile& loader) {
  std::vector<LdSoCache::Line> lines;
  std::set<std::string_view> taken;
  for (const auto& line : first)
    if (taken.insert(line.name).second)
      lines.push_back({line.name, line.path, cache_flags(loader), 0});
  for (const auto& line : old.lines())
    if (line.flags != cache_flags(loader) || !taken.contains(line.name)) lines.push_back(line);
  // Descending: ld.so's search is a binary one over that order. Lines of one name keep theirs.
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) {
    return compare_cache_names(a.name, b.name) > 0;
  });
  Strings strings(kHeader + lines.size() * kEntry);
  std::string entries;
  for (const auto& line : lines) {
    put32(entries, static_cast<std::uint32_t>(line.flags));
    put32(entries, strings.add(line.name));
    put32(entries, strings.add(line.path));
    put32(entries, 0);  // osversion: unused
    put32(entries, line.hwcap & 0xFFFFFFFFU);
    put32(entries, line.hwcap >> 32);
  }
  std::vector<std::size_t> hwcaps;
  for (const auto name : old.hwcaps_names()) hwcaps.push_back(strings.add(name));
  std::string extension;
  const std::size_t behind = kHeader + entries.size() + strings.bytes().size();
  const std::size_t at = (behind + 3) & ~std::size_t{3};
  if (!hwcaps.empty()) {
    extension.assign(at - behind, '\0');
    put32(extension, 0xEAA42174U);  // cache_extension_magic
    put32(extension, 1);            // sections
    put32(extension, 1);            // cache_extension_tag_glibc_hwcaps
    put32(extension, 0);            // flags
    put32(extension, at + 24);      // where the section's data stands
    put32(extension, 4 * hwcaps.size());
    for (const auto name : hwcaps) put32(extension, name);
  }
  std::string out = "glibc-ld.so.cache1.1";
  put32(out, lines.size());
  put32(out, strings.bytes().size());
  put32(out, 2);  // cache_file_new_flags_endian_little
  put32(out, extension.empty() ? 0 : at);
  out.append(kHeader - out.size(), '\0');
  return out + entries + strings.bytes() + extension;
}

}  // namespace heddle
