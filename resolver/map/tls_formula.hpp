// SPDX-License-Identifier: MIT
#pragma once

// How much static TLS glibc sets aside, and the tunable that changes it. Freestanding: the audit
// library computes with it before libc exists. static_tls.hpp is the form for programs.
//
// glibc 2.36, elf/dl-tls.c, _dl_tls_static_surplus_init (2.32 to 2.40 alike):
//   surplus = (nns - 1) * 144 + nns * 144 + optional_static_tls + 144
// where nns is the tunable glibc.rtld.nns (4) plus the number of auditors; 1664 by default. Without
// an auditor the blocks of all libraries mapped at start come on top. With one, rtld.c's init_tls()
// runs before they are mapped, so only the program's and ld.so's own blocks do, and each library
// whose TLS is reached by an initial-exec relocation takes its block from the surplus (dl-reloc.c,
// _dl_try_allocate_static_tls) or fails: "cannot allocate memory in static TLS block".

#include <cstddef>
#include <cstdint>

namespace heddle::tls {

inline constexpr std::uint64_t kDefaultOptional = 512;
inline constexpr std::uint64_t kDefaultNamespaces = 4;
/// What ld.so aligns the static area to, if the program's own block needs no more: TCB_ALIGNMENT
/// (sysdeps/*/nptl/tls.h, pthreaddef.h); on aarch64 that of the oldest glibc.
#if defined(__aarch64__)
inline constexpr std::uint64_t kAreaAlign = 16;
#else
inline constexpr std::uint64_t kAreaAlign = 64;
#endif
inline constexpr char kOptionalName[] = "glibc.rtld.optional_static_tls";
inline constexpr char kNamespacesName[] = "glibc.rtld.nns";
inline constexpr char kHwcapsName[] = "glibc.cpu.hwcaps";

/// The most libraries with TLS, libc too, of a start under an auditor. glibc then makes its list of
/// modules before it maps them, with TLS_SLOTINFO_SURPLUS (62) places to spare; more it adds out of
/// order, and ends the program by a failed assertion (dl-tls.c, _dl_add_to_slotinfo). Another
/// auditor's own libraries take places too.
inline constexpr std::uint64_t kMostBlocks = 60;

constexpr std::uint64_t surplus(std::uint64_t namespaces, std::uint64_t optional) {
  return (namespaces - 1) * 144 + namespaces * 144 + optional + 144;
}

/// A damaged file's size and alignment may be any number: sums of so many bytes do not overflow.
inline constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;

/// The most one block takes, whatever was allocated before it: dl-reloc.c keeps the rest of the
/// area a multiple of the block's alignment, which costs up to align - 1 bytes. At most kMostBytes.
constexpr std::uint64_t block_cost(std::uint64_t size, std::uint64_t align) {
  if (size > kMostBytes / 2 || align > kMostBytes / 2) return size == 0 ? 0 : kMostBytes;
  return size == 0 ? 0 : size + (align > 1 ? align - 1 : 0);
}

/// Smallest optional_static_tls with which a start under one auditor, whose libraries need `bytes`
/// (sum of block_cost), leaves the room for dlopen that a start without auditor leaves; never
/// below the default. So a thread's stack loses no more to TLS than it does in a plain start.
/// All blocks count, not just those flagged DF_STATIC_TLS: an executable reaches any library's
/// variables by initial-exec, and carries no such flag.
constexpr std::uint64_t optional_for(std::uint64_t bytes,
                                     std::uint64_t namespaces = kDefaultNamespaces) {
  const std::uint64_t wanted = bytes + surplus(namespaces, kDefaultOptional);
  const std::uint64_t given = surplus(namespaces + 1, 0);
  return wanted > given + kDefaultOptional ? wanted - given : kDefaultOptional;
}
static_assert(surplus(kDefaultNamespaces, kDefaultOptional) == 1664);  // dl-tls.c: LEGACY_TLS
static_assert(optional_for(288) == kDefaultOptional && optional_for(65536) == 65760);

/// As glibc reads a tunable's number (dl-misc.c, _dl_strtoul): decimal, 0octal or 0xhex, ended by
/// the first byte that is no digit; saturated. The text need not end in NUL.
constexpr std::uint64_t parse_number(const char* text, std::size_t length) {
  std::size_t i = 0;
  while (i < length && (text[i] == ' ' || text[i] == '\t')) ++i;
  if (i < length && text[i] == '+') ++i;
  std::uint64_t base = 10;
  if (i < length && text[i] == '0') {
    base = i + 1 < length && (text[i + 1] == 'x' || text[i + 1] == 'X') ? 16 : 8;
    i += base == 16 ? 2 : 1;
  }
  std::uint64_t out = 0;
  for (; i < length; ++i) {
    const char c = text[i];
    const unsigned digit = c >= '0' && c <= '9'   ? static_cast<unsigned>(c - '0')
                           : c >= 'a' && c <= 'f' ? static_cast<unsigned>(c - 'a') + 10
                           : c >= 'A' && c <= 'F' ? static_cast<unsigned>(c - 'A') + 10
                                                  : 16;
    if (digit >= base) break;
    if (out > (UINT64_MAX - digit) / base) return UINT64_MAX;
    out = out * base + digit;
  }
  return out;
}

/// One `name=value` of a GLIBC_TUNABLES text, or a part without '='.
struct Tunable {
  const char* text;  ///< its first byte
  std::size_t size;  ///< up to the next ':' or the end
  std::size_t name_size;
  bool is(const char* name) const {
    std::size_t i = 0;
    while (name[i] && i < name_size && text[i] == name[i]) ++i;
    return !name[i] && i == name_size && name_size < size;
  }
  std::uint64_t value() const { return parse_number(text + name_size + 1, size - name_size - 1); }
  const char* value_text() const { return text + name_size + 1; }
  std::size_t value_size() const { return size - name_size - 1; }
};

/// Calls `take(tunable)` for each part of `text`, in order, empty parts too.
template <class Take>
void each_tunable(const char* text, std::size_t length, Take take) {
  for (std::size_t start = 0; start <= length;) {
    std::size_t end = start;
    while (end < length && text[end] != ':') ++end;
    std::size_t equals = start;
    while (equals < end && text[equals] != '=') ++equals;
    take(Tunable{text + start, end - start, equals - start});
    start = end + 1;
  }
}

/// What glibc makes of a GLIBC_TUNABLES text: the last valid value counts.
struct Settings {
  std::uint64_t optional = kDefaultOptional;
  std::uint64_t namespaces = kDefaultNamespaces;
};
inline Settings read_settings(const char* text, std::size_t length) {
  Settings out;
  each_tunable(text, length, [&](const Tunable& tunable) {
    if (tunable.is(kOptionalName)) out.optional = tunable.value();
    // dl-tunables.list: 1 to 16, other values are ignored.
    if (tunable.is(kNamespacesName) && tunable.value() >= 1 && tunable.value() <= 16)
      out.namespaces = tunable.value();
  });
  return out;
}

/// Most bytes that merge_optional() adds to a text, its NUL included.
inline constexpr std::size_t kMergeRoom = sizeof kOptionalName + 1 + 20 + 1;

/// Writes `text` with optional_static_tls raised to `optional` (the user's own larger value stays),
/// every other part as it was, NUL at the end. `out` has room for length + kMergeRoom bytes and
/// does not overlap `text`. Returns the length without NUL. Newer glibc (2.39) refuses a text that
/// sets a tunable twice, so the old setting goes.
inline std::size_t merge_optional(char* out, const char* text, std::size_t length,
                                  std::uint64_t optional) {
  std::size_t filled = 0;
  std::uint64_t own = 0;
  each_tunable(text, length, [&](const Tunable& tunable) {
    if (tunable.is(kOptionalName)) {
      own = tunable.value();
    } else if (tunable.size != 0) {
      if (filled) out[filled++] = ':';
      for (std::size_t i = 0; i < tunable.size; ++i) out[filled++] = tunable.text[i];
    }
  });
  if (own > optional) optional = own;
  if (filled) out[filled++] = ':';
  for (const char* c = kOptionalName; *c; ++c) out[filled++] = *c;
  out[filled++] = '=';
  char digits[20];
  std::size_t count = 0;
  do {
    digits[count++] = static_cast<char>('0' + optional % 10);
    optional /= 10;
  } while (optional);
  while (count) out[filled++] = digits[--count];
  out[filled] = '\0';
  return filled;
}

}  // namespace heddle::tls
