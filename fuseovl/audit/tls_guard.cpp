// SPDX-License-Identifier: MIT
#include "fuseovl/audit/kernel.hpp"
#include "fuseovl/audit/loaded_object.hpp"
#include "fuseovl/audit/process.hpp"

namespace heddle::audit {
namespace {

/// The lowest of the dynamic section's tables, or 0. ld.so has relocated their addresses
/// (elf/get-dynamic-info.h) unless the section is read only.
unsigned long lowest_table(const link_map& map) {
  unsigned long lowest = 0;
  for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_HASH:
      case DT_GNU_HASH:
      case DT_SYMTAB:
      case DT_STRTAB:
      case DT_RELA:
      case DT_VERSYM: {
        unsigned long at = entry->d_un.d_ptr;
        if (at < map.l_addr) at += map.l_addr;
        if (!lowest || at < lowest) lowest = at;
        break;
      }
      default:
        break;
    }
  }
  return lowest;
}

/// Whether the page that begins at `address` is mapped (mincore(2): ENOMEM if not).
bool is_mapped(unsigned long address) {
  unsigned char resident = 0;
  return syscall6(__NR_mincore, static_cast<long>(address), 1, as_long(&resident)) == 0;
}

bool has_static_tls_flag(const link_map& map) {
  for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_FLAGS) return entry->d_un.d_val & DF_STATIC_TLS;
  return false;
}

#if defined(__x86_64__)
constexpr unsigned long kInitialExec = R_X86_64_TPOFF64;
#elif defined(__aarch64__)
constexpr unsigned long kInitialExec = R_AARCH64_TLS_TPREL;
#endif

/// glibc's own variables, which its libraries reach in libc (GLIBC_PRIVATE).
bool is_of_libc(const char* name) {
  static constexpr char kNames[][24] = {"errno", "h_errno", "__resp", "__libc_dlerror_result"};
  for (const char* known : kNames)
    if (equal(name, known)) return true;
  return false;
}

/// Whether the object has an initial-exec relocation against another object's variable. An
/// executable that has one carries no DF_STATIC_TLS.
bool reaches_others(const link_map& map) {
  const LoadedObject object(map);
  for (unsigned long i = 0; i < object.data_size / sizeof *object.data; ++i) {
    const unsigned long info = object.data[i].r_info, number = ELF64_R_SYM(info);
    if (ELF64_R_TYPE(info) == kInitialExec && number != 0 &&
        object.symbols[number].st_shndx == SHN_UNDEF && !is_of_libc(object.name_of(number)))
      return true;
  }
  return false;
}

bool any_reaches_others(const link_map* map) {
  for (; map; map = map->l_prev)
    if (reaches_others(*map)) return true;
  return false;
}

}  // namespace

Segments segments_of(const link_map& map, unsigned long page_size) {
  const unsigned long base = map.l_addr;
  if (!base || base % page_size != 0 || !map.l_ld) return {};
  // link_map has no program headers. A library linked at address 0 has them in the page at l_addr,
  // which is mapped if a dynamic table lies in it too; otherwise (patchelf, -Ttext-segment) mincore
  // tells.
  const unsigned long lowest = lowest_table(map);
  if ((lowest < base || lowest >= base + page_size) && !is_mapped(base)) return {};
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(base);
  for (unsigned i = 0; i < SELFMAG; ++i)
    if (header->e_ident[i] != static_cast<unsigned char>(ELFMAG[i])) return {};
  if (header->e_phentsize != sizeof(ElfW(Phdr))) return {};
  const unsigned long first = base + header->e_phoff;
  const unsigned long end = first + header->e_phnum * sizeof(ElfW(Phdr));
  if (first < base || end < first) return {};
  for (unsigned long page = (first & -page_size); page < end; page += page_size)
    if (page != base && !is_mapped(page)) return {};
  return {reinterpret_cast<const ElfW(Phdr)*>(first), header->e_phnum};
}

TlsSegment tls_of(const link_map& map, unsigned long page_size) {
  const Segments segments = segments_of(map, page_size);
  for (unsigned long i = 0; i < segments.count; ++i)
    if (segments.first[i].p_type == PT_TLS)
      return {segments.first[i].p_memsz, segments.first[i].p_align};
  return {};
}

TlsGuard::TlsGuard(const StartBlock& start) {
  const tls::Settings settings = current_settings(start);
  namespaces_ = settings.namespaces;
  // By default glibc reserves 1664 bytes for dlopen, of which optional uses (TLSDESC) may take 512:
  // an ordinary program's blocks (libc 144, libstdc++ 32) fit. Another auditor adds 288 bytes and a
  // libc that uses them.
  const unsigned long promised =
      tls::surplus(namespaces_, tls::kDefaultOptional) - tls::kDefaultOptional;
  optional_ = settings.optional;
  const unsigned long most = 2 * tls::kMostBytes;  // beyond it sums may overflow
  limit_ = tls::surplus(namespaces_ + 1, optional_ < most ? optional_ : most) - promised;
  if (const unsigned long size = start.auxiliary(AT_PAGESZ)) page_size_ = size;
  // _dl_determine_tlsoffset: the strictest of the thread control block and the program.
  const auto* segments = reinterpret_cast<const ElfW(Phdr)*>(start.auxiliary(AT_PHDR));
  for (unsigned long i = 0; segments && i < start.auxiliary(AT_PHNUM); ++i)
    if (segments[i].p_type == PT_TLS && segments[i].p_align > area_align_)
      area_align_ = segments[i].p_align;
}

TlsGuard::Fit TlsGuard::fit(const TlsNeed& need) const {
  if (need.over_aligned) return Fit::never;
  return need.bytes <= limit_ ? Fit::good : Fit::too_small;
}

TlsGuard::Fit TlsGuard::take(const link_map& map) {
  const TlsSegment segment = tls_of(map, page_size_);
  needed_ += tls::block_cost(segment.size, segment.align);
  if (segment.size != 0 && ++blocks_ > tls::kMostBlocks) return Fit::never;
  // An over-aligned block is harmless while it is reached by __tls_get_addr only. Which block a
  // relocation reaches is not resolved: any uncertainty starts the program without this library.
  const bool wide = segment.size != 0 && segment.align > area_align_;
  if ((wide && (has_static_tls_flag(map) || any_reaches_others(&map))) ||
      (wide_ && !wide && reaches_others(map)))
    return Fit::never;
  wide_ = wide_ || wide;
  return segment.size == 0 ? Fit::good : fit({needed_, false});
}

unsigned long TlsGuard::wanted() const {
  return tls::optional_for(needed_ + needed_ / 2, namespaces_);
}

}  // namespace heddle::audit
