// SPDX-License-Identifier: MIT
#include <elf.h>
#include <sys/auxv.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>

#include <fmt/format.h>

#include "base/try.hpp"
#include "resolver/search/search.hpp"

// ld.so is read, never run: its built-in directories and version stand as plain strings in .rodata
// (elf/dl-load.c, system_dirs; elf/dl-usage.c, _dl_version).

namespace heddle {

namespace {

// Limits for an image's file, which is searched once for each directory. Debian's ld.so has 200 KiB
// and four of them.
constexpr std::size_t kLargestLoader = std::size_t{16} << 20;
constexpr std::size_t kMostDirectories = 32;
// Neither the search's rules nor the auditor were made for older ones.
constexpr int kOldestGlibc = 26;

/// A run of strings, each absolute, ending in '/', ended by NUL: the shape of system_dirs.
std::vector<std::string> default_directories(std::string_view bytes) {
  const auto is_path_byte = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("/._-+@,~=").find(c) != std::string_view::npos;
  };
  std::vector<std::string> best;
  for (std::size_t at = 0; at < bytes.size();) {
    std::vector<std::string> run;
    auto start = at;
    while (start < bytes.size() && bytes[start] == '/' && run.size() < kMostDirectories) {
      auto end = start;
      while (end < bytes.size() && is_path_byte(bytes[end])) ++end;
      if (end >= bytes.size() || bytes[end] != '\0' || end - start < 2 || bytes[end - 1] != '/')
        break;
      run.emplace_back(bytes.substr(start, end - start));
      start = end + 1;
    }
    // "/proc/" or "/tmp/" alone is another string.
    const bool libraries = std::any_of(run.begin(), run.end(), [](const std::string& dir) {
      return dir.find("/lib") != dir.npos;
    });
    if (libraries && run.size() > best.size()) best = std::move(run);
    const auto next =
        bytes.find(std::string_view("\0/", 2), run.empty() ? at : std::max(at, start - 1));
    if (next == bytes.npos) break;
    at = next + 1;
  }
  return best;
}

/// The NUL-ended string around the first occurrence of `part` that starts with '/'.
std::string absolute_string(std::string_view bytes, std::string_view part) {
  for (auto at = bytes.find(part); at != bytes.npos; at = bytes.find(part, at + 1)) {
    if (bytes.substr(at + part.size(), 1) != std::string_view("\0", 1)) continue;
    const auto start = bytes.rfind('\0', at) + 1;
    if (bytes[start] == '/') return std::string(bytes.substr(start, at + part.size() - start));
  }
  return {};
}

int number_after(std::string_view bytes, std::string_view prefix) {
  for (auto at = bytes.find(prefix); at != bytes.npos; at = bytes.find(prefix, at + 1)) {
    const auto digits = bytes.substr(at + prefix.size(), 4);
    int value = -1;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec == std::errc())
      return value;
  }
  return -1;
}

/// 2.N. Since 2.33 ld.so has --version; older ones lie in a file ld-2.N.so.
int glibc_minor(std::string_view bytes, const std::string& real_path) {
  const int minor = number_after(bytes, " release version 2.");
  if (minor >= 0) return minor;
  return number_after(real_path.substr(real_path.rfind('/') + 1), "ld-2.");
}

/// DL_DST_LIB, what $LIB stands for: a default directory less its slashes and "/usr" that is also a
/// string of its own.
std::string lib_token(std::string_view bytes, const std::vector<std::string>& directories) {
  for (const auto& dir : directories) {
    const auto name = dir.substr(1, dir.size() - 2);
    if (name.starts_with("lib") && bytes.find('\0' + name + '\0') != bytes.npos) return name;
  }
  for (const auto& dir : directories) {
    // "/nix/store/...-glibc/lib/": upstream's value is the last component (Makeconfig, slibdir).
    const auto name = dir.substr(0, dir.size() - 1);
    const auto last = name.substr(name.rfind('/') + 1);
    if (last.starts_with("lib") && bytes.find('\0' + last + '\0') != bytes.npos) return last;
  }
  return "lib";
}

/// elf/dl-hwcaps.c: all combinations of the CPU's names, the platform and "tls", without the empty
/// one; the highest index is written first. Two equal names give equal directories, probed twice.
std::vector<std::string> power_set(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (auto mask = (std::size_t{1} << names.size()) - 1; mask > 0; --mask) {
    std::string directory;
    for (auto i = names.size(); i-- > 0;)
      if ((mask >> i & 1) != 0) directory += (directory.empty() ? "" : "/") + names[i];
    out.push_back(std::move(directory));
  }
  return out;
}

void add_x86_64(LoaderProfile& profile, std::string_view bytes, std::string_view hwcaps_tunable) {
  const auto cpu = read_cpu_levels(hwcaps_tunable);
  if (cpu.xeon_phi) profile.platform = "xeon_phi";
  if (cpu.haswell) profile.platform = "haswell";
  profile.isa_levels = cpu.isa_levels;
  // Only levels the loader knows by name; it lists the best first.
  for (int level = 4; level >= 2; --level) {
    const auto name = "x86-64-v" + std::to_string(level);
    if ((cpu.hwcaps_levels >> (level - 1) & 1) != 0 && bytes.find(name) != bytes.npos)
      profile.hwcaps.push_back(name);
  }
  if (profile.glibc_minor >= 37) return;  // 6099908fb8 took the legacy directories away
  std::vector<std::string> names = {"x86_64"};
  profile.legacy_bits = 1U << 1;  // HWCAP_X86_64
  if (cpu.avx512_1) {
    names.emplace_back("avx512_1");
    profile.legacy_bits |= 1U << 2;  // HWCAP_X86_AVX512_1
  }
  if (!profile.platform.empty()) names.push_back(profile.platform);
  names.emplace_back("tls");
  profile.legacy_hwcaps = power_set(names);
}

}  // namespace

#if defined(__x86_64__)

namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned sub = 0) {
  Registers r;
  if (__get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d) == 0) return {};
  return r;
}

bool all(unsigned value, unsigned bits) { return (value & bits) == bits; }

/// Whether none of `features` is taken away (sysdeps/x86/cpu-tunables.c: a list of -NAME; other
/// names have no effect, up to glibc 2.32 they ended in _Usable).
bool keeps(std::string_view tunable, std::initializer_list<std::string_view> features) {
  for (std::size_t start = 0; start < tunable.size();) {
    const auto end = std::min(tunable.find(',', start), tunable.size());
    auto word = tunable.substr(start, end - start);
    start = end + 1;
    if (word.starts_with('-') && std::ranges::find(features, word.substr(1)) != features.end())
      return false;
  }
  return true;
}

unsigned xcr0() {
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

CpuLevels read_cpu_levels(std::string_view tunable) {
  constexpr unsigned kYmm = 0x6;   // XMM and YMM state
  constexpr unsigned kZmm = 0xE0;  // opmask, ZMM0-15, ZMM16-31
  constexpr unsigned kAvx512Pf = 1U << 26;
  constexpr unsigned kAvx512Er = 1U << 27;
  const auto one = cpuid(1);
  const auto seven = cpuid(7);
  const auto extended = cpuid(0x80000001);
  const unsigned state = all(one.c, bit_OSXSAVE) ? xcr0() : 0;
  const bool avx_usable = all(state, kYmm) && all(one.c, bit_AVX);
  const bool avx512_usable = all(state, kYmm | kZmm) && all(seven.b, bit_AVX512F);

  CpuLevels levels;
  const bool baseline =
      all(one.d, bit_CMOV | bit_CMPXCHG8B | bit_FXSAVE | bit_MMX | bit_SSE | bit_SSE2);
  const bool v2 =
      baseline && all(extended.c, bit_LAHF_LM) &&
      all(one.c, bit_CMPXCHG16B | bit_POPCNT | bit_SSE3 | bit_SSSE3 | bit_SSE4_1 | bit_SSE4_2);
  const bool avx2_set = avx_usable && all(seven.b, bit_AVX2 | bit_BMI | bit_BMI2) &&
                        all(one.c, bit_FMA | bit_MOVBE) && all(extended.c, bit_LZCNT);
  const bool v3 = v2 && avx2_set && all(one.c, bit_F16C);
  const bool v4 = v3 && avx512_usable &&
                  all(seven.b, bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL);
  levels.isa_levels = (baseline ? 1U : 0U) | (v2 ? 2U : 0U) | (v3 ? 4U : 0U) | (v4 ? 8U : 0U);
  // sysdeps/x86_64/dl-hwcaps_subdirs.c: a level needs all levels below it.
  const bool has_v2 = v2 && keeps(tunable, {"POPCNT", "SSE4_1", "SSE4_2", "SSSE3"});
  const bool has_avx2 = keeps(tunable, {"AVX2", "BMI1", "BMI2", "FMA", "LZCNT", "MOVBE"});
  const bool has_v3 = v3 && has_v2 && has_avx2 && keeps(tunable, {"AVX"});
  const bool has_v4 =
      v4 && has_v3 && keeps(tunable, {"AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"});
  levels.hwcaps_levels =
      (levels.isa_levels & 1U) | (has_v2 ? 2U : 0U) | (has_v3 ? 4U : 0U) | (has_v4 ? 8U : 0U);

  unsigned top = 0;
  unsigned vendor_b = 0;
  unsigned vendor_c = 0;
  unsigned vendor_d = 0;
  __get_cpuid(0, &top, &vendor_b, &vendor_c, &vendor_d);
  const bool intel = vendor_b == signature_INTEL_ebx && vendor_c == signature_INTEL_ecx &&
                     vendor_d == signature_INTEL_edx;
  if (intel) {
    const bool cd = avx512_usable && all(seven.b, bit_AVX512CD) && keeps(tunable, {"AVX512CD"});
    if (cd && all(seven.b, kAvx512Er) && keeps(tunable, {"AVX512ER"}))
      levels.xeon_phi = all(seven.b, kAvx512Pf) && keeps(tunable, {"AVX512PF"});
    else if (cd)
      levels.avx512_1 = all(seven.b, bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) &&
                        keeps(tunable, {"AVX512BW", "AVX512DQ", "AVX512VL"});
    levels.haswell = !levels.xeon_phi && avx2_set && all(one.c, bit_POPCNT) && has_avx2 &&
                     keeps(tunable, {"POPCNT"});
  }
  return levels;
}

#else

CpuLevels read_cpu_levels(std::string_view) { return {}; }

#endif

Result<LoaderProfile> read_loader_profile(World& world, const std::string& interpreter,
                                          std::string_view hwcaps_tunable) {
  const FileFacts facts = TRY(world.facts(interpreter));
  const std::string bytes = TRY(world.read(interpreter));
  if (bytes.size() > kLargestLoader) return fail_errno(interpreter, "is too large a loader", EFBIG);
  LoaderProfile profile;
  profile.interpreter = interpreter;
  profile.soname = facts.elf.soname.value_or("");
  profile.elf_class = facts.elf.elf_class;
  profile.machine = facts.elf.machine;
  profile.glibc_minor = glibc_minor(bytes, world.real_path(interpreter));
  profile.default_directories = default_directories(bytes);
  const auto cache = absolute_string(bytes, "/ld.so.cache");
  const bool musl = bytes.find("musl libc") != bytes.npos;
  if (musl || profile.glibc_minor < 0 || profile.default_directories.empty())
    return fail_errno(interpreter, musl ? "is musl's loader, not glibc's" : "is no loader of glibc",
                      ENOTSUP, "only programs for glibc's ld.so can be resolved");
  if (profile.glibc_minor < kOldestGlibc)
    return fail_errno(interpreter, fmt::format("is of glibc 2.{}", profile.glibc_minor), ENOTSUP,
                      fmt::format("programs for glibc 2.{} and newer can be guided", kOldestGlibc));
  // A loader built without one (USE_LDCONFIG unset) has no such string: then there is no cache.
  profile.cache_path = cache;
  profile.preload_path = absolute_string(bytes, "/ld.so.preload");
  profile.lib = lib_token(bytes, profile.default_directories);
  const auto* platform = reinterpret_cast<const char*>(::getauxval(AT_PLATFORM));
  profile.platform = platform == nullptr ? "" : platform;
  if (profile.machine == EM_386) profile.platform = "i686";
  if (profile.machine == EM_X86_64) {  // x32 has the same (sysdeps/x86_64/dl-hwcaps_subdirs.c)
    add_x86_64(profile, bytes, hwcaps_tunable);
  } else if (profile.glibc_minor < 37) {
    std::vector<std::string> names;
    if (profile.machine == EM_386) {
      names.emplace_back("sse2");
      profile.legacy_bits = 1;
    }
#if defined(__aarch64__)
    // HWCAP_IMPORTANT (sysdeps/unix/sysv/linux/aarch64/dl-procinfo.h).
    profile.legacy_bits = ::getauxval(AT_HWCAP) & HWCAP_ATOMICS;
    if (profile.legacy_bits != 0) names.emplace_back("atomics");
#endif
    if (!profile.platform.empty()) names.push_back(profile.platform);
    names.emplace_back("tls");
    profile.legacy_hwcaps = power_set(names);
  }
  return profile;
}

}  // namespace heddle
