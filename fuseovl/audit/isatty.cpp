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

  /// What the object defines under `name`, or nullptr.
  const ElfW(Sym) * definition(const char* name) const {
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
      if ((chain | 1U) == (wanted | 1U) && symbol.st_shndx != SHN_UNDEF && is(i, name))
        return &symbol;
      if (chain & 1U) return nullptr;
    }
  }
};

/// The C library's, of the program's namespace.
int (*libc_isatty)(int) = nullptr;
int* (*libc_errno)() = nullptr;

/// Of files that are open for writing fstat(2) and statx(2) may wait for a file server.
int quick_isatty(int fd) {
  const long flags = syscall6(__NR_fcntl, fd, F_GETFL);
  struct statx st;
  if (flags < 0 || (flags & (O_ACCMODE | O_PATH)) != O_RDONLY ||
      syscall6(__NR_statx, fd, as_long(""), AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE,
               as_long(&st)) != 0 ||
      !S_ISREG(st.stx_mode))
    return libc_isatty(fd);
  *libc_errno() = ENOTTY;
  return 0;
}

bool is_function(const ElfW(Sym) * symbol) {
  return symbol && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC;
}

/// Whether the first object that defines isatty() is the one of errno: the C library, and no
/// LD_PRELOAD comes before it.
bool find_libc(const StartBlock& start, const link_map& program) {
  const unsigned long vdso = start.auxiliary(AT_SYSINFO_EHDR);
  for (const link_map* map = &program; map; map = map->l_next) {
    const auto at = reinterpret_cast<unsigned long>(map->l_ld);
    if (vdso && at > vdso && at - vdso < 65536) continue;  // it may be linked above where it is
    const Tables tables(*map);
    if (!tables.hash) return false;  // DT_HASH alone: it may define anything
    const auto* found = tables.definition("isatty");
    if (!found) continue;
    const auto* error = tables.definition("__errno_location");
    if (!is_function(found) || !is_function(error)) return false;
    libc_isatty = reinterpret_cast<int (*)(int)>(map->l_addr + found->st_value);
    libc_errno = reinterpret_cast<int* (*)()>(map->l_addr + error->st_value);
    return true;
  }
  return false;
}

/// The Python in which calls are redirected.
struct Python {
  const link_map& map;
  Segments segments;
  unsigned long page_size;

  unsigned long begin(const ElfW(Phdr) & segment) const { return map.l_addr + segment.p_vaddr; }
  /// The flags of the loaded segment with the address; 0: none.
  unsigned flags_at(unsigned long address) const {
    for (unsigned long i = 0; i < segments.count; ++i) {
      const auto& segment = segments.first[i];
      if (segment.p_type == PT_LOAD && address >= begin(segment) &&
          address - begin(segment) < segment.p_memsz)
        return segment.p_flags;
    }
    return 0;
  }
  /// Whether ld.so has made the page read only (dl-reloc.c, _dl_protect_relro(): whole pages).
  bool is_protected(unsigned long address) const {
    for (unsigned long i = 0; i < segments.count; ++i) {
      const auto& segment = segments.first[i];
      if (segment.p_type == PT_GNU_RELRO && address >= (begin(segment) & -page_size) &&
          address < ((begin(segment) + segment.p_memsz) & -page_size))
        return true;
    }
    return false;
  }
  /// Lets the slot at `at` point to quick_isatty(). Left as it is: one that points to neither the C
  /// library's isatty() nor to the object's own code, by which ld.so binds it later.
  void redirect(unsigned long at) const {
    if (!(flags_at(at) & PF_W)) return;
    auto* slot = reinterpret_cast<unsigned long*>(at);
    unsigned long old = __atomic_load_n(slot, __ATOMIC_RELAXED);
    if (old != reinterpret_cast<unsigned long>(libc_isatty) && !(flags_at(old) & PF_X)) return;
    const auto page = static_cast<long>(at & -page_size), size = static_cast<long>(page_size);
    const bool closed = is_protected(at);
    if (closed && syscall6(__NR_mprotect, page, size, PROT_READ | PROT_WRITE) != 0) return;
    __atomic_compare_exchange_n(slot, &old, reinterpret_cast<unsigned long>(&quick_isatty), false,
                                __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    if (closed) syscall6(__NR_mprotect, page, size, PROT_READ);
  }
};

}  // namespace

void answer_isatty(const StartBlock& start, const link_map& program, const link_map* libpython) {
  const bool is_program = Tables(program).definition("Py_Main");
  if (!is_program && !(libpython && Tables(*libpython).definition("Py_Main"))) return;
  if (!find_libc(start, program)) return;
  const link_map& map = is_program ? program : *libpython;
  const unsigned long page_size = start.auxiliary(AT_PAGESZ);
  // Without AT_BASE ld.so is the command, and the headers are its own.
  const bool are_own = is_program && start.auxiliary(AT_BASE);
  const auto* headers = reinterpret_cast<const ElfW(Phdr)*>(start.auxiliary(AT_PHDR));
  const Python python{
      map, are_own ? Segments{headers, start.auxiliary(AT_PHNUM)} : segments_of(map, page_size),
      page_size};
  const Tables tables(map);
  const auto visit = [&](const ElfW(Rela) * all, unsigned long size) {
    for (unsigned long i = 0; i < size / sizeof *all; ++i) {
      const unsigned long type = ELF64_R_TYPE(all[i].r_info);
      if ((type == kJumpSlot || type == kGlobalData) &&
          tables.is(ELF64_R_SYM(all[i].r_info), "isatty"))
        python.redirect(map.l_addr + all[i].r_offset);
    }
  };
  visit(tables.calls, tables.calls_size);
  visit(tables.data, tables.data_size);
}

}  // namespace heddle::audit
