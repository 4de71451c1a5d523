// SPDX-License-Identifier: MIT
#include "resolver/search/ld_so_cache.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <unordered_map>

#include "base/coder.hpp"

namespace heddle {

namespace {

// The layout: sysdeps/generic/dl-cache.h.
constexpr std::string_view kOldMagic = "ld.so-1.7.0";
constexpr std::string_view kNewMagic = "glibc-ld.so.cache1.1";
constexpr std::size_t kOldHeader = 16;  // magic, padding, nlibs
constexpr std::size_t kOldEntry = 12;
constexpr std::size_t kNewHeader = 48;
constexpr std::size_t kNewEntry = 24;
constexpr std::size_t kNewCountAt = 20;
constexpr std::size_t kNewFlagsAt = 28;
constexpr std::size_t kExtensionAt = 32;
constexpr std::uint32_t kExtensionMagic = 0xEAA42174U;
constexpr std::uint32_t kHwcapsTag = 1;
constexpr std::uint64_t kIsaLevelMask = (1U << 10) - 1;

// Limits for an image's file, far above real ones.
constexpr std::size_t kLongestString = 4096;  ///< PATH_MAX
constexpr std::size_t kMostHwcaps = 4096;
constexpr std::ptrdiff_t kMostOfOneName = 4096;

/// Without its NUL; npos if there is none within kLongestString.
std::size_t string_length(std::string_view bytes) {
  return bytes.substr(0, kLongestString).find('\0');
}

/// _dl_string_platform of x86: bits above _DL_FIRST_PLATFORM (48); none for "x86_64".
std::uint64_t platform_bit(const std::string& platform) {
  static const std::array<std::string_view, 4> names = {"i586", "i686", "haswell", "xeon_phi"};
  const auto at = std::find(names.begin(), names.end(), platform);
  // ld.so compares with all ones when the platform has no bit: no entry with one can match.
  return at == names.end() ? ~UINT64_C(0) : UINT64_C(1) << (48 + (at - names.begin()));
}
constexpr std::uint64_t kPlatformMask = UINT64_C(0xF) << 48;
constexpr std::uint64_t kTlsMask = UINT64_C(1) << 63;

bool is_extension(std::uint64_t hwcap) {
  return ((hwcap >> 32) & ~kIsaLevelMask) == (UINT64_C(1) << 30);
}

/// Strings behind the entries, each once.
class Strings {
 public:
  explicit Strings(std::size_t start) : start_(start) {}
  std::uint32_t add(std::string_view text) {
    const auto [at, is_new] =
        known_.emplace(text, static_cast<std::uint32_t>(start_ + bytes_.size()));
    if (is_new) bytes_.append(text).push_back('\0');
    return at->second;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::size_t start_;
  std::string bytes_;
  std::unordered_map<std::string, std::uint32_t> known_;
};

}  // namespace

// _DL_CACHE_DEFAULT_ID: FLAG_ELF_LIBC6 and the ABI (sysdeps/unix/sysv/linux/*/dl-cache.h).
std::int32_t cache_flags(const LoaderProfile& loader) {
  const bool is64 = loader.elf_class == ELFCLASS64;
  if (loader.machine == EM_X86_64) return is64 ? 0x0303 : 0x0803;
  if (loader.machine == EM_S390) return is64 ? 0x0403 : 0x0003;
  if (loader.machine == EM_PPC64) return 0x0503;
  if (loader.machine == EM_AARCH64) return 0x0A03;
  return loader.machine == EM_RISCV ? 0x1003 : 0x0003;
}

int compare_cache_names(std::string_view a, std::string_view b) {
  const auto at = [](std::string_view s, std::size_t i) { return i < s.size() ? s[i] : '\0'; };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size()) {
    if (digit(a[i])) {
      if (!digit(at(b, j))) return 1;
      const auto value = [&](std::string_view s, std::size_t& k) {
        std::uint32_t v = 0;
        while (digit(at(s, k))) v = v * 10 + static_cast<std::uint32_t>(s[k++] - '0');
        return static_cast<std::int32_t>(v);
      };
      const auto left = value(a, i);
      const auto right = value(b, j);
      if (left != right) return left < right ? -1 : 1;
    } else if (digit(at(b, j))) {
      return -1;
    } else if (a[i] != at(b, j)) {
      return a[i] - at(b, j);
    } else {
      ++i;
      ++j;
    }
  }
  return -at(b, j);
}

LdSoCache::LdSoCache(std::string bytes, const LoaderProfile& loader)
    : bytes_(std::move(bytes)),
      flags_(cache_flags(loader)),
      legacy_entries_(loader.glibc_minor < 40),  // c5aa5fd40a: 2.40 skips them
      legacy_bits_(loader.legacy_bits),
      platform_bit_(platform_bit(loader.platform)),
      isa_levels_(loader.isa_levels) {
  const std::string_view view = bytes_;
  const auto endian_fits = [&](std::size_t header) {
    const auto flags = static_cast<unsigned char>(view[header + kNewFlagsAt]);
    return flags == 0 || (flags & 3) == 2;  // unset, or little endian
  };
  std::size_t header = view.npos;
  if (view.size() > kNewHeader && view.starts_with(kNewMagic)) {
    if ((view.size() - kNewHeader) / kNewEntry < number(kNewCountAt) || !endian_fits(0)) return;
    header = 0;
  } else if (view.size() > kOldHeader && view.starts_with(kOldMagic)) {
    const std::size_t old_count = number(12);
    if ((view.size() - kOldHeader) / kOldEntry < old_count) return;
    const auto old_end = kOldHeader + old_count * kOldEntry;
    const auto aligned = (old_end + 7) & ~std::size_t{7};
    if (view.size() >= aligned + kNewHeader && view.substr(aligned).starts_with(kNewMagic)) {
      if (!endian_fits(aligned)) return;
      header = aligned;
    } else {
      strings_ = old_end;
      entries_ = kOldHeader;
      count_ = old_count;
      return;
    }
  } else {
    return;
  }
  new_format_ = true;
  strings_ = header;
  entries_ = header + kNewHeader;
  // ld.so does not check the count of an embedded table; we stay inside the file.
  count_ =
      std::min<std::size_t>(number(header + kNewCountAt), (view.size() - entries_) / kNewEntry);
  load_priorities(header, loader);
}

std::uint32_t LdSoCache::number(std::size_t offset) const {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes_.data() + offset, sizeof value);
  return value;
}

LdSoCache::Entry LdSoCache::entry(std::size_t index) const {
  const auto at = entries_ + index * (new_format_ ? kNewEntry : kOldEntry);
  Entry entry{static_cast<std::int32_t>(number(at)), number(at + 4), number(at + 8), 0};
  if (new_format_) std::memcpy(&entry.hwcap, bytes_.data() + at + 16, sizeof entry.hwcap);
  return entry;
}

bool LdSoCache::string_at(std::uint32_t offset, std::string_view& out) const {
  if (offset >= bytes_.size() - strings_) return false;
  const auto rest = std::string_view(bytes_).substr(strings_ + offset);
  const auto length = string_length(rest);
  out = rest.substr(0, length);
  return length != rest.npos;
}

void LdSoCache::load_priorities(std::size_t header, const LoaderProfile& loader) {
  if (loader.glibc_minor < 33) return;
  const auto size = bytes_.size();
  const std::size_t extension = number(header + kExtensionAt);
  if (extension == 0 || extension % 4 != 0 || extension + 8 > size) return;
  if (number(extension) != kExtensionMagic) return;
  const std::size_t sections = number(extension + 4);
  if (sections > (size - extension - 8) / 16) return;
  std::size_t base = 0;
  std::size_t length = 0;
  for (std::size_t i = 0; i < sections; ++i) {
    const auto at = extension + 8 + i * 16;
    const std::size_t section_base = number(at + 8);
    const std::size_t section_size = number(at + 12);
    if (section_base + section_size > size) return;
    if (number(at) != kHwcapsTag) continue;
    base = section_base;
    length = section_size;
  }
  if (length % 4 != 0 || base % 4 != 0 || length / 4 > kMostHwcaps) return;
  for (std::size_t i = 0; i < length / 4; ++i) {
    std::uint32_t priority = 0;
    const std::size_t name_at = number(base + i * 4);
    if (name_at < size) {
      const auto rest = std::string_view(bytes_).substr(name_at);
      const auto level = std::find(loader.hwcaps.begin(), loader.hwcaps.end(),
                                   rest.substr(0, string_length(rest)));
      if (level != loader.hwcaps.end())
        priority = static_cast<std::uint32_t>(level - loader.hwcaps.begin()) + 1;
    }
    priorities_.push_back(priority);
    hwcaps_at_.push_back(static_cast<std::uint32_t>(std::min(name_at, size - 1)));
  }
}

std::vector<LdSoCache::Line> LdSoCache::lines() const {
  std::vector<Line> out;
  std::size_t text = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    const auto lib = entry(i);
    Line line{{}, {}, lib.flags, lib.hwcap};
    if (!string_at(lib.key, line.name) || !string_at(lib.value, line.path)) continue;
    // ldconfig's lines share no more than a name that is the end of its path.
    text += line.name.size() + line.path.size();
    if (text > 2 * bytes_.size()) break;
    out.push_back(line);
  }
  return out;
}

std::vector<std::string_view> LdSoCache::hwcaps_names() const {
  std::vector<std::string_view> out;
  for (const auto at : hwcaps_at_) {
    const auto rest = std::string_view(bytes_).substr(at);
    const auto length = string_length(rest);
    // Thousands of strings without an end would exhaust memory.
    out.push_back(rest.substr(0, length == rest.npos ? 0 : length));
  }
  return out;
}

std::string_view LdSoCache::lookup(const std::string& name) const {
  // As search_cache() in elf/dl-cache.c: the same binary search, since it decides which of several
  // entries with one name are seen when the table is out of order.
  std::ptrdiff_t left = 0;
  std::ptrdiff_t right = static_cast<std::ptrdiff_t>(count_) - 1;
  std::string_view best;
  while (left <= right) {
    auto middle = (left + right) / 2;
    std::string_view key;
    if (!string_at(entry(static_cast<std::size_t>(middle)).key, key)) return {};
    const int order = compare_cache_names(name, key);
    if (order != 0) {
      if (order < 0)
        left = middle + 1;
      else
        right = middle - 1;
      continue;
    }
    left = middle;
    const auto same_name = [&](std::ptrdiff_t index) {
      std::string_view other;
      return string_at(entry(static_cast<std::size_t>(index)).key, other) &&
             compare_cache_names(name, other) == 0;
    };
    const auto first = std::max<std::ptrdiff_t>(0, middle - kMostOfOneName);
    right = std::min(right, middle + kMostOfOneName);
    while (middle > first && same_name(middle - 1)) --middle;
    std::uint32_t best_priority = 0;
    for (; middle <= right; ++middle) {
      if (middle > left && !same_name(middle)) break;
      const auto lib = entry(static_cast<std::size_t>(middle));
      std::string_view value;
      if (lib.flags != flags_ || !string_at(lib.value, value)) continue;
      const bool named = new_format_ && is_extension(lib.hwcap);
      if (new_format_ && !named) {
        if (!best.empty()) break;  // named entries come first
        if (lib.hwcap != 0 && !legacy_entries_) continue;
        if ((lib.hwcap & ~(legacy_bits_ | kPlatformMask | kTlsMask)) != 0) continue;
        if ((lib.hwcap & kPlatformMask) != 0 && (lib.hwcap & kPlatformMask) != platform_bit_)
          continue;
      }
      if (named) {
        const auto level = (lib.hwcap >> 32) & kIsaLevelMask;
        if (level >= 32 || (isa_levels_ & (1U << level)) == 0) continue;
        const auto index = static_cast<std::uint32_t>(lib.hwcap);
        const auto priority = index < priorities_.size() ? priorities_[index] : 0;
        if (priority == 0 || (!best.empty() && priority >= best_priority)) continue;
        best_priority = priority;
      }
      best = value;
      if (!named) break;
    }
    break;
  }
  return best;
}

// As save_cache() in elf/cache.c.
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
  Strings strings(kNewHeader + lines.size() * kNewEntry);
  Encoder entries;
  for (const auto& line : lines) {
    const auto name = strings.add(line.name);
    const auto path = strings.add(line.path);
    entries(line.flags, name, path, std::uint32_t{0}, line.hwcap);  // 0: osversion, unused
  }
  std::vector<std::uint32_t> hwcaps;
  for (const auto name : old.hwcaps_names()) hwcaps.push_back(strings.add(name));
  std::string out = entries.take() + strings.bytes();
  const auto extension_at = (kNewHeader + out.size() + 3) & ~std::size_t{3};
  const auto at = static_cast<std::uint32_t>(hwcaps.empty() ? 0 : extension_at);
  if (!hwcaps.empty()) {
    Encoder extension;  // one section, its flags 0, and where its data is: behind this
    extension(kExtensionMagic, std::uint32_t{1}, kHwcapsTag, std::uint32_t{0}, at + 24,
              static_cast<std::uint32_t>(4 * hwcaps.size()));
    for (const auto name : hwcaps) extension(name);
    out.resize(at - kNewHeader);
    out += extension.take();
  }
  Encoder numbers;
  numbers(static_cast<std::uint32_t>(lines.size()),
          static_cast<std::uint32_t>(strings.bytes().size()),
          std::uint32_t{2},  // cache_file_new_flags_endian_little
          at);
  auto head = std::string(kNewMagic) + numbers.take();
  head.resize(kNewHeader);
  return head + out;
}

}  // namespace heddle
