// SPDX-License-Identifier: MIT
#include "fuseovl/audit/tls_guard.hpp"

#include "fuseovl/audit/kernel.hpp"

namespace heddle::audit {
namespace {

constexpr unsigned long kPage = 4096;

/// The lowest of the tables that the dynamic section names, or 0. ld.so has relocated these words
/// (elf/get-dynamic-info.h) unless the section is read only: then they are still offsets.
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

/// Whether the page at `address` is mapped, said by the kernel (mincore(2): ENOMEM if not).
bool is_mapped(unsigned long address) {
  unsigned char resident;
  return syscall6(__NR_mincore, static_cast<long>(address), kPage, as_long(&resident)) == 0;
}

bool has_static_tls_flag(const link_map& map) {
  for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_FLAGS) return entry->d_un.d_val & DF_STATIC_TLS;
  return false;
}

}  // namespace

TlsSegment tls_of(const link_map& map) {
  const unsigned long base = map.l_addr;
  if (!base || base % kPage != 0 || !map.l_ld) return {};
  // link_map shows no program headers. A library linked at address 0 has them in the page at
  // l_addr, and usually a table of its dynamic section in the same page shows that this page is
  // mapped; where the linker put things elsewhere (patchelf, -Ttext-segment), ask.
  const unsigned long lowest = lowest_table(map);
  if ((lowest < base || lowest >= base + kPage) && !is_mapped(base)) return {};
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(base);
  for (unsigned i = 0; i < SELFMAG; ++i)
    if (header->e_ident[i] != static_cast<unsigned char>(ELFMAG[i])) return {};
  if (header->e_phentsize != sizeof(ElfW(Phdr))) return {};
  const unsigned long first = base + header->e_phoff;
  const unsigned long end = first + header->e_phnum * sizeof(ElfW(Phdr));
  if (first < base || end < first) return {};
  for (unsigned long page = (first & -kPage); page < end; page += kPage)
    if (page != base && !is_mapped(page)) return {};
  const auto* segments = reinterpret_cast<const ElfW(Phdr)*>(first);
  for (unsigned i = 0; i < header->e_phnum; ++i)
    if (segments[i].p_type == PT_TLS) return {segments[i].p_memsz, segments[i].p_align};
  return {};
}

TlsGuard::TlsGuard(const StartBlock& start) {
  const tls::Settings settings = current_settings(start);
  namespaces_ = settings.namespaces;
  raised_ = was_raised(start);
  // With defaults glibc promises dlopen 1664 bytes, of which optional uses (TLSDESC) may take 512:
  // an ordinary program's few bytes (libc 144, libstdc++ 32) are no reason to start it again. Other
  // auditors bring 288 bytes each and a libc of their own to use them.
  const unsigned long promised =
      tls::surplus(namespaces_, tls::kDefaultOptional) - tls::kDefaultOptional;
  limit_ = tls::surplus(namespaces_ + 1, settings.optional) - promised;
  // _dl_determine_tlsoffset: the strictest of the thread control block (64) and the program.
  const auto* segments = reinterpret_cast<const ElfW(Phdr)*>(start.auxiliary(AT_PHDR));
  for (unsigned long i = 0; segments && i < start.auxiliary(AT_PHNUM); ++i)
    if (segments[i].p_type == PT_TLS && segments[i].p_align > area_align_)
      area_align_ = segments[i].p_align;
}

void TlsGuard::take(const link_map& map, const StartBlock& start) {
  const TlsSegment segment = tls_of(map);
  needed_ += tls::block_cost(segment.size, segment.align);
  if (segment.size != 0 && segment.align > area_align_ && has_static_tls_flag(map))
    start_unaudited(start);
  if (segment.size == 0 || needed_ <= limit_) return;
  // What is still to come is unknown. One large block is the usual case: ask for just that. Where
  // more follow, ask for half as much again, so that a few starts do however many there are.
  start_again(start, tls::optional_for(needed_ + (raised_ ? needed_ / 2 : 0), namespaces_));
}

}  // namespace heddle::audit
