// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "resolver/search/search.hpp"

namespace heddle {

/// /etc/ld.so.cache as ld.so reads it: the new format (1.1), also behind an old table, and the old
/// one alone. Nothing in the file is believed: every index is checked, as ld.so does, and a file
/// that ld.so would pass over is empty here.
class LdSoCache {
 public:
  /// An empty cache: no file.
  LdSoCache() = default;
  /// Takes the file's bytes. Never fails.
  LdSoCache(std::string bytes, const LoaderProfile& loader);

  /// The path ld.so would try for `name`, empty when the cache has none for this CPU. The view
  /// lasts as long as the cache.
  std::string_view lookup(const std::string& name) const;

  /// One line of the table, its strings as views that last as long as the cache.
  struct Line {
    std::string_view name;
    std::string_view path;
    std::int32_t flags = 0;
    std::uint64_t hwcap = 0;
  };
  /// Every sound line in the file's order, those for other CPUs and ABIs too.
  std::vector<Line> lines() const;
  /// The names of glibc-hwcaps directories that `hwcap` of such a line counts in; mostly empty.
  std::vector<std::string_view> hwcaps_names() const;

 private:
  struct Entry {
    std::int32_t flags;
    std::uint32_t key;
    std::uint32_t value;
    std::uint64_t hwcap;
  };
  Entry entry(std::size_t index) const;
  /// The string at `offset` of the string table; false when it lies outside.
  bool string_at(std::uint32_t offset, std::string_view& out) const;
  void load_priorities(std::size_t header, const LoaderProfile& loader);
  std::uint32_t number(std::size_t offset) const;

  std::string bytes_;
  std::size_t strings_ = 0;  ///< start of what string indices count from
  std::size_t entries_ = 0;
  std::size_t count_ = 0;
  bool new_format_ = false;
  /// By index into the file's list of glibc-hwcaps names: 0 not for us, else lower is better.
  std::vector<std::uint32_t> priorities_;
  std::vector<std::uint32_t> hwcaps_at_;  ///< where those names stand in bytes_
  std::int32_t flags_ = 0;
  bool legacy_entries_ = true;
  std::uint64_t legacy_bits_ = 0;
  std::uint64_t platform_bit_ = 0;
  std::uint32_t isa_levels_ = 0;
};

/// The flags of ld.so.cache's lines for `loader`'s programs.
std::int32_t cache_flags(const LoaderProfile& loader);

/// The order of the cache: digits as numbers, the rest by byte (glibc elf/dl-cache.c,
/// _dl_cache_libcmp), numbers wrapping as there.
int compare_cache_names(std::string_view a, std::string_view b);

struct CacheLine {
  std::string name;
  std::string path;
};

/// The bytes of an ld.so.cache (format 1.1, which every glibc since 2.2 reads) with the lines of
/// `first` and those of `old`, without the latter's lines for the same names and ABI.
std::string write_ld_so_cache(const LdSoCache& old, const std::vector<CacheLine>& first,
                              const LoaderProfile& loader);

}  // namespace heddle
