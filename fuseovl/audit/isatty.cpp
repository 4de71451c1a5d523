// SPDX-License-Identifier: MIT
#include "fuseovl/audit/isatty.hpp"

#include <elf.h>
#include <errno.h>

#include "fuseovl/audit/kernel.hpp"

namespace heddle::audit {
namespace {

#if defined(__x86_64__)
constexpr unsigned long kJumpSlot = R_X86_64_JUMP_SLOT;
constexpr unsigned long kGlobalData = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr unsigned long kJumpSlot = R_AARCH64_JUMP_SLOT;
constexpr unsigned long kGlobalData = R_AARCH64_GLOB_DAT;
#endif

/// Of a DT_GNU_HASH table; its words of the Bloom filter, the buckets and the chains follow.
struct HashHeader {
  unsigned buckets, first_symbol, bloom_words, bloom_shift;
};

/// The tables of a mapped object's dynamic section.
struct Tables {
  const ElfW(Rela) * calls = nullptr, *data = nullptr;
  unsigned long calls_size = 0, data_size = 0;  ///< bytes
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const HashHeader* hash = nullptr;

  explicit Tables(const link_map& map) {
    for (const ElfW(Dyn)* entry = map.l_ld; entry && entry->d_tag != DT_NULL; ++entry) {
      const unsigned long value = entry->d_un.d_ptr;
      // ld.so has relocated the addresses unless the section is read only.
      const unsigned long at = value < map.l_addr ? value + map.l_addr : value;
      if (entry->d_tag == DT_JMPREL) calls = reinterpret_cast<const ElfW(Rela)*>(at);
      if (entry->d_tag == DT_PLTRELSZ) calls_size = value;
      if (entry->d_tag == DT_RELA) data = reinterpret_cast<const ElfW(Rela)*>(at);
      if (entry->d_tag == DT_RELASZ) data_size = value;
      if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(at);
      if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(at);
      if (entry->d_tag == DT_GNU_HASH) hash = reinterpret_cast<const HashHeader*>(at);
    }
    if (!symbols || !strings) hash = nullptr, calls_size = data_size = 0;
  }

  bool is(unsigned long symbol, const char* name) const {
    return equal(strings + symbols[symbol].st_name, name);
  }

  /// The function that the object defines under `name`, or nullptr.
  const ElfW(Sym) * function(const char* name) const {
    if (!hash || hash->buckets == 0) return nullptr;
    unsigned wanted = 5381;
    for (const char* at = name; *at; ++at) wanted = wanted * 33 + static_cast<unsigned char>(*at);
    const auto* bloom = reinterpret_cast<const unsigned long*>(hash + 1);
    const auto* buckets = reinterpret_cast<const unsigned*>(bloom + hash->bloom_words);
    const unsigned* chains = buckets + hash->buckets;
    unsigned long i = buckets[wanted % hash->buckets];
    if (i < hash->first_symbol) return nullptr;
    for (;; ++i) {
      const unsigned chain = chains[i - hash->first_symbol];
      const auto& symbol = symbols[i];
      if ((chain | 1U) == (wanted | 1U) && symbol.st_shndx != SHN_UNDEF &&
          ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && is(i, name))
        return &symbol;
      if (chain & 1U) return nullptr;
    }
  }
};

/// The C library's, of the program's namespace.
int (*libc_isatty)(int) = nullptr;
int* (*libc_errno)() = nullptr;

int quick_isatty(int fd) {
  struct stat st;
  if (syscall6(__NR_fstat, fd, as_long(&st)) != 0 || !S_ISREG(st.st_mode)) return libc_isatty(fd);
  *libc_errno() = ENOTTY;
  return 0;
}

/// Whether the first object that defines isatty() is the one of errno: the C library, and no
/// LD_PRELOAD comes before it.
bool find_libc(const link_map& program) {
  for (const link_map* map = &program; map; map = map->l_next) {
    const Tables tables(*map);
    const auto* found = tables.function("isatty");
    if (!found) continue;
    const auto* error = tables.function("__errno_location");
    if (!error) return false;
    libc_isatty = reinterpret_cast<int (*)(int)>(map->l_addr + found->st_value);
    libc_errno = reinterpret_cast<int* (*)()>(map->l_addr + error->st_value);
    return true;
  }
  return false;
}

/// Lets `slot` point to quick_isatty(), where it is in a writable segment.
void redirect(unsigned long* slot, unsigned long base, const Segments& segments,
              unsigned long page_size) {
  const auto at = reinterpret_cast<unsigned long>(slot);
  bool is_writable = false, is_protected = false;
  for (unsigned long i = 0; i < segments.count; ++i) {
    const auto& segment = segments.first[i];
    const unsigned long begin = base + segment.p_vaddr, end = begin + segment.p_memsz;
    if (segment.p_type == PT_LOAD && at >= begin && at < end) is_writable = segment.p_flags & PF_W;
    // dl-reloc.c, _dl_protect_relro(): whole pages.
    if (segment.p_type == PT_GNU_RELRO && at >= (begin & -page_size) && at < (end & -page_size))
      is_protected = true;
  }
  if (!is_writable) return;
  const auto page = static_cast<long>(at & -page_size), size = static_cast<long>(page_size);
  if (is_protected && syscall6(__NR_mprotect, page, size, PROT_READ | PROT_WRITE) != 0) return;
  __atomic_store_n(slot, reinterpret_cast<unsigned long>(&quick_isatty), __ATOMIC_RELAXED);
  if (is_protected) syscall6(__NR_mprotect, page, size, PROT_READ);
}

}  // namespace

void answer_isatty(const StartBlock& start, const link_map& program, const link_map& python) {
  const Tables tables(python);
  if (!tables.function("Py_Main") || !find_libc(program)) return;
  const unsigned long page_size = start.auxiliary(AT_PAGESZ);
  // Without AT_BASE ld.so is the command, and the headers are its own.
  const bool is_command = &python == &program && start.auxiliary(AT_BASE);
  const auto* headers = reinterpret_cast<const ElfW(Phdr)*>(start.auxiliary(AT_PHDR));
  const Segments segments =
      is_command ? Segments{headers, start.auxiliary(AT_PHNUM)} : segments_of(python, page_size);
  const auto visit = [&](const ElfW(Rela) * all, unsigned long size) {
    for (unsigned long i = 0; i < size / sizeof *all; ++i) {
      const unsigned long type = ELF64_R_TYPE(all[i].r_info);
      if ((type == kJumpSlot || type == kGlobalData) &&
          tables.is(ELF64_R_SYM(all[i].r_info), "isatty"))
        redirect(reinterpret_cast<unsigned long*>(python.l_addr + all[i].r_offset), python.l_addr,
                 segments, page_size);
    }
  };
  visit(tables.calls, tables.calls_size);
  visit(tables.data, tables.data_size);
}

}  // namespace heddle::audit
